"""Sampling distribution of a window's counts, whose rows are clustered by user."""

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


def assign_clusters(rows: pl.DataFrame) -> Ints:
    """Return the cluster number of every row, from 0: one per user, or per request where there is no user."""
    named = [pl.col(name).cast(pl.String) for name in (Columns.USER, REQUEST) if name in rows.columns]
    row_key = pl.format("row {}", pl.int_range(pl.len()))
    # Sorting hashes is ten times as fast as sorting strings.
    key_hashes = rows.select(pl.coalesce(*named, row_key).hash()).to_series().to_numpy()
    return np.unique(key_hashes, return_inverse=True)[1].astype(np.int64)


@dataclass(frozen=True)
class NullDistribution:
    """Distribution of a chi-square statistic of the counts without drift: `scale` times chi-square with `df` degrees.

    Second-order correction of Rao and Scott (1981): mean and variance of the statistic's weights (all 1 for independent
    rows) are estimated between users. Since they are only estimated, the tail is that of F (Thomas and Rao, 1987).
    """

    scale: float
    df: float
    effect: float
    """The design effect: rows per independent row, at least 1."""
    clusters: int

    def p_value(self, statistic: float) -> float:
        """Return the probability of a statistic as large."""
        if self.clusters < 2:
            return 1.0
        return float(fdtrc(self.df, self.df * (self.clusters - 1), statistic / (self.scale * self.df)))

    def bound(self, alpha: float) -> float:
        """Return the statistic that is exceeded with probability alpha; 0 with fewer than two clusters."""
        if self.clusters < 2:
            return 0.0
        return float(self.scale * self.df * fdtri(self.df, self.df * (self.clusters - 1), 1 - alpha))


class ClusteredCounts:
    """Number of values per cluster and bin."""

    def __init__(self, counts: sparse.csr_array) -> None:
        self._counts = counts
        self.totals: Ints = np.asarray(counts.sum(axis=0)).ravel()
        """Number of values per bin."""

    @classmethod
    def of(cls, clusters: Ints, bins: Ints, size: int) -> ClusteredCounts:
        """Return the counts of values.

        Args:
            clusters: Cluster of every value, from 0 on.
            bins: Bin of every value.
            size: Number of bins.
        """
        has_values = np.bincount(clusters) > 0
        cluster_index = np.cumsum(has_values) - 1  # a cluster without values does not count
        unit_counts = np.ones(bins.size, dtype=np.int64)
        return cls(
            sparse.coo_array((unit_counts, (cluster_index[clusters], bins)), shape=(has_values.sum(), size)).tocsr()
        )

    def merge_bins(self, new_bins: Ints) -> ClusteredCounts:
        """Return the counts of merged bins, given the new number of each bin."""
        unit_counts = np.ones(new_bins.size, dtype=np.int64)
        sums = sparse.coo_array(
            (unit_counts, (np.arange(new_bins.size), new_bins)), shape=(new_bins.size, new_bins.max() + 1)
        ).tocsr()
        return ClusteredCounts((self._counts @ sums).tocsr())

    def null_distribution(self, expected: Floats) -> NullDistribution:
        """Return the distribution of sum((share - expected share)^2 / expected) * n without drift.

        Args:
            expected: Expected share of each bin; a bin with share 0 has no values.
        """
        clusters, size = self._counts.shape[0], int((expected > 0).sum())
        if size < 2 or clusters < 2:  # one bin or one cluster: nothing can be estimated
            return NullDistribution(1.0, max(size - 1.0, 1.0), max(1.0, float(self.totals.sum())), clusters=1)
        weight_sum, weight_squares = self._weight_moments(expected)
        # An effect below 1 comes from slates that show every position once; it would not hold on another day.
        design_effect = weight_sum / (size - 1)
        if design_effect <= 1:
            return NullDistribution(1.0, size - 1.0, 1.0, clusters)
        return NullDistribution(weight_squares / weight_sum, weight_sum**2 / weight_squares, design_effect, clusters)

    def _weight_moments(self, expected: Floats) -> tuple[float, float]:
        """Return the sum of the statistic's weights, and the sum of their squares.

        The weights are the eigenvalues of the covariance of the counts, each bin divided by the root of its expected
        share: the sum over users of r r' with r = (counts - rows * shares) / root. Expanded, it is the sum of a sparse
        matrix and one of rank two, so the dense matrix of bins by bins is never built.
        """
        total = self.totals.sum()
        root = np.sqrt(np.divide(1.0, expected, out=np.zeros_like(expected), where=expected > 0))
        scaled = self._counts @ sparse.diags_array(root, format="csr")
        rows = np.asarray(self._counts.sum(axis=1), dtype=np.float64).ravel()
        gram, shares = scaled.T @ scaled, self.totals / total * root
        weighted, squares = scaled.T @ rows, float(rows @ rows)
        length, angle = float(shares @ shares), float(weighted @ shares)
        first = gram.trace() - 2 * angle + squares * length
        second = (
            gram.multiply(gram).sum()
            + 2 * float(weighted @ weighted) * length
            + 2 * angle**2
            + squares**2 * length**2
            - 4 * float(weighted @ (gram @ shares))
            + 2 * squares * float(shares @ (gram @ shares))
            - 4 * squares * angle * length
        )
        correction = rows.size / (rows.size - 1) / total
        return float(first * correction), float(second * correction**2)
