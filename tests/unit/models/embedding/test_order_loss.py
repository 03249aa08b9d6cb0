"""Pairwise and listwise losses: their formulas, and loaders that never split a list."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from models.dlrm.network import DLRM
from models.dlrm.section import DLRMModel
from models.embedding.reading.batches import BatchLoader, ChunkStore
from models.embedding.reading.device_batches import DeviceStore
from models.embedding.reading.file_offsets import read_chunk_size
from models.embedding.reading.layout import Layout
from models.embedding.reading.lists import FileLists
from models.embedding.reading.loading import host_decoder
from models.embedding.training.cuda_graphs import make_step
from models.embedding.training.order_loss import ORDER_LOSSES, listwise_loss, pairwise_loss
from models.embedding.training.step import StepOptions, step_options
from shortlist.contracts import Columns, DataError
from shortlist.ranking.inputs import LearningTable, features_matching
from shortlist.storage.tables import DayTable

RANKED: dict[str, Any] = {"features": ("*",), "objective": "listwise", "calibration": "platt"}
LISTS = {
    "several": ([0, 0, 0, 1, 1, 2, 2, 2, 2], [1, 0, 0, 1, 0, 0, 1, 1, 0]),
    "of one class": ([0, 0, 1, 1, 2, 2], [1, 1, 0, 0, 1, 0]),
    "of one row": ([0, 1, 1, 2], [1, 0, 1, 0]),
    "nothing to learn": ([0, 1], [1, 0]),
}


def by_hand(objective: str, logits: Tensor, labels: list[int], lists: list[int]) -> Tensor:
    """Return the loss as its formula says it, list by list and pair by pair."""
    total = logits.new_zeros(())
    for number in set(lists):
        rows = [row for row, list_number in enumerate(lists) if list_number == number]
        good, bad = ([row for row in rows if labels[row] == label] for label in (1, 0))
        if not good or not bad:
            continue
        if objective == "pairwise":
            losses = [torch.log(1 + torch.exp(logits[j] - logits[i])) for i in good for j in bad]
        else:
            log_sum = torch.log(sum(torch.exp(logits[row]) for row in rows))  # type: ignore[arg-type]
            losses = [log_sum - logits[i] for i in good]
        total = total + len(rows) * torch.stack(losses).mean()
    return total / len(labels)


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("objective", ORDER_LOSSES)
def test_loss_and_gradient_are_those_of_the_formula(objective: Any, kind: str) -> None:
    lists, labels = LISTS[kind]
    logits = torch.randn(len(labels), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    logits_of_loss, logits_by_hand = (logits.clone().requires_grad_() for _ in range(2))
    loss = ORDER_LOSSES[objective](logits_of_loss, torch.tensor(labels).double(), torch.tensor(lists))
    expected_loss = by_hand(objective, logits_by_hand, labels, lists)
    (loss + 0 * logits_of_loss.sum()).backward()
    (expected_loss + 0 * logits_by_hand.sum()).backward()
    torch.testing.assert_close(loss, expected_loss)
    torch.testing.assert_close(logits_of_loss.grad, logits_by_hand.grad)


@pytest.mark.parametrize("objective", ORDER_LOSSES)
def test_only_differences_within_a_list_count(objective: Any) -> None:
    lists, labels = torch.tensor([0, 0, 1, 1]), torch.tensor([1.0, 0, 0, 1])
    logits = torch.tensor([0.5, 0.1, 0.3, -0.2])
    moved = logits + torch.tensor([1_000.0, 1_000.0, -1_000.0, -1_000.0])
    loss = ORDER_LOSSES[objective]
    assert float(loss(moved, labels, lists)) == pytest.approx(float(loss(logits, labels, lists)), abs=1e-4)


@pytest.mark.parametrize("objective", ORDER_LOSSES)
def test_a_list_counts_by_the_weight_that_its_labels_carry(objective: Any) -> None:
    logits, lists = torch.tensor([0.5, 0.1, 0.3, -0.2]), torch.tensor([0, 0, 1, 1])
    loss = ORDER_LOSSES[objective]
    first, second = (loss(logits, torch.tensor(labels), lists) for labels in ([1.0, 0, 0, 0], [0.0, 0, 0, 1]))
    # A list of one class has no loss: the two lists are looked at one by one, then together, the second 4 times.
    together = loss(logits, torch.tensor([1.0, -1, -4, 4]), lists)
    assert float(together) == pytest.approx(float(first) + 4 * float(second))


def test_losses_of_equal_scores() -> None:
    labels, lists = torch.tensor([1.0, 0, 0]), torch.zeros(3, dtype=torch.int64)
    assert float(pairwise_loss(torch.zeros(3), labels, lists)) == pytest.approx(math.log(2))
    assert float(listwise_loss(torch.zeros(3), labels, lists)) == pytest.approx(math.log(3))


@pytest.mark.parametrize("objective", ORDER_LOSSES)
def test_a_batch_without_rows_has_no_loss(objective: Any) -> None:
    none = torch.empty(0, requires_grad=True)
    loss = ORDER_LOSSES[objective](none, torch.empty(0), torch.empty(0, dtype=torch.int64))
    loss.backward()  # type: ignore[no-untyped-call] # torch does not annotate it
    assert float(loss.detach()) == 0


@pytest.fixture
def learning(table: DayTable) -> LearningTable:
    """Return the training days with users; the dense column `user_id` tells whose a row is."""
    return LearningTable(table, features_matching(table, ("user_id", "age")), (Columns.USER,))


def loader(learning: LearningTable, batch_size: int = 100, budget: int = 2**30, pool_rows: int = 1_000) -> BatchLoader:
    store = ChunkStore(learning, Layout.from_features(learning.features), budget)
    return BatchLoader(store, learning.paths("train"), batch_size, pool_rows, 5, FileLists.read(learning))


def user_of(batch: Any) -> np.ndarray:
    users: np.ndarray = batch.lookups.rows_L.numpy()
    return users


@pytest.mark.parametrize("budget", [2**30, 0])
def test_lists_are_never_cut(learning: LearningTable, budget: int) -> None:
    lists = FileLists.read(learning)
    assert lists is not None
    expected_lengths = sorted(lists.lengths(learning.paths("train")).tolist())
    batches = loader(learning, budget=budget)
    for epoch in (1, 2):
        lengths: list[int] = []
        for batch in batches.shuffled(epoch):
            assert batch.rows <= 100
            numbers = batch.lists_B.numpy()  # type: ignore[union-attr] # order is learnt
            users = user_of(batch)
            assert (np.diff(numbers) >= 0).all() and numbers[0] == 0
            for number in range(numbers[-1] + 1):
                assert len(set(users[numbers == number])) == 1
            lengths += np.bincount(numbers).tolist()
        assert sorted(lengths) == expected_lengths


def test_lists_change_places_and_stay_together(learning: LearningTable) -> None:
    first, second, repeated = (
        np.concatenate([user_of(batch) for batch in loader(learning).shuffled(epoch)]) for epoch in (1, 2, 1)
    )
    assert np.array_equal(first, repeated)
    assert not np.array_equal(first, second)


def test_batches_are_nearly_full(learning: LearningTable) -> None:
    rows = [batch.rows for batch in loader(learning, batch_size=400, pool_rows=3_000).shuffled(1)]
    assert np.mean(rows[:-1]) > 400 - 25  # a list has 25 rows at most places: 1 000 rows of a file, 40 users


def test_a_device_gets_the_same_lists(learning: LearningTable) -> None:
    layout = Layout.from_features(learning.features)
    sizes = {path: read_chunk_size(path, layout) for path in learning.paths("train")}
    device = DeviceStore(host_decoder(learning, layout), sizes, "cpu", "device")
    device_loader = BatchLoader(device, learning.paths("train"), 100, 1_000, 5, FileLists.read(learning))
    for host_batch, moved in zip(loader(learning).shuffled(1), device_loader.shuffled(1), strict=True):
        assert torch.equal(host_batch.labels_B, moved.labels_B)
        assert torch.equal(host_batch.lists_B, moved.to("cpu").lists_B)  # type: ignore[arg-type]
        np.testing.assert_array_equal(host_batch.dense_BF, moved.dense_BF)


def test_validation_rows_come_with_their_lists(learning: LearningTable) -> None:
    batches = loader(learning)
    users = np.concatenate([user_of(batch) for batch in batches.in_order()])
    numbers = batches.lists_in_order()
    assert numbers is not None
    frames = pl.concat([pl.DataFrame({"list": numbers, "user": users})]).group_by("list").n_unique()
    assert frames["user"].unique().to_list() == [1]


def test_a_list_longer_than_a_batch_is_refused_with_its_length(learning: LearningTable) -> None:
    lists = FileLists.read(learning)
    assert lists is not None
    paths = learning.paths("train")
    longest = int(lists.lengths(paths).max())
    lists.check_batch_size(paths, longest, "net")
    message = (
        rf"models\.net\.batch_size: a user has {longest} rows in one file .* Declare batch_size: {longest} or more,"
    )
    with pytest.raises(DataError, match=message):
        lists.check_batch_size(paths, longest - 1, "net")
    with pytest.raises(DataError, match=rf"batch_size: {2 * longest} or more for 2 workers"):
        lists.check_batch_size(paths, longest - 1, "net", workers=2)


def test_order_is_learnt_without_compiling_and_recording() -> None:
    section = DLRMModel.model_validate(RANKED)
    for device in ("cpu", "cuda"):
        options = step_options(section.model_copy(update={"precision": "fp32"}), device, visits=10**12)
        assert not options.compiled and not options.graphs
    model = DLRM(Layout.from_features([]), section)
    with pytest.raises(AssertionError, match="pairs have no fixed shape"):
        make_step(model, section, StepOptions(compiled=True), "cpu")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"compile": "on"}, r"compile: on needs steps of one shape, and with objective: listwise .*; declare compile:"),
        (
            {"calibration": "none"},
            r"objective: listwise learns an order, .*; declare calibration: platt or isotonic too",
        ),
    ],
)
def test_what_an_order_cannot_be_declared_with(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DLRMModel.model_validate({**RANKED, **changed})


def test_a_table_whose_lists_do_not_fit_stops_the_training(table: DayTable, runtime: Any, tmp_path: Path) -> None:
    from models.dlrm.network import DLRMRanker

    ranker = DLRMRanker(DLRMModel.model_validate({**RANKED, "batch_size": 16}), "net")
    with pytest.raises(DataError, match=r"models\.net\.batch_size: a user has \d+ rows in one file of the training"):
        ranker.fit(table, runtime)
