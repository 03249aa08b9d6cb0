"""What chance does to the counts of a window whose rows come from users, several rows alike from each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import fdtrc, fdtri

from shortlist.contracts import Columns

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

REQUEST: Final = "request_id"


def clusters_of(rows: pl.DataFrame) -> Ints:
    """Return a number from 0 on per row: the same for rows of a user, or of a request that names no user."""
    named = [pl.col(name).cast(pl.String) for name in (Columns.USER, REQUEST) if name in rows.columns]
    alone = pl.format("row {}", pl.int_range(pl.len()))
    # Hashes sort ten times as fast as texts.
    hashed = rows.select(pl.coalesce(*named, alone).hash()).to_series().to_numpy()
    return np.unique(hashed, return_inverse=True)[1].astype(np.int64)


@dataclass(frozen=True)
class NullDistribution:
    """How a chi-square statistic of the counts is spread: as `scale` times chi-square with `df` degrees of freedom.

    Rao and Scott, 1981, second-order: the mean and the variance of the statistic's weights, of which independent rows
    have all at 1, are those seen between users. As so many users only estimate them, the tail is that of F instead
    (Thomas and Rao, 1987).
    """

    scale: float
    df: float
    effect: float
    """The design effect: how many rows are worth one independent row; at least 1."""
    clusters: int

    def p_value(self, statistic: float) -> float:
        """Return the chance of a statistic as large."""
        if self.clusters < 2:
            return 1.0
        return float(fdtrc(self.df, self.df * (self.clusters - 1), statistic / (self.scale * self.df)))

    def bound(self, alpha: float) -> float:
        """Return the statistic that chance passes with probability alpha; 0 when nothing can be told."""
        if self.clusters < 2:
            return 0.0
        return float(self.scale * self.df * fdtri(self.df, self.df * (self.clusters - 1), 1 - alpha))


class ClusteredCounts:
    """Values per cluster and bin."""

    def __init__(self, counts: sparse.csr_array) -> None:
        self._counts = counts
        self.totals: Ints = np.asarray(counts.sum(axis=0)).ravel()
        """Values per bin."""

    @classmethod
    def of(cls, clusters: Ints, bins: Ints, size: int) -> ClusteredCounts:
        """Return the counts of values.

        Args:
            clusters: Cluster of every value, from 0 on.
            bins: Bin of every value.
            size: Number of bins.
        """
        present = np.bincount(clusters) > 0
        place = np.cumsum(present) - 1  # a cluster without values does not count
        ones = np.ones(bins.size, dtype=np.int64)
        return cls(sparse.coo_array((ones, (place[clusters], bins)), shape=(present.sum(), size)).tocsr())

    def merged(self, into: Ints) -> ClusteredCounts:
        """Return the counts of coarser bins, given the new bin of each."""
        ones = np.ones(into.size, dtype=np.int64)
        sums = sparse.coo_array((ones, (np.arange(into.size), into)), shape=(into.size, into.max() + 1)).tocsr()
        return ClusteredCounts((self._counts @ sums).tocsr())

    def spread(self, expected: Floats) -> NullDistribution:
        """Return how the statistic sum((share - expected share)^2 / expected) * n is spread without drift.

        Args:
            expected: Expected share of each bin; one that is 0 has no values either.
        """
        clusters, size = self._counts.shape[0], int((expected > 0).sum())
        if size < 2 or clusters < 2:  # nothing that could be told apart, nobody to compare with
            return NullDistribution(1.0, max(size - 1.0, 1.0), max(1.0, float(self.totals.sum())), clusters=1)
        first, second = self._moments(expected)
        # Less than 1 is how a slate shows every position once: the next user would do the same, but not the next day.
        effect = first / (size - 1)
        if effect <= 1:
            return NullDistribution(1.0, size - 1.0, 1.0, clusters)
        return NullDistribution(second / first, first**2 / second, effect, clusters)

    def _moments(self, expected: Floats) -> tuple[float, float]:
        """Return the sum of the statistic's weights, and of their squares.

        They are the eigenvalues of the covariance of the counts, each bin divided by the root of its expected share:
        that is the sum over users of r r' with r = (counts - rows * shares) / root. Written out, it is a sparse matrix
        and one of rank two, so bins by bins numbers are never held.
        """
        total = self.totals.sum()
        root = np.sqrt(np.divide(1.0, expected, out=np.zeros_like(expected), where=expected > 0))
        scaled = self._counts @ sparse.diags_array(root, format="csr")
        rows = np.asarray(self._counts.sum(axis=1), dtype=np.float64).ravel()
        both, shares = scaled.T @ scaled, self.totals / total * root
        weighted, squares = scaled.T @ rows, float(rows @ rows)
        length, angle = float(shares @ shares), float(weighted @ shares)
        first = both.trace() - 2 * angle + squares * length
        second = (
            both.multiply(both).sum()
            + 2 * float(weighted @ weighted) * length
            + 2 * angle**2
            + squares**2 * length**2
            - 4 * float(weighted @ (both @ shares))
            + 2 * squares * float(shares @ (both @ shares))
            - 4 * squares * angle * length
        )
        correction = rows.size / (rows.size - 1) / total
        return float(first * correction), float(second * correction**2)
