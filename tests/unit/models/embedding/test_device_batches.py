from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Literal

import numpy as np
import polars as pl
import pytest
import torch

from models.embedding.reading.batches import BatchLoader, ChunkStore
from models.embedding.reading.chunks import Batch, Chunk
from models.embedding.reading.device_batches import DeviceStore, row_residence
from models.embedding.reading.device_chunks import DeviceChunk, pad_rows
from models.embedding.reading.file_offsets import read_chunk_size
from models.embedding.reading.layout import Layout
from models.embedding.reading.loading import TrainingLoaders, host_decoder
from models.embedding.reading.pools import epoch_pools
from shortlist.ranking.inputs import LearningTable, TableFeature, features_matching
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable

RowStorage = Literal["device", "host", "files"]


class HostColumns:
    """Columns of a Polars frame, converted value by value: the reference for columns on a device."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame
        self.rows = frame.height

    def labels(self) -> torch.Tensor:
        return torch.tensor(self._frame["label"].to_list(), dtype=torch.float32)

    def floats(self, feature: TableFeature) -> torch.Tensor:
        nan = float("nan")
        rows = [nan if value is None else value for value in self._frame[feature.name].to_list()]
        return torch.tensor(rows, dtype=torch.float32).reshape(self.rows, -1)

    def ids(self, feature: TableFeature) -> torch.Tensor:
        return torch.tensor(self._frame[feature.name].to_list(), dtype=torch.int32)

    def lists(self, feature: TableFeature) -> tuple[torch.Tensor, torch.Tensor]:
        lists = self._frame[feature.name].to_list()
        values = torch.tensor([value for row_list in lists for value in row_list], dtype=torch.int32)
        return values, torch.tensor([len(row_list) for row_list in lists], dtype=torch.int64)


@pytest.fixture
def learning(table: DayTable) -> LearningTable:
    return LearningTable(table, features_matching(table, ("*",)))


def loader(learning: LearningTable, store: object) -> BatchLoader:
    return BatchLoader(store, learning.paths("train"), 100, 1_000, seed=5)  # type: ignore[arg-type]


def device_store(
    learning: LearningTable, storage: RowStorage, decode: Callable[[Path], DeviceChunk] | None = None
) -> DeviceStore:
    layout = Layout.from_features(learning.features)
    sizes = {path: read_chunk_size(path, layout) for path in learning.paths("train")}
    return DeviceStore(decode or host_decoder(learning, layout), sizes, "cpu", storage)


def assert_equal(batch: Batch, expected: Batch) -> None:
    np.testing.assert_array_equal(batch.dense_BF, expected.dense_BF)  # NaN, too
    assert torch.equal(batch.labels_B, expected.labels_B)
    for tensor, expected_tensor in zip(batch.lookups, expected.lookups, strict=True):
        assert tensor is expected_tensor is None or (
            tensor.dtype == expected_tensor.dtype and torch.equal(tensor, expected_tensor)
        )  # type: ignore[union-attr,arg-type]


@pytest.mark.parametrize("features", [("*",), ("age", "user_id"), ("tags_id",)])
@pytest.mark.parametrize("storage", ["device", "host", "files"])
def test_batches_of_a_device_are_those_of_the_host_bit_by_bit(
    table: DayTable, storage: RowStorage, features: tuple[str, ...]
) -> None:
    learning = LearningTable(table, features_matching(table, features))
    host = loader(learning, ChunkStore(learning, Layout.from_features(learning.features), 2**40))
    device = loader(learning, device_store(learning, storage))
    for epoch in (1, 2):
        for host_batch, device_batch in zip(host.shuffled(epoch), device.shuffled(epoch), strict=True):
            assert_equal(host_batch, device_batch)
    for host_batch, device_batch in zip(host.in_order(), device.in_order(), strict=True):
        assert_equal(host_batch, device_batch)


def test_rows_decoded_on_the_device_are_those_of_the_host(learning: LearningTable) -> None:
    layout = Layout.from_features(learning.features)
    host = loader(learning, ChunkStore(learning, layout, 2**40))
    decoded = device_store(
        learning, "device", lambda path: DeviceChunk.decoded(HostColumns(learning.read(path)), layout)
    )
    for host_batch, device_batch in zip(host.shuffled(1), loader(learning, decoded).shuffled(1), strict=True):
        assert_equal(host_batch, device_batch)


@pytest.mark.parametrize(("storage", "reads"), [("device", 4), ("host", 4), ("files", 4 + 4)])
def test_files_are_decoded_once_where_their_rows_fit(learning: LearningTable, storage: RowStorage, reads: int) -> None:
    decoded: list[Path] = []
    decode = host_decoder(learning, Layout.from_features(learning.features))

    def counted(path: Path) -> DeviceChunk:
        decoded.append(path)
        return decode(path)

    batches = loader(learning, device_store(learning, storage, counted))
    for epoch in (1, 2):
        assert sum(batch.rows for batch in batches.shuffled(epoch)) == 3_000
    assert len(decoded) == reads


def test_rows_stay_on_the_device_only_beside_the_model() -> None:
    assert row_residence(row_bytes=30, device_free=80, model_bytes=20, host_budget=100) == "device"
    assert row_residence(row_bytes=30, device_free=80, model_bytes=21, host_budget=100) == "host"
    assert row_residence(row_bytes=30, device_free=80, model_bytes=90, host_budget=29) == "files"


class RecordingStore:
    """Pools that record when they are fetched, read and released."""

    def __init__(self, pools: int) -> None:
        self.events: list[str] = []
        self.fetch_started = [Event() for _ in range(pools)]

    def rows(self, path: Path) -> int:
        return 2

    def row_numbers(self, paths: list[Path]) -> np.ndarray:
        return np.arange(2 * len(paths))

    def pool(self, decoders: ThreadPoolExecutor, paths: list[Path], order: np.ndarray) -> RecordingPool:
        number = sum(event.startswith("fetch") for event in self.events)
        self.events.append(f"fetch {number}")
        self.fetch_started[number].set()
        return RecordingPool(number, self)

    def file(self, path: Path) -> RecordingPool:
        raise AssertionError(path)

    def release(self, pool: RecordingPool) -> None:
        self.events.append(f"leave {pool.number}")


class RecordingPool:
    size = 2

    def __init__(self, number: int, store: RecordingStore) -> None:
        self.number, self.store = number, store

    def batch(self, first: int, last: int) -> Batch:
        self.store.events.append(f"take {self.number}")
        assert all(event.wait(10) for event in self.store.fetch_started[self.number + 1 : self.number + 2])
        return Chunk.decoded(pl.DataFrame({"label": [1] * (last - first)}), Layout.from_features([])).batch(
            0, last - first
        )


def test_only_the_next_pool_is_fetched_while_batches_come_from_a_pool() -> None:
    store = RecordingStore(pools=4)
    paths = [Path(str(number)) for number in range(4)]
    for _ in BatchLoader(store, paths, batch_size=1, pool_rows=2, seed=1).shuffled(1):
        pass
    events = store.events
    for number in range(4):
        assert events.index(f"fetch {number}") < events.index(f"take {number}") < events.index(f"leave {number}")
        if number > 1:
            assert events.index(f"leave {number - 2}") < events.index(f"fetch {number}")  # never three in memory
    assert events.count("take 2") == 2


def test_the_order_of_files_is_the_epochs_and_the_seeds_alone() -> None:
    rows = {Path(str(number)): 10 for number in range(20)}
    pools = epoch_pools(rows, 35, seed=1, epoch=1)
    assert sorted(path for pool in pools for path in pool) == sorted(rows)
    assert [len(pool) for pool in pools] == [4, 4, 4, 4, 4]
    assert pools == epoch_pools(rows, 35, seed=1, epoch=1)
    assert pools != epoch_pools(rows, 35, seed=1, epoch=2)
    assert pools != epoch_pools(rows, 35, seed=2, epoch=1)


@pytest.mark.parametrize(("width", "stride"), [(1, 1), (8, 8), (12, 12), (13, 16), (14, 16)])
def test_wide_rows_begin_at_multiples_of_16_bytes(width: int, stride: int) -> None:
    dense = torch.arange(3.0 * width).reshape(3, width)
    assert torch.equal(pad_rows(dense), dense)
    assert pad_rows(dense).stride(0) == stride
    chunk = DeviceChunk(dense[:, 0], pad_rows(dense), torch.zeros(3, 0, dtype=torch.int32), ())
    assert chunk.bytes >= 4 * (3 + 3 * stride)


def test_on_the_cpu_rows_are_kept_by_the_host(learning: LearningTable) -> None:
    loading = TrainingLoaders(
        learning, Layout.from_features(learning.features), Runtime(engine="cpu", seed=5), "cpu", model_bytes=0
    )
    assert isinstance(loading.rows, ChunkStore)
    assert loading.loader(learning.paths("train"), 100).rows == 3_000


def test_a_gpu_without_cudf_gets_rows_from_the_host(learning: LearningTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 2**30))
    monkeypatch.setattr("models.embedding.reading.loading.reads_on_device", lambda engine, device: False)
    monkeypatch.setattr("models.embedding.reading.device_batches.SideStream.__init__", lambda self, device: None)
    loading = TrainingLoaders(
        learning, Layout.from_features(learning.features), Runtime(engine="auto"), "cuda", model_bytes=0
    )
    assert isinstance(loading.rows, DeviceStore)
