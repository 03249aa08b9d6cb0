"""What is shuffled together: files joined into pools, pools cut into batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol, Self, TypeVar

import numpy as np

from models.embedding.chunks import Batch


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

    def places(self, paths: list[Path]) -> np.ndarray:
        """Return where the rows of several files are, one file after another, in what `pool` takes them from."""

    def pool(self, decoders: ThreadPoolExecutor, paths: list[Path], order: np.ndarray) -> PoolT:
        """Return the rows of several files in an order of their places."""

    def file(self, path: Path) -> PoolT:
        """Return the rows of a file, as they are."""

    def leave(self, pool: PoolT) -> None:
        """Let go of a pool: all of its batches were given."""


class PoolOrder(NamedTuple):
    """A random order of a pool's rows. Where order is learnt, lists change places, and each stays whole."""

    places_N: np.ndarray
    """The places of its rows in the store, see `Store.places`."""
    ends_L: np.ndarray | None
    """Behind which row of the pool each list ends; None: every row is learnt by itself."""

    @classmethod
    def shuffled(cls, places_N: np.ndarray, lengths_L: np.ndarray | None, seed: list[int]) -> Self:
        """Return the order that a seed draws.

        Args:
            places_N: Of the pool's rows, as they follow each other in the files; overwritten.
            lengths_L: Rows of every list, as they follow each other in the files; None: every row by itself.
            seed: Of the draw.

        >>> PoolOrder.shuffled(np.arange(5), np.array([2, 3]), [3]).places_N.tolist()
        [2, 3, 4, 0, 1]
        """
        random = np.random.default_rng(seed)
        if lengths_L is None:
            random.shuffle(places_N)
            return cls(places_N, None)
        which_L = random.permutation(len(lengths_L))
        firsts_L, taken_L = (lengths_L.cumsum() - lengths_L)[which_L], lengths_L[which_L]
        ends_L = taken_L.cumsum()
        order_N = np.arange(len(places_N)) + np.repeat(firsts_L - (ends_L - taken_L), taken_L)
        return cls(places_N[order_N], ends_L)


def list_edges(ends_L: np.ndarray, batch_size: int) -> Iterator[tuple[int, int]]:
    """Give the first row of every batch, and the row after its last; batches hold whole lists, as many as fit.

    Args:
        ends_L: Behind which row each list ends; none has more rows than a batch.
        batch_size: Most rows.

    >>> list(list_edges(np.array([2, 5, 6]), 4))
    [(0, 2), (2, 6)]
    """
    first, rows = 0, int(ends_L[-1]) if len(ends_L) else 0
    while first < rows:
        last = int(ends_L[np.searchsorted(ends_L, first + batch_size, side="right") - 1])
        assert last > first, "a list has more rows than a batch"
        yield first, last
        first = last


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
