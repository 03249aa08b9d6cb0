"""Feeds a feature table to torch in shuffled batches, from memory as far as the budget goes and from disk beyond it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from models.dlrm.chunks import Batch, Chunk
from models.dlrm.layout import Layout
from models.inputs import LearningTable


class ChunkStore:
    """Decodes the files of a table, and keeps what fits the budget for the next epoch."""

    def __init__(self, learning: LearningTable, layout: Layout, budget_bytes: int) -> None:
        self._learning = learning
        self._layout = layout
        self._left = budget_bytes
        self._kept: dict[Path, Chunk] = {}

    def chunk(self, path: Path) -> Chunk:
        """Return the rows of a file."""
        if path in self._kept:
            return self._kept[path]
        chunk = Chunk.decoded(self._learning.read(path), self._layout)
        if chunk.bytes <= self._left:
            self._left -= chunk.bytes
            self._kept[path] = chunk
        return chunk


class BatchLoader:
    """Gives every row of a part of a table exactly once per epoch; another thread prepares the next rows meanwhile.

    Files are joined in random order into pools of at least `pool_rows` rows; the rows of a pool are shuffled and cut
    into batches that differ in size by at most one row. The order depends on the seed and the epoch alone, never on
    the store's budget.
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
        return self._batches(
            [partial(self._shuffled_pool, pool, seed) for pool, seed in zip(pools, seeds, strict=True)]
        )

    def in_order(self) -> Iterator[Batch]:
        """Give the batches in the order of the table."""
        return self._batches([partial(self._store.chunk, path) for path in self._rows])

    def _batches(self, reads: list[Callable[[], Chunk]]) -> Iterator[Batch]:
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader") as thread:
            coming = thread.submit(reads[0])
            for read in (*reads[1:], None):
                chunk = coming.result()
                if read is not None:
                    coming = thread.submit(read)
                yield from self._cut(chunk)

    def _shuffled_pool(self, paths: list[Path], seed: list[int]) -> Chunk:
        pool = Chunk.joined([self._store.chunk(path) for path in paths])
        return pool.taken(np.random.default_rng(seed).permutation(pool.rows))

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

    def _cut(self, chunk: Chunk) -> Iterator[Batch]:
        batches = -(-chunk.rows // self._batch_size)
        edges = [chunk.rows * i // max(1, batches) for i in range(batches + 1)]
        yield from (chunk.batch(first, last) for first, last in pairwise(edges))
