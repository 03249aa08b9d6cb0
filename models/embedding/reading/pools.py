"""Shuffling: files are joined into pools of rows, and pools are cut into batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol, Self, TypeVar

import numpy as np

from models.embedding.reading.chunks import Batch


class Pool(Protocol):
    """Rows that are shuffled together and cut into batches."""

    @property
    def size(self) -> int:
        """Number of rows."""

    def batch(self, first: int, last: int) -> Batch:
        """Return a range of the rows, in the pool's order."""


PoolT = TypeVar("PoolT", bound=Pool)


class DecodedStore(Protocol[PoolT]):
    """A store from which a loader reads the rows of files."""

    def rows(self, path: Path) -> int:
        """Return the rows of a file."""

    def row_numbers(self, paths: list[Path]) -> np.ndarray:
        """Return the row numbers of several files, one file after another, for `pool`."""

    def pool(self, decoders: ThreadPoolExecutor, paths: list[Path], order: np.ndarray) -> PoolT:
        """Return the rows of several files, in the order of some row numbers."""

    def file(self, path: Path) -> PoolT:
        """Return the rows of a file, as they are."""

    def release(self, pool: PoolT) -> None:
        """Release a pool after its last batch."""


class PoolOrder(NamedTuple):
    """A random order of a pool's rows. Where order is learnt, lists are shuffled and each stays whole."""

    places_N: np.ndarray
    """Row numbers in the store, see `DecodedStore.row_numbers`."""
    ends_L: np.ndarray | None
    """End of each list in the pool; None: no order is learnt."""

    @classmethod
    def shuffled(cls, places_N: np.ndarray, lengths_L: np.ndarray | None, seed: list[int]) -> Self:
        """Return the random order of a seed.

        Args:
            places_N: Row numbers of the pool, in the order of the files; overwritten.
            lengths_L: Number of rows of every list, in the order of the files; None: no order is learnt.
            seed: Seed of the random order.

        >>> PoolOrder.shuffled(np.arange(5), np.array([2, 3]), [3]).places_N.tolist()
        [2, 3, 4, 0, 1]
        """
        random = np.random.default_rng(seed)
        if lengths_L is None:
            random.shuffle(places_N)
            return cls(places_N, None)
        permutation_L = random.permutation(len(lengths_L))
        firsts_L, list_lengths_L = (lengths_L.cumsum() - lengths_L)[permutation_L], lengths_L[permutation_L]
        ends_L = list_lengths_L.cumsum()
        order_N = np.arange(len(places_N)) + np.repeat(firsts_L - (ends_L - list_lengths_L), list_lengths_L)
        return cls(places_N[order_N], ends_L)


def list_edges(ends_L: np.ndarray, batch_size: int) -> Iterator[tuple[int, int]]:
    """Yield the first row of every batch, and the row after its last; batches hold as many whole lists as fit.

    Args:
        ends_L: End of each list; none has more rows than a batch.
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

    Files after the last full pool join it, so that no pool is small.
    """
    paths = list(rows)
    pools: list[list[Path]] = [[]]
    filled, remaining_rows = 0, sum(rows.values())
    for number in np.random.default_rng([seed, epoch]).permutation(len(paths)):
        path = paths[number]
        if filled >= pool_rows and remaining_rows >= pool_rows:
            pools.append([])
            filled = 0
        pools[-1].append(path)
        filled += rows[path]
        remaining_rows -= rows[path]
    return pools


def batch_edges(rows: int, batch_size: int) -> Iterator[tuple[int, int]]:
    """Yield the first row of every batch, and the row after its last; batches differ in size by at most one row."""
    batches = -(-rows // batch_size)
    return pairwise(rows * number // max(1, batches) for number in range(batches + 1))
