"""Chooses how training rows reach the device, and creates the loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from models.device_reading import CudfColumns, reads_on_device
from models.embedding.reading.batches import BatchLoader, ChunkStore, pool_rows
from models.embedding.reading.chunks import Chunk
from models.embedding.reading.device_batches import DeviceStore, on_default_stream, row_residence
from models.embedding.reading.device_chunks import DeviceChunk
from models.embedding.reading.file_offsets import FileOffsets, read_chunk_size
from models.embedding.reading.layout import Layout
from models.embedding.reading.lists import FileLists
from models.embedding.reading.spill import Spill
from models.objectives import read_sorted_by_list
from shortlist.ranking.inputs import LearningTable
from shortlist.spec.runtime import Runtime


class RowStore(Protocol):
    """A store of decoded rows."""

    def iter_dense(self, paths: list[Path]) -> Iterator[np.ndarray]:
        """Yield the dense floats of several files, file by file."""


class TrainingLoaders:
    """The loaders of one training, over one store of decoded rows."""

    def __init__(
        self, learning: LearningTable, layout: Layout, runtime: Runtime, device: str, model_bytes: int
    ) -> None:
        """Choose where decoded rows are kept.

        On a GPU, rows are kept in its memory where they fit, else in pinned host memory within the budget; else cuDF
        reads the files in every epoch. On the CPU, they are kept in memory within the budget, else on disk. Where order
        is learnt, the host decodes files for a GPU too, as it sorts them by list.

        Args:
            learning: The table.
            layout: Layout of its features.
            runtime: Engine, memory budget, rows per file, seed.
            device: "cpu" or "cuda".
            model_bytes: Bytes of device memory that the model will take.

        Raises:
            EngineError: `gpu` is declared, and cuDF is not installed.
        """
        budget = runtime.memory_budget_mib * 2**20
        self._pool_rows, self._seed = pool_rows(layout, runtime.chunk_rows), runtime.seed
        self._lists = FileLists.read(learning)
        cudf_can_decode = self._lists is None and not learning.is_weighted and not layout.labels
        cudf_can_decode = cudf_can_decode and layout.history is None
        on_device = reads_on_device(runtime.engine, device) and cudf_can_decode
        self._store: ChunkStore | DeviceStore
        if device == "cpu":
            self._store = ChunkStore(learning, layout, budget, Spill())
            return
        sizes = {path: read_chunk_size(path, layout) for path in learning.paths("train", "validation")}
        free, _ = torch.cuda.mem_get_info()
        residence = row_residence(FileOffsets(sizes, sizes).total.bytes(layout), free, model_bytes, budget)
        decode = cudf_decoder(learning, layout, device) if on_device else host_decoder(learning, layout)
        self._store = DeviceStore(decode, sizes, device, residence)

    @property
    def lists(self) -> FileLists | None:
        """The lists of the files; None: no order is learnt."""
        return self._lists

    @property
    def rows(self) -> RowStore:
        """The store."""
        return self._store

    def loader(self, paths: list[Path], batch_size: int) -> BatchLoader:
        """Return the batches of some files."""
        return BatchLoader(self._store, paths, batch_size, self._pool_rows, self._seed, self._lists)


def cudf_decoder(learning: LearningTable, layout: Layout, device: str) -> Callable[[Path], DeviceChunk]:
    """Return a function that decodes a file on the device."""

    def decode(path: Path) -> DeviceChunk:
        with on_default_stream(device):
            return DeviceChunk.decoded(CudfColumns.read(path, learning.columns), layout)

    return decode


def host_decoder(learning: LearningTable, layout: Layout) -> Callable[[Path], DeviceChunk]:
    """Return a function that decodes a file on the host."""
    return lambda path: DeviceChunk.from_host(Chunk.decoded(read_sorted_by_list(learning, path), layout))
