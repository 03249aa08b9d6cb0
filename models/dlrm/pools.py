"""What is shuffled together: files joined into pools, pools cut into batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from models.dlrm.chunks import Batch


class Pool(Protocol):
    """Rows to cut into batches."""

    @property
    def size(self) -> int:
        """Number of rows."""

    def batch(self, first: int, last: int) -> Batch:
        """Return a part of the rows, in the pool's order."""


PoolT = TypeVar("PoolT", bound=Pool)


class Store(Protocol[PoolT]):
    """Where a loader finds the rows of files."""

    def rows(self, path: Path) -> int:
        """Return the rows of a file."""

    def pool(self, decoders: ThreadPoolExecutor, paths: list[Path], seed: list[int]) -> PoolT:
        """Return the rows of several files, in random order."""

    def file(self, path: Path) -> PoolT:
        """Return the rows of a file, as they are."""

    def leave(self, pool: PoolT) -> None:
        """Let go of a pool: all of its batches were given."""


def epoch_pools(rows: Mapping[Path, int], pool_rows: int, seed: int, epoch: int) -> list[list[Path]]:
    """Return the files of each pool of an epoch, in random order.

    What is left after the last full pool joins it, so that no pool is small.
    """
    paths = list(rows)
    pools: list[list[Path]] = [[]]
    filled, left = 0, sum(rows.values())
    for place in np.random.default_rng([seed, epoch]).permutation(len(paths)):
        path = paths[place]
        if filled >= pool_rows and left >= pool_rows:
            pools.append([])
            filled = 0
        pools[-1].append(path)
        filled += rows[path]
        left -= rows[path]
    return pools


def batch_edges(rows: int, batch_size: int) -> Iterator[tuple[int, int]]:
    """Give the first row of every batch, and the row after its last; batches differ in size by at most one row."""
    batches = -(-rows // batch_size)
    return pairwise(rows * number // max(1, batches) for number in range(batches + 1))
