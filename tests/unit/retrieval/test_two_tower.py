from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from retrieval_log import Log, Row, declared, fit_data
from torch.nn import functional

from models.embedding.table.fused_table import FusedTable
from models.two_tower.entities import Entities, make_lookups
from models.two_tower.train import softmax_loss, train
from shortlist.contracts import DataError
from shortlist.slates.retrieval.item_content import NumberScale
from shortlist.slates.retrieval.source import Queries
from shortlist.slates.retrieval.sources.two_tower import TwoTower


def two_groups(seed: int = 1) -> list[Row]:
    """Users 0 to 39 take even items, the others odd ones; items 0 to 19."""
    random = np.random.default_rng(seed)
    return [
        (int(user), int(2 * random.integers(10) + (user >= 40)), 0, "home", 1)
        for user in np.repeat(np.arange(80), 12)
    ]  # fmt: skip


def section(**changes: object) -> TwoTower:
    plain = {"kind": "two_tower", "embedding_dim": 8, "epochs": 20, "batch_size": 64, "sampled_negatives": 16}
    return TwoTower.model_validate(plain | changes)


def test_users_get_the_items_of_their_group(log: Log, tmp_path: Path) -> None:
    inputs = fit_data(log.write(two_groups()), declared(), 0, max_items=10)
    source = section()
    source.fit(inputs, tmp_path)
    loaded = source.load(tmp_path)
    users = pl.Series([3, 60], dtype=pl.Int64)
    ranked = loaded.retrieve(Queries(users, np.full((2, 1), -1, np.int32), pl.DataFrame()), 10)
    ids = inputs.catalogue.ids.to_numpy()[ranked.items]
    assert (ids[0] % 2 == 0).all()
    assert (ids[1] % 2 == 1).all()


def test_an_unknown_user_is_the_mean_of_recent_items_or_has_no_vector(log: Log, tmp_path: Path) -> None:
    inputs = fit_data(log.write(two_groups()), declared(), 0, max_items=5)
    source = section()
    source.fit(inputs, tmp_path)
    recent = inputs.catalogue.find_rows(pl.Series([7, 7], dtype=pl.Int64)).reshape(2, 1).copy()
    recent[1] = -1
    ranked = source.load(tmp_path).retrieve(Queries(pl.Series([999, None]), recent, pl.DataFrame()), 5)
    assert (inputs.catalogue.ids.to_numpy()[ranked.items[0]] % 2 == 1).all()
    assert ranked.items[1].tolist() == [-1] * 5


def test_an_item_without_positives_is_placed_by_its_columns(log: Log, tmp_path: Path) -> None:
    rows = two_groups()
    items = {
        "item_id": [*range(20), 100, 101],
        "topic": ["even", "odd"] * 11,
        "tags": [[]] * 22,
        "price": [1.0] * 22,
        "content": [None] * 22,
    }
    inputs = fit_data(log.write(rows, items=items), declared(), 0)
    towers = train(section(item_columns=["topic"]), inputs)
    first = towers.item_vectors[inputs.catalogue.find_rows(pl.Series([100, 101], dtype=pl.Int64))]
    even_user = towers.user_vectors[towers.users.index_of(3)]
    assert first[0] @ even_user > first[1] @ even_user


def test_the_same_seed_gives_the_same_vectors_and_the_loss_falls(log: Log) -> None:
    inputs = fit_data(log.write(two_groups()), declared(), 0)
    first_towers, second_towers = (train(section(item_numbers=["price"]), inputs) for _ in range(2))
    assert np.array_equal(first_towers.item_vectors, second_towers.item_vectors)
    assert first_towers.history[-1]["loss"] < first_towers.history[0]["loss"]
    assert np.linalg.norm(first_towers.user_vectors[:, :-1], axis=1) == pytest.approx(np.ones(80))


def test_popularity_is_part_of_an_items_score_as_declared(log: Log) -> None:
    # Item 10 is taken 31 times, item 20 11 times: 30 and 10 users, and user 99 takes both.
    rows: list[Row] = [(user, 10 if user % 4 else 20, 0, "home", 1) for user in range(40)]
    inputs = fit_data(log.write([*rows, *((99, item, 0, "home", 1) for item in (10, 20))]), declared(), 0)
    towers_with, towers_without = (train(section(popularity=weight), inputs) for weight in (1.0, 0.0))
    assert towers_with.item_vectors[:, -1] == pytest.approx(0.1 * np.log(np.array([32, 12]) / (42 + 2)))
    assert towers_without.item_vectors[:, -1].tolist() == [0, 0]
    assert towers_with.user_vectors[:, -1].tolist() == [1] * 41


def test_two_tower_requires_two_positive_rows(log: Log) -> None:
    inputs = fit_data(log.write([(1, 2, 0, "home", 1), (1, 3, 0, "home", 0)]), declared(), 0)
    with pytest.raises(DataError, match="1 positive rows; two towers learn from 2 or more"):
        train(section(), inputs)


def test_the_softmax_is_corrected_for_frequency_and_leaves_out_the_rows_own_item() -> None:
    scores = torch.tensor([[2.0, 0.5, 1.0], [0.0, 1.0, 3.0]])
    columns = torch.tensor([4, 6, 4])  # the rows' own items, and a sampled one that is the first row's own
    log_expected = torch.tensor([0.2, 0.1, 0.2])
    first = functional.cross_entropy((scores - log_expected)[:1, :2], torch.tensor([0]))
    second = functional.cross_entropy((scores - log_expected)[1:], torch.tensor([1]))
    loss = softmax_loss(torch.eye(2), scores.T, -log_expected, columns)  # these vectors have these products
    assert loss.item() == pytest.approx((first + second).item() / 2)


def test_the_gradient_of_the_softmax_is_that_of_its_loss() -> None:
    random = torch.Generator().manual_seed(3)
    users, items, added = (
        torch.randn(shape, generator=random, dtype=torch.float64) for shape in ((5, 3), (9, 3), (9,))
    )
    columns = torch.tensor([0, 1, 1, 2, 3, 1, 0, 7, 8])  # some are other rows' own items, and occur twice
    loss_inputs = users.requires_grad_(), items.requires_grad_(), added, columns
    assert torch.autograd.gradcheck(softmax_loss, loss_inputs)


def test_a_row_whose_own_item_has_no_probability_left_has_a_finite_loss() -> None:
    loss = softmax_loss(torch.tensor([[1.0]]), torch.tensor([[-500.0], [500.0]]), torch.zeros(2), torch.arange(2))
    assert loss.item() == pytest.approx(-np.log(1e-38), rel=1e-5)


def test_logq_correction_makes_sampled_softmax_equal_the_full_softmax() -> None:
    # Columns drawn in proportion to frequency q, corrected by log q: the mean gradient is that of the softmax over all
    # items. Without the correction frequent items are pushed down.
    torch.manual_seed(0)
    q = torch.tensor([0.7, 0.2, 0.1])
    scores = torch.tensor([0.3, -0.2, 0.5], requires_grad=True)
    full = torch.softmax(scores, 0).detach()
    columns = torch.multinomial(q, 20_000, replacement=True)
    sampled = torch.softmax(scores[columns] - q[columns].log(), 0)
    share = torch.zeros(3).index_add(0, columns, sampled.detach())
    assert share.tolist() == pytest.approx(full.tolist(), abs=0.02)


def test_an_entity_embedding_sums_its_rows_and_averages_its_tags() -> None:
    table = pl.DataFrame({"topic": ["a", "b", None], "tags": [["x", "y"], [], ["y"]]})
    entities = Entities.from_table(table, ["topic", "tags"], 10)
    # Rows 10 to 12 are the ids, 13 and 14 the topics, 15 and 16 the tags.
    assert entities.table_rows == 7
    weights = torch.arange(17, dtype=torch.float32)[:, None]
    embeddings = FusedTable.from_rows(weights, torch.zeros(17))(make_lookups((entities, torch.tensor([2, 0, 1]))))
    assert embeddings[:, 0].tolist() == [12 + 16, 10 + 13 + (15 + 16) / 2, 11 + 14]


def test_numbers_are_standardised_and_nulls_are_the_mean() -> None:
    table = pl.DataFrame({"price": [1.0, 3.0, None]})
    standardised = NumberScale.from_table(table, ["price"]).standardise(table)
    assert standardised[:, 0].tolist() == [-1, 1, 0]
