from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch.nn import functional

from models.dlrm.network import DLRM
from models.dlrm.section import DLRMModel
from models.embedding.reading.chunks import Batch, Lookups
from models.embedding.reading.layout import Layout
from models.embedding.table.cache_policy import CacheError
from models.embedding.table.cached_embeddings import CachedTable
from models.embedding.table.fused_table import FusedTable
from models.embedding.table.optimizer import RowWiseAdagrad
from models.embedding.table.static_shape_adagrad import StaticShapeAdagrad
from models.embedding.training.step import StepOptions, TrainingStep
from shortlist.ranking.inputs import TableFeature

WIDTH, ROWS = 8, 64
SECTION = DLRMModel(features=("*",), embedding_dim=WIDTH, bottom_mlp=(8,), top_mlp=(8,), batch_size=ROWS)
COLUMNS = (
    TableFeature(name="user", kind="id", size=3_000),
    TableFeature(name="item", kind="id", size=500),
    TableFeature(name="tags", kind="ids", size=200),
    TableFeature(name="age", kind="dense"),
)
LAYOUT = Layout.from_features(COLUMNS)
SLOTS = 400
"""Of 3 700 rows; a batch looks up at most 64 + 64 + 3 * 64 = 320 distinct ones."""


def batches(count: int, seed: int = 0) -> Iterator[Batch]:
    """Give batches with two ids and a list of up to three per row; few ids are frequent, most are rare."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        user, item = (np.minimum(random.zipf(1.3, ROWS) - 1, feature.size - 1) for feature in COLUMNS[:2])  # type: ignore[operator]
        lengths = random.integers(0, 4, ROWS)
        tags = random.integers(0, 200, lengths.sum())
        rows = np.concatenate([np.stack([user, item + 3_000], axis=1).reshape(-1), tags + 3_500]).astype(np.int32)
        slot_lengths = np.concatenate([np.ones(2 * ROWS, np.int64), lengths])
        starts = np.concatenate([[0], np.cumsum(slot_lengths)]).astype(np.int32)
        shares = np.repeat(1 / np.maximum(slot_lengths, 1), slot_lengths).astype(np.float32)
        lookups = Lookups(*map(torch.from_numpy, (rows, starts, shares)))
        labels, dense = torch.from_numpy((user % 3 == 0).astype(np.float32)), torch.randn(ROWS, 1)
        yield Batch(labels, dense, lookups)


def cached(slots: int = SLOTS) -> CachedTable:
    return CachedTable(LAYOUT, WIDTH, slots)


def draw_model(make: Callable[[], FusedTable]) -> tuple[FusedTable, DLRM]:
    torch.manual_seed(5)
    table = make()
    return table, DLRM(LAYOUT, SECTION, table)


def trained(make: Callable[[], FusedTable], options: StepOptions) -> tuple[DLRM, list[float], list[torch.Tensor]]:
    """Train for two epochs with scores in between; return the model, its losses and its scores."""
    table, model = draw_model(make)
    step = TrainingStep(model, SECTION, options, "cpu")
    losses, scores = [], []
    for epoch in (1, 2):
        model.train()
        torch.manual_seed(epoch)
        losses += [float(step(prepared(table, batch))) for batch in batches(40, seed=epoch)]
        model.eval()
        with torch.no_grad():
            for batch in batches(5, seed=9):
                pooled = table.look_up(batch.lookups) if isinstance(table, CachedTable) else table(batch.lookups)
                scores.append(model.network(batch.dense_BF, pooled))
    return model, losses, scores


def prepared(table: FusedTable, batch: Batch) -> Batch:
    return batch._replace(lookups=table.prepare(batch.lookups)) if isinstance(table, CachedTable) else batch


def test_the_rows_drawn_are_those_of_a_table_on_the_device() -> None:
    for (name, tensor), (_, expected) in zip(
        draw_model(cached)[1].state_dict().items(),
        draw_model(lambda: FusedTable(LAYOUT, WIDTH))[1].state_dict().items(),
        strict=True,
    ):
        assert torch.equal(tensor, expected), name


@pytest.mark.parametrize(
    "options",
    [StepOptions(), StepOptions(precision="bf16"), StepOptions(fixed_shapes=True)],
    ids=["fp32", "bf16", "as on a GPU"],
)
@pytest.mark.parametrize("slots", [SLOTS, 1_000, 10**6])
def test_losses_scores_and_weights_are_those_of_a_table_on_the_device(slots: int, options: StepOptions) -> None:
    expected, expected_losses, expected_scores = trained(lambda: FusedTable(LAYOUT, WIDTH), options)
    model, losses, scores = trained(lambda: cached(slots), options)
    assert losses == expected_losses
    assert all(
        torch.equal(score, expected_score) for score, expected_score in zip(scores, expected_scores, strict=True)
    )
    for name, tensor in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    assert torch.count_nonzero(expected.table.squares_R) > 2 * SLOTS  # many more rows learnt than there are slots


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_thousand_updates_of_rows_that_come_and_go_equal_those_of_the_whole_table(decay: float) -> None:
    random = torch.Generator().manual_seed(0)
    whole, cached_table = draw_model(lambda: FusedTable(LAYOUT, WIDTH))[0], draw_model(lambda: cached(300))[0]
    assert isinstance(cached_table, CachedTable)
    moves = [RowWiseAdagrad(table.weight_RD, table.squares_R, 0.1, decay) for table in (whole, cached_table)]
    for _ in range(1_000):
        length = int(torch.randint(1, 60, (), generator=random))
        rows = torch.randint(0, LAYOUT.rows, (length,), generator=random).int()
        lookups = Lookups(rows, torch.arange(length + 1).int(), None)
        gradient = torch.randn(length, WIDTH, generator=random)
        cached_lookups = cached_table.prepare(lookups)
        assert torch.equal(cached_table(cached_lookups), whole(lookups))
        for move, table_lookups in zip(moves, (lookups, cached_lookups), strict=True):
            move.step(table_lookups, gradient.clone())
    for name, tensor in whole.state_dict().items():
        assert torch.equal(cached_table.state_dict()[name], tensor)


def test_sums_that_a_gpu_makes_of_pieces_are_those_of_the_whole_table() -> None:
    """Thousands of gradients of one row are added in pieces, and where those begin must not depend on its slot."""
    random = torch.Generator().manual_seed(0)
    whole, cached_table = draw_model(lambda: FusedTable(LAYOUT, WIDTH))[0], draw_model(lambda: cached(2_000))[0]
    assert isinstance(cached_table, CachedTable)
    moves = [StaticShapeAdagrad(table.weight_RD, table.squares_R, 0.1) for table in (whole, cached_table)]
    for _ in range(30):
        rows = (torch.rand(4_000, generator=random) ** 6 * LAYOUT.rows).int()
        lookups = Lookups(rows, torch.arange(4_001).int(), None)
        gradient = torch.randn(4_000, WIDTH, generator=random)
        for move, table_lookups in zip(moves, (lookups, cached_table.prepare(lookups)), strict=True):
            move.step(table_lookups, gradient)
    assert torch.bincount(rows).max() > 3 * 256
    for name, tensor in whole.state_dict().items():
        assert torch.equal(cached_table.state_dict()[name], tensor)


def test_no_more_rows_than_slots_are_ever_on_the_device() -> None:
    table = cached()
    for batch in batches(30):
        cached_lookups = table.prepare(batch.lookups)
        assert cached_lookups.rows_L.max() < SLOTS
        assert [tuple(buffer.shape) for buffer in table.buffers()] == [(SLOTS, WIDTH), (SLOTS,)]


def test_a_batch_with_more_distinct_rows_than_slots_says_their_number() -> None:
    table, batch = cached(100), next(batches(1))
    distinct = len(torch.unique(batch.lookups.rows_L))
    assert distinct > 100
    with pytest.raises(CacheError, match=rf"a batch looks up {distinct} distinct rows, the cache has 100 slots"):
        table.prepare(batch.lookups)


@pytest.mark.parametrize("slots", [3, 10, 100, 3_000])
def test_a_batch_is_scored_whatever_it_looks_up(slots: int) -> None:
    whole, cached_table = draw_model(lambda: FusedTable(LAYOUT, WIDTH))[0], draw_model(lambda: cached(slots))[0].eval()
    assert isinstance(cached_table, CachedTable)
    for batch in batches(5):
        assert torch.equal(cached_table.look_up(batch.lookups), whole(batch.lookups))
    with pytest.raises(CacheError, match="a batch looks up 4 distinct rows, the cache has 3 slots"):
        cached(3).eval().look_up(Lookups(torch.arange(4).int(), torch.tensor([0, 4]).int(), torch.full((4,), 0.25)))


def test_rows_only_scored_are_not_written_back(monkeypatch: pytest.MonkeyPatch) -> None:
    table = cached()
    table.eval()

    def refuse(*_: object) -> None:
        raise AssertionError("a row was written back that nobody moved")

    monkeypatch.setattr(table._transfer, "write_back", refuse)
    for batch in batches(30):
        table.prepare(batch.lookups)
    table.flush()
    assert table.hit_rate() is None  # scoring is no training


def lookups_of_rows(*rows: int) -> Lookups:
    """A batch that looks up these rows, a slot each."""
    return Lookups(torch.tensor(rows, dtype=torch.int32), torch.arange(len(rows) + 1, dtype=torch.int32), None)


def test_a_row_that_comes_back_while_it_is_being_written_back_is_moved() -> None:
    table = cached(3)
    cached_lookups = table.prepare(lookups_of_rows(0, 1, 2))
    table.weight_RD += 1
    moved = table(cached_lookups)
    table.eval()
    table.prepare(lookups_of_rows(3, 4, 5))  # the moved rows leave
    assert torch.equal(table(table.prepare(lookups_of_rows(0, 1, 2))), moved)  # rows that were not updated are evicted


def test_a_slot_of_a_row_that_left_is_written_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table = cached(3)
    table.prepare(lookups_of_rows(0, 1, 2))
    table.eval()
    table.prepare(lookups_of_rows(3, 4, 5))
    table.prepare(lookups_of_rows(6))
    monkeypatch.setattr(table._transfer, "write_back", lambda *_: pytest.fail("a row that nobody moved was written"))
    table.prepare(lookups_of_rows(7, 8, 9))
    table.flush()
    assert sorted(table._residents.rows) == [7, 8, 9]


def test_moved_rows_are_in_host_memory_only_after_a_flush() -> None:
    table = cached()
    first = next(batches(1))
    cached_lookups = table.prepare(first.lookups)
    host_weight = table._host[0].weight_RD.clone()
    table.weight_RD[cached_lookups.rows_L.long()] += 1
    assert torch.equal(table._host[0].weight_RD, host_weight)
    table.flush()
    looked_up = torch.zeros(LAYOUT.rows, dtype=torch.bool)
    looked_up[first.lookups.rows_L.long()] = True
    assert torch.equal(table._host[0].weight_RD[looked_up], host_weight[looked_up] + 1)
    assert torch.equal(table._host[0].weight_RD[~looked_up], host_weight[~looked_up])
    assert torch.equal(table.prepare(first.lookups).rows_L, cached_lookups.rows_L)  # the rows stayed where they were


def test_the_hit_rate_is_the_share_of_look_ups_whose_row_was_cached() -> None:
    table = cached()
    table.prepare(Lookups(torch.tensor([1, 2, 2, 3]).int(), torch.arange(5).int(), None))
    table.prepare(Lookups(torch.tensor([2, 2, 3, 4]).int(), torch.arange(5).int(), None))
    assert table.hit_rate() == 3 / 8
    assert table.hit_rate() is None  # an epoch's rate is its own


def test_loaded_weights_take_the_place_of_what_is_on_the_device() -> None:
    table = cached()
    lookups = next(batches(1)).lookups
    table.prepare(lookups)
    loaded_table = FusedTable(LAYOUT, WIDTH)
    table.load_state_dict(loaded_table.state_dict())
    assert torch.equal(table(table.prepare(lookups)), loaded_table(lookups))


def test_weights_of_another_table_are_refused() -> None:
    smaller = FusedTable(Layout.from_features(COLUMNS[:2]), WIDTH)
    with pytest.raises(RuntimeError, match=r"size mismatch for weight_RD: .*\[3500, 8\].*\[3700, 8\]"):
        cached().load_state_dict(smaller.state_dict())
    with pytest.raises(RuntimeError, match="squares_R"):
        cached().load_state_dict({"weight_RD": FusedTable(LAYOUT, WIDTH).weight_RD})


def test_rows_taken_over_are_looked_up() -> None:
    table = cached()
    lookups = Lookups(torch.tensor([10, 11, 12]).int(), torch.arange(4).int(), None)
    table.prepare(lookups)
    table.take_rows(11, torch.full((1, WIDTH), 7.0), torch.full((1,), 2.0))
    cached_lookups = table.prepare(lookups)
    assert table(cached_lookups)[1].tolist() == [7.0] * WIDTH
    assert table.squares_R[cached_lookups.rows_L.long()].tolist() == [0.0, 2.0, 0.0]


def test_moving_the_model_moves_the_slots_alone() -> None:
    table = draw_model(cached)[0].to("meta")
    assert isinstance(table, CachedTable)
    assert (table.weight_RD.device.type, table._host[0].weight_RD.device.type) == ("meta", "cpu")


def test_the_traffic_does_not_change_the_table() -> None:
    """Gradients of zero change no weight, so rows that were fetched and evicted keep their values."""
    table = draw_model(cached)[0]
    assert isinstance(table, CachedTable)
    initial_state = {name: tensor.clone() for name, tensor in table.state_dict().items()}
    step = RowWiseAdagrad(table.weight_RD, table.squares_R, 0.1)
    for batch in batches(50):
        cached_lookups = table.prepare(batch.lookups)
        step.step(cached_lookups, torch.zeros(len(cached_lookups.starts) - 1, WIDTH))
    for name, tensor in table.state_dict().items():
        assert torch.equal(tensor, initial_state[name])


def test_a_pooled_embedding_is_the_mean_of_its_list() -> None:
    table = draw_model(cached)[0]
    assert isinstance(table, CachedTable)
    batch = next(batches(1))
    pooled = table(table.prepare(batch.lookups))
    rows = batch.lookups.rows_L[int(batch.lookups.starts[2 * ROWS + 1]) : int(batch.lookups.starts[2 * ROWS + 2])]
    expected = functional.embedding(rows.long(), table.whole.weight_RD).mean(0) if len(rows) else torch.zeros(WIDTH)
    torch.testing.assert_close(pooled[2 * ROWS + 1], expected)
