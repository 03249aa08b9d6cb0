"""Feeds a feature table to torch in shuffled batches, from memory as far as the budget goes and from disk beyond it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from models.dlrm.chunks import Batch, Chunk
from models.dlrm.layout import Layout
from models.dlrm.spill import Spill
from models.inputs import LearningTable

_DECODERS = 2  # files of a pool decoded at once
_POOL_BYTES = 2**27  # rows shuffled together: 800 000 of Criteo's; some files' worth, so that days mix


def pool_rows(layout: Layout, chunk_rows: int) -> int:
    """Return the rows of a pool: a file's at least, and as many as a pool has memory for.

    It depends on the features alone, never on the machine or its budget: another pool is another order of the rows.
    """
    values = 1 + layout.floats + len(layout.singles) + len(layout.lists)
    return max(chunk_rows, _POOL_BYTES // (values * np.dtype(np.float32).itemsize))


class ChunkStore:
    """Decodes the files of a table; the next epoch finds them in memory as far as the budget goes, then on disk."""

    def __init__(self, learning: LearningTable, layout: Layout, budget_bytes: int, spill: Spill | None = None) -> None:
        """Keep nothing yet.

        Args:
            learning: The table.
            layout: What becomes of its features.
            budget_bytes: Memory for decoded rows.
            spill: Where rows beyond the budget go; without it they are decoded again every time.
        """
        self._learning = learning
        self._layout = layout
        self._left = budget_bytes
        self._spill = spill
        self._kept: dict[Path, Chunk] = {}
        self._spilled: dict[Path, int] = {}
        self._accounts = Lock()

    def chunk(self, path: Path) -> Chunk:
        """Return the rows of a file; several threads may ask, for different files."""
        if path in self._kept:
            return self._kept[path]
        if self._spill is not None and path in self._spilled:
            return self._spill.read(self._spilled[path])
        chunk = Chunk.decoded(self._learning.read(path), self._layout)
        if self._fits(chunk):
            self._kept[path] = chunk
        elif self._spill is not None and (number := self._spill.write(chunk)) is not None:
            self._spilled[path] = number
        return chunk

    def _fits(self, chunk: Chunk) -> bool:
        with self._accounts:
            fits = chunk.bytes <= self._left
            self._left -= chunk.bytes if fits else 0
        return fits


class Pool(NamedTuple):
    """Rows to cut into batches."""

    rows: Chunk
    order: np.ndarray | None
    """The order to take them in; None: as they are."""


class BatchLoader:
    """Gives every row of a part of a table exactly once per epoch; other threads prepare the next rows meanwhile.

    Files are joined in random order into pools of at least `pool_rows` rows; the rows of a pool are shuffled and cut
    into batches that differ in size by at most one row. The order depends on the seed and the epoch alone, never on
    the store's budget or the number of threads. At most two pools are in memory: the one that batches are taken from,
    and the next.
    """

    def __init__(self, store: ChunkStore, paths: list[Path], batch_size: int, pool_rows: int, seed: int) -> None:
        self._store = store
        self._rows = {path: pq.read_metadata(path).num_rows for path in paths}
        self._batch_size = batch_size
        self._pool_rows = pool_rows
        self._seed = seed

    @property
    def rows(self) -> int:
        """Rows of an epoch."""
        return sum(self._rows.values())

    def shuffled(self, epoch: int) -> Iterator[Batch]:
        """Give the batches of an epoch, in an order of its own."""
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._rows))
        paths = list(self._rows)
        pools = self._pools([paths[i] for i in order])
        seeds = [[self._seed, epoch, pool] for pool in range(len(pools))]
        with ThreadPoolExecutor(_DECODERS, thread_name_prefix="decoder") as decoders:
            yield from self._batches([partial(self._pool, decoders, *pool) for pool in zip(pools, seeds, strict=True)])

    def in_order(self) -> Iterator[Batch]:
        """Give the batches in the order of the table."""
        return self._batches([partial(self._file, path) for path in self._rows])

    def _batches(self, reads: list[Callable[[], Pool]]) -> Iterator[Batch]:
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader") as thread:
            coming = thread.submit(reads[0])
            for read in (*reads[1:], None):
                pool = coming.result()
                if read is not None:
                    coming = thread.submit(read)
                yield from self._cut(*pool)

    def _pool(self, decoders: ThreadPoolExecutor, paths: list[Path], seed: list[int]) -> Pool:
        rows = Chunk.joined(list(decoders.map(self._store.chunk, paths)))
        return Pool(rows, np.random.default_rng(seed).permutation(rows.rows))

    def _file(self, path: Path) -> Pool:
        return Pool(self._store.chunk(path), None)

    def _pools(self, paths: list[Path]) -> list[list[Path]]:
        """Join files; what is left after the last full pool joins it, so that no pool is small."""
        pools: list[list[Path]] = [[]]
        rows, left = 0, sum(self._rows.values())
        for path in paths:
            if rows >= self._pool_rows and left >= self._pool_rows:
                pools.append([])
                rows = 0
            pools[-1].append(path)
            rows += self._rows[path]
            left -= self._rows[path]
        return pools

    def _cut(self, chunk: Chunk, order: np.ndarray | None) -> Iterator[Batch]:
        batches = -(-chunk.rows // self._batch_size)
        edges = [chunk.rows * i // max(1, batches) for i in range(batches + 1)]
        for first, last in pairwise(edges):
            # Rows are shuffled a batch at a time: no second copy of the pool, and every batch lies in memory that an
            # earlier one gave back, already mapped. Shuffling whole pools took 1.4 times as long.
            yield chunk.batch(first, last) if order is None else chunk.taken(order[first:last]).batch(0, last - first)
