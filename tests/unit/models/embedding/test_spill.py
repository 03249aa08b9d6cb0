from __future__ import annotations

import errno
import gc
import os
import shutil
import tracemalloc
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from models.embedding.reading.batches import BatchLoader, ChunkStore, pool_rows
from models.embedding.reading.chunks import Chunk
from models.embedding.reading.layout import Layout
from models.embedding.reading.spill import Spill
from shortlist.ranking.inputs import LearningTable, TableFeature, features_matching
from shortlist.storage.tables import DayTable

Usage = namedtuple("Usage", "total used free")


class CountingTable(LearningTable):
    reads = 0

    def read(self, path: Path) -> pl.DataFrame:
        self.reads += 1
        return super().read(path)


@pytest.fixture
def learning(table: DayTable) -> CountingTable:
    return CountingTable(table, features_matching(table, ("*",)))


def loader(learning: LearningTable, budget: int, spill: Spill | None, pool: int = 1_000) -> BatchLoader:
    store = ChunkStore(learning, Layout.from_features(learning.features), budget, spill)
    return BatchLoader(store, learning.paths("train"), 100, pool, seed=5)


def test_rows_on_disk_come_in_the_same_order_with_the_same_bits(learning: CountingTable) -> None:
    from_memory, from_disk = loader(learning, 2**40, None), loader(learning, 0, Spill())
    for epoch in (1, 2):
        for memory_batch, read in zip(from_memory.shuffled(epoch), from_disk.shuffled(epoch), strict=True):
            np.testing.assert_array_equal(memory_batch.dense_BF, read.dense_BF)  # NaN, too
            assert torch.equal(memory_batch.labels_B, read.labels_B)
            for tensor, disk_tensor in zip(memory_batch.lookups, read.lookups, strict=True):
                assert tensor is not None
                assert disk_tensor is not None
                assert torch.equal(tensor, disk_tensor)


def test_mapped_rows_may_be_read_in_order(learning: CountingTable) -> None:
    batches = loader(learning, 0, Spill())
    first, second = ([batch.dense_BF.nan_to_num().sum() for batch in batches.in_order()] for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("budget", "reads"), [(0, 4), (30_000, 4)])
def test_what_memory_has_no_room_for_is_decoded_once(learning: CountingTable, budget: int, reads: int) -> None:
    batches = loader(learning, budget, Spill())
    for epoch in (1, 2, 3):
        assert sum(batch.rows for batch in batches.shuffled(epoch)) == 3_000
    assert learning.reads == reads


def test_a_full_disk_is_left_alone_and_files_are_decoded_in_every_epoch(
    learning: CountingTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 2**40 - 2**30, 2**30))
    batches = loader(learning, 0, Spill())
    for epoch in (1, 2):
        assert sum(batch.rows for batch in batches.shuffled(epoch)) == 3_000
    assert learning.reads == 4 + 4


def test_a_disk_that_fills_up_meanwhile_is_left_alone(learning: CountingTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert sum(batch.rows for batch in loader(learning, 0, Spill()).shuffled(1)) == 3_000


@pytest.mark.long
def test_the_folder_goes_with_its_owner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spill = Spill()
    array = spill.empty((10, 3), np.float32)
    array[:] = 7
    assert [path.stat().st_size for path in tmp_path.glob("*/*")] == [10 * 3 * 4]
    del spill
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert array.sum() == 7 * 30  # open arrays stay readable


def test_released_rows_can_be_read_back() -> None:
    spill = Spill()
    array, no_rows = spill.empty((5_000, 3), np.int32), spill.empty((0, 3), np.int32)
    array[:] = np.arange(15_000).reshape(5_000, 3)
    for part in (array[1_500:4_000], array[:0], no_rows, np.zeros(3)):
        spill.release([part])
        spill.prefetch_pages([part])
    np.testing.assert_array_equal(array, np.arange(15_000).reshape(5_000, 3))


def test_a_process_holds_only_the_rows_on_disk_that_it_looks_at() -> None:
    spill = Spill()
    array = spill.empty((8, 2**20), np.float32)  # 32 MiB
    array[:] = 1

    def mapped_kib() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(("RssFile", "RssShmem"))).split()[1])

    kib_mapped = mapped_kib()
    spill.release([array])
    assert kib_mapped - mapped_kib() > 30 * 1024


def test_a_pool_mixes_the_rows_of_its_files(learning: CountingTable) -> None:
    whole = [Chunk.decoded(frame, Layout.from_features(learning.features)) for frame in learning.frames("train")]
    file_of = {row.tobytes(): number for number, chunk in enumerate(whole) for row in chunk.dense}
    for batch in loader(learning, 0, Spill(), pool=3_000).shuffled(1):
        files = {file_of[row.tobytes()] for row in batch.dense_BF.numpy()}
        assert files == {0, 1, 2, 3}  # two days, two files each, in a batch of 100 rows


def test_a_pool_has_rows_of_some_files_whatever_the_budget() -> None:
    criteo = [TableFeature(name=f"i{n}", kind="dense") for n in range(13)]
    criteo += [TableFeature(name=f"c{n}", kind="id", size=9) for n in range(26)]
    assert pool_rows(Layout.from_features(criteo), 250_000) == 2**27 // (4 * (1 + 13 + 26))  # 838 860
    assert pool_rows(Layout.from_features(criteo), 2_000_000) == 2_000_000


@pytest.mark.parametrize("spilled", [True, False])
def test_memory_is_bounded_by_pools_not_by_the_table(make_table: Callable[..., DayTable], spilled: bool) -> None:
    table = make_table(rows_per_day=2_000, train_days=12)
    learning = LearningTable(table, features_matching(table, ("*",)))
    batches = loader(learning, 0, Spill() if spilled else None, pool=1_000)
    every_byte = sum(
        Chunk.decoded(frame, Layout.from_features(learning.features)).bytes for frame in learning.frames("train")
    )  # 24 files
    for _ in batches.shuffled(1):  # spill, and warm up what is allocated once
        pass
    tracemalloc.start()
    try:
        assert sum(batch.rows for batch in batches.shuffled(2)) == 24_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < every_byte / 3
