from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from models.embedding.reading.batches import BatchLoader, ChunkStore
from models.embedding.reading.chunks import Batch, Chunk, RaggedRows
from models.embedding.reading.layout import Layout
from shortlist.ranking.inputs import LearningTable, features_matching
from shortlist.storage.tables import DayTable

BIG = 2**40
MakeTable = Callable[..., DayTable]


class CountingTable(LearningTable):
    reads = 0

    def read(self, path: Path) -> pl.DataFrame:
        self.reads += 1
        return super().read(path)


@pytest.fixture
def learning(table: DayTable) -> CountingTable:
    return CountingTable(table, features_matching(table, ("*",)))


def loader(learning: LearningTable, budget: int = BIG, batch_size: int = 100, pool_rows: int = 1_000) -> BatchLoader:
    store = ChunkStore(learning, Layout.from_features(learning.features), budget)
    return BatchLoader(store, learning.paths("train"), batch_size, pool_rows, seed=5)


def ages(batches: Iterator[Batch]) -> list[np.ndarray]:
    """Floats that tell rows apart: the dense matrix of every batch."""
    return [batch.dense_BF.numpy().copy() for batch in batches]


def sorted_rows(batches: list[np.ndarray]) -> np.ndarray:
    rows = np.concatenate(batches)
    return rows[np.lexsort(rows.T)]


def test_every_row_comes_exactly_once_per_epoch(learning: CountingTable) -> None:
    in_order = ages(loader(learning).in_order())
    assert sum(map(len, in_order)) == 3_000
    for epoch in (1, 2):
        shuffled = ages(loader(learning).shuffled(epoch))
        np.testing.assert_array_equal(sorted_rows(shuffled), sorted_rows(in_order))


def test_an_epoch_has_an_order_of_its_own_that_comes_back(learning: CountingTable) -> None:
    batches = loader(learning)
    first, second, repeated = (np.concatenate(ages(batches.shuffled(epoch))) for epoch in (1, 2, 1))
    assert not np.array_equal(first, second, equal_nan=True)
    assert np.array_equal(first, repeated, equal_nan=True)


def test_the_rows_of_a_pool_are_shuffled(learning: CountingTable) -> None:
    in_order = np.concatenate(ages(loader(learning).in_order()))
    one_pool = np.concatenate(ages(loader(learning, pool_rows=3_000).shuffled(1)))
    neighbours = {(a.tobytes(), b.tobytes()) for a, b in pairwise(in_order)}
    still_neighbours = sum((a.tobytes(), b.tobytes()) in neighbours for a, b in pairwise(one_pool))
    assert still_neighbours < 10  # one is expected by chance; all but three if only files were shuffled


def test_labels_and_ids_travel_with_their_row(learning: CountingTable) -> None:
    whole = Chunk.decoded(pl.concat(list(learning.frames("train"))), Layout.from_features(learning.features))
    place_of = {row.tobytes(): place for place, row in enumerate(whole.dense)}
    for batch in loader(learning).shuffled(1):
        singles = batch.lookups.rows_L.numpy()[: batch.rows * 2].reshape(batch.rows, 2)
        for row in range(0, batch.rows, 25):
            place = place_of[batch.dense_BF[row].numpy().tobytes()]
            assert batch.labels_B[row] == whole.labels[place]
            assert singles[row].tolist() == whole.singles[place].tolist()
            start, end = batch.lookups.starts[batch.rows * 2 + row], batch.lookups.starts[batch.rows * 2 + row + 1]
            expected = whole.lists[0].values[whole.lists[0].starts[place] : whole.lists[0].starts[place + 1]]
            assert batch.lookups.rows_L[start:end].tolist() == expected.tolist()


@pytest.mark.parametrize("budget", [0, 30_000])
def test_the_order_does_not_depend_on_what_fits_in_memory(learning: CountingTable, budget: int) -> None:
    from_memory, from_disk = loader(learning), loader(learning, budget)
    for epoch in (1, 2):
        for memory_batch, read in zip(from_memory.shuffled(epoch), from_disk.shuffled(epoch), strict=True):
            assert torch.equal(memory_batch.dense_BF.nan_to_num(), read.dense_BF.nan_to_num())
            assert torch.equal(memory_batch.labels_B, read.labels_B)
            assert torch.equal(memory_batch.lookups.rows_L, read.lookups.rows_L)


@pytest.mark.parametrize(("budget", "reads"), [(BIG, 4), (0, 4 + 4), (30_000, 4 + 4)])
def test_a_table_that_fits_the_budget_is_read_once(learning: CountingTable, budget: int, reads: int) -> None:
    batches = loader(learning, budget)
    for epoch in (1, 2):
        assert sum(batch.rows for batch in batches.shuffled(epoch)) == 3_000
    assert learning.reads == reads  # all 3 000 rows together take about 120 kB


def test_batches_differ_by_at_most_one_row(learning: CountingTable) -> None:
    sizes = [batch.rows for batch in loader(learning, batch_size=99, pool_rows=3_000).shuffled(1)]
    assert len(sizes) == -(-3_000 // 99)
    assert max(sizes) <= 99
    assert max(sizes) - min(sizes) <= 1


def test_small_files_are_mixed_into_pools(make_table: MakeTable) -> None:
    table = make_table(rows_per_day=50, train_days=6)
    learning = LearningTable(table, features_matching(table, ("age",)))
    sizes = [batch.rows for batch in loader(learning, batch_size=1_000, pool_rows=100).shuffled(1)]
    assert sizes == [100, 100, 100]
    uneven = [batch.rows for batch in loader(learning, batch_size=1_000, pool_rows=120).shuffled(1)]
    assert uneven == [150, 150]
    assert [batch.rows for batch in loader(learning, batch_size=1_000, pool_rows=200).shuffled(1)] == [300]


def test_a_batch_looks_up_single_ids_row_by_row_then_the_mean_of_every_list() -> None:
    tags = RaggedRows.packed(np.array([7, 8, 9], np.int32), np.array([0, 0, 1, 3]))  # [], [7], [8, 9]
    singles = np.array([[0, 4], [1, 5], [2, 6]], np.int32)
    chunk = Chunk(np.array([0, 1, 1], np.float32), np.zeros((3, 1), np.float32), singles, (tags, tags))
    rows, starts, shares = chunk.batch(1, 3).lookups
    assert shares is not None
    assert rows.tolist() == [1, 5, 2, 6, 7, 8, 9, 7, 8, 9]
    assert starts.tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 10]
    assert shares.tolist() == [1, 1, 1, 1, 1, 1 / 2, 1 / 2, 1, 1 / 2, 1 / 2]
    rows, starts, shares = Chunk(chunk.labels, chunk.dense, singles, ()).batch(1, 3).lookups
    assert (rows.tolist(), starts.tolist(), shares) == ([1, 5, 2, 6], [0, 1, 2, 3, 4], None)


def test_batches_share_the_memory_of_their_chunk(learning: CountingTable) -> None:
    chunk = Chunk.decoded(next(learning.frames("train")), Layout.from_features(learning.features))
    batch = chunk.batch(10, 20)
    assert batch.dense_BF.data_ptr() == chunk.dense[10:].ctypes.data
    assert batch.labels_B.data_ptr() == chunk.labels[10:].ctypes.data


def test_a_broken_file_stops_the_loop_with_its_error(make_table: MakeTable) -> None:
    table = make_table(rows_per_day=100)
    learning = LearningTable(table, features_matching(table, ("age",)))
    batches = loader(learning, pool_rows=10)
    learning.paths("train")[1].write_bytes(b"not Parquet")
    with pytest.raises(pl.exceptions.ComputeError, match="parquet"):
        list(batches.in_order())


def test_lists_keep_their_values_when_reordered_and_sliced() -> None:
    values, edges = np.array([1, 2, 3, 4, 5, 6], np.int32), np.array([0, 2, 2, 3, 6])
    lists = RaggedRows.packed(values, edges)  # [1, 2], [], [3], [4, 5, 6]
    reordered = lists.reordered(np.array([3, 1, 0]))
    assert (reordered.contiguous_values.tolist(), reordered.starts.tolist(), reordered.ends.tolist()) == (
        [4, 5, 6, 1, 2],
        [0, 3, 3],
        [3, 3, 5],
    )
    sliced = lists.sliced(2, 4)
    assert (sliced.contiguous_values.tolist(), sliced.starts.tolist()) == ([3, 4, 5, 6], [2, 3])
    assert lists.sliced(1, 1).contiguous_values.tolist() == []


def test_lists_with_gaps_between_them_are_reordered() -> None:
    gaps = RaggedRows(
        np.array([1, 2, 0, 0, 3], np.int32), np.array([0, 4]), np.array([2, 5])
    )  # [1, 2], then a gap, [3]
    assert gaps.reordered(np.array([1, 0])).contiguous_values.tolist() == [3, 1, 2]
