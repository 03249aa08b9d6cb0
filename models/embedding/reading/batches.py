"""Loads a feature table in shuffled batches, from memory where it fits the budget, else from disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from models.embedding.reading.chunks import Batch, Chunk, ChunkSize
from models.embedding.reading.file_offsets import FileOffsets, read_chunk_size
from models.embedding.reading.layout import Layout
from models.embedding.reading.lists import FileLists
from models.embedding.reading.pools import DecodedStore, Pool, PoolOrder, batch_edges, epoch_pools, list_edges
from models.embedding.reading.spill import Spill
from models.objectives import read_sorted_by_list
from shortlist.ranking.inputs import LearningTable

_DECODERS = 2  # files of a pool decoded at once
_POOL_BYTES = 2**27  # rows shuffled together: 800 000 of Criteo's; some files' worth, so that days mix


def pool_rows(layout: Layout, chunk_rows: int) -> int:
    """Return the number of rows of a pool: at least a file's, and as many as fit into a pool's memory.

    It depends on the features alone, never on the machine or its budget, because it determines the order of the rows.
    """
    values = 1 + layout.floats + layout.slots + len(layout.lists)
    return max(chunk_rows, _POOL_BYTES // (values * np.dtype(np.float32).itemsize))


@dataclass(frozen=True)
class HostPool:
    """Rows in memory, or mapped from disk."""

    paths: list[Path]
    rows: Chunk
    order: np.ndarray | None
    """Row numbers, in the order of the pool; None: all rows in their order."""

    @property
    def size(self) -> int:
        """Number of rows."""
        return self.rows.rows if self.order is None else len(self.order)

    def batch(self, first: int, last: int) -> Batch:
        """Return a part of the rows."""
        if self.order is None:
            return self.rows.batch(first, last)
        # Rows are shuffled a batch at a time: the pool is not copied, and every batch reuses the memory of an earlier
        # one instead of 100 MB that the system has to clear first.
        return self.rows.reordered(self.order[first:last]).batch(0, last - first)


class ChunkStore:
    """Decodes the files of a table, once where all rows fit in memory or on disk; batches are copied from there.

    All rows lie in one chunk, in memory or mapped from disk, so that a batch is gathered from every file of its pool
    by one copy. Joining a pool's files first needed a second copy and 160 MB that the system had to clear for every
    pool of a Criteo log: 0.2 to 0.6 s of system time per 4 million rows instead of 0.04 s.
    """

    def __init__(self, learning: LearningTable, layout: Layout, budget_bytes: int, spill: Spill | None = None) -> None:
        """Create the store; files are decoded when they are read.

        Args:
            learning: The table.
            layout: Layout of its features.
            budget_bytes: Memory for decoded rows.
            spill: Disk space for rows beyond the budget; without it, or on a full disk, files are decoded every time.
        """
        self._learning = learning
        self._layout = layout
        self._sizes = {path: read_chunk_size(path, layout) for path in learning.paths("train", "validation")}
        self._file_offsets = FileOffsets(self._sizes, self._sizes)
        self._decoded: set[Path] = set()
        self._spill: Spill | None = None
        self._spare: Chunk | None = None
        self._rows = self._allocate(budget_bytes, spill)

    def rows(self, path: Path) -> int:
        """Return the rows of a file."""
        return self._sizes[path].rows

    def chunk(self, path: Path) -> Chunk:
        """Return the rows of a file; may be called by several threads, for different files."""
        if self._rows is None:
            return Chunk.decoded(self._read(path), self._layout)
        rows = self._rows.sliced(*self._file_offsets.rows(path))
        if path not in self._decoded:
            self._rows.decode(self._read(path), self._layout, self._file_offsets.start(path))
            self._decoded.add(path)
        elif self._spill is not None:
            self._spill.prefetch_pages(rows.arrays)
        return rows

    def iter_dense(self, paths: list[Path]) -> Iterator[np.ndarray]:
        """Yield the dense floats of several files, file by file; each is valid until the next one is requested."""
        for pool in map(self.file, paths):
            yield pool.rows.dense
            self.release(pool)

    def file(self, path: Path) -> HostPool:
        """Return the rows of a file, as they are."""
        return HostPool([path], self.chunk(path), None)

    def row_numbers(self, paths: list[Path]) -> np.ndarray:
        """Return the row numbers of several files, in the chunk of all files or in a chunk of these files alone."""
        offsets = self._offsets(paths)
        return np.concatenate([np.arange(*offsets.rows(path)) for path in paths])

    def pool(self, decoders: ThreadPoolExecutor, paths: list[Path], order: np.ndarray) -> HostPool:
        """Return the rows of several files, in the order of some row numbers."""
        if self._rows is None:
            offsets = self._offsets(paths)
            rows = self._buffer(offsets.total)
            list(decoders.map(lambda path: rows.decode(self._read(path), self._layout, offsets.start(path)), paths))
        else:
            rows = self._rows
            list(decoders.map(self.chunk, paths))
        return HostPool(paths, rows, order)

    def release(self, pool: HostPool) -> None:
        """Release a pool: its mapped pages, or its memory for the next pool."""
        if self._rows is None and pool.order is not None:
            self._spare = pool.rows
        elif self._rows is not None and self._spill is not None:
            for path in pool.paths:
                self._spill.release(self._rows.sliced(*self._file_offsets.rows(path)).arrays)

    def _offsets(self, paths: list[Path]) -> FileOffsets:
        return FileOffsets(paths, self._sizes) if self._rows is None else self._file_offsets

    def _buffer(self, size: ChunkSize) -> Chunk:
        """Return memory for a pool, reused from a released pool where it is large enough."""
        spare, self._spare = self._spare, None
        return spare if spare is not None and spare.holds(size) else Chunk.empty(size, self._layout)

    def _read(self, path: Path) -> pl.DataFrame:
        return read_sorted_by_list(self._learning, path)

    def _allocate(self, budget_bytes: int, spill: Spill | None) -> Chunk | None:
        total = self._file_offsets.total
        if total.bytes(self._layout) <= budget_bytes:
            return Chunk.empty(total, self._layout)
        if spill is None or not spill.has_room(total.bytes(self._layout)):
            return None
        try:
            rows = Chunk.empty(total, self._layout, spill.empty)
        except OSError:  # another process filled the disk meanwhile
            return None
        self._spill = spill
        return rows


class BatchLoader:
    """Yields every row of a part of a table exactly once per epoch; other threads prepare the next rows meanwhile.

    Files are joined in random order into pools of at least `pool_rows` rows; the rows of a pool are shuffled and cut
    into batches that differ in size by at most one row. The order depends on the seed and the epoch alone, never on
    the store's budget or the number of threads. At most two pools are in memory: the one that batches are taken from,
    and the next. Where order is learnt, lists are shuffled, not rows, and a batch has as many whole ones as fit.
    """

    def __init__(
        self, store: DecodedStore[Any], paths: list[Path], batch_size: int, pool_rows: int, seed: int,
        lists: FileLists | None = None,
    ) -> None:  # fmt: skip
        """Create a loader over the files of one part of a table.

        Args:
            store: Store of decoded rows.
            paths: The files.
            batch_size: Most rows of a batch.
            pool_rows: Least rows that are shuffled together.
            seed: Seed of the order.
            lists: Lists of the files; None: no order is learnt.
        """
        self._store = store
        self._lists = lists
        self._rows = {path: store.rows(path) for path in paths}
        self._batch_size = batch_size
        self._pool_rows = pool_rows
        self._seed = seed

    @property
    def rows(self) -> int:
        """Rows of an epoch."""
        return sum(self._rows.values())

    def shuffled(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, in the epoch's random order."""
        pools = epoch_pools(self._rows, self._pool_rows, self._seed, epoch)
        with ThreadPoolExecutor(_DECODERS, thread_name_prefix="decoder") as decoders:
            reads = [
                partial(self._pool, decoders, paths, [self._seed, epoch, number]) for number, paths in enumerate(pools)
            ]
            yield from self._batches(reads)

    def in_order(self) -> Iterator[Batch]:
        """Yield the batches in the order of the table; they share the store's memory."""
        return self._batches([partial(self._file, path) for path in self._rows])

    def lists_in_order(self) -> np.ndarray | None:
        """Return the list number of every row that `in_order` yields; None: there are no lists."""
        if self._lists is None:
            return None
        lengths_L = self._lists.lengths(list(self._rows))
        return np.repeat(np.arange(len(lengths_L)), lengths_L)

    def _pool(self, decoders: ThreadPoolExecutor, paths: list[Path], seed: list[int]) -> tuple[Pool, np.ndarray | None]:
        """Return the rows of several files in random order, and where their lists end."""
        lengths_L = None if self._lists is None else self._lists.lengths(paths)
        order = PoolOrder.shuffled(self._store.row_numbers(paths), lengths_L, seed)
        return self._store.pool(decoders, paths, order.places_N), order.ends_L

    def _file(self, path: Path) -> tuple[Pool, None]:
        return self._store.file(path), None

    def _batches(self, reads: Sequence[Callable[[], tuple[Pool, np.ndarray | None]]]) -> Iterator[Batch]:
        """Yield the batches of one pool after another; the next pool is read while a pool is consumed."""
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader") as thread:
            next_pool = thread.submit(reads[0])
            for read in (*reads[1:], None):
                pool, ends_L = next_pool.result()
                if read is not None:
                    next_pool = thread.submit(read)
                if ends_L is None:
                    for first, last in batch_edges(pool.size, self._batch_size):
                        yield pool.batch(first, last)
                else:
                    for first, last in list_edges(ends_L, self._batch_size):
                        numbers_B = np.searchsorted(ends_L, np.arange(first, last), side="right")
                        yield pool.batch(first, last)._replace(lists_B=torch.from_numpy(numbers_B - numbers_B[0]))
                self._store.release(pool)
