"""Distance between the distributions of a column in a window and in the reference, with its natural variation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from monitoring.windows.sampling import ClusteredCounts, Floats, Ints, NullDistribution

_MIXED_SHARE: Final = 0.01
_MIN_EXPECTED: Final = 10
"""Fewest expected independent rows of a bin: twice the rule for chi-square tests, since the index has logarithms."""


def index_parts(reference: Floats, live: Floats) -> Floats:
    """Return the contribution of each bin to the population stability index, shape (..., bins).

    Both sides are mixed with 1 % of their mean: equal shares stay equal, whatever the numbers of rows are, and an empty
    bin adds at most 5.3 times its share on the other side.

    Args:
        reference: Shares of the reference, shape (..., bins), each row sums to 1.
        live: Shares of the window, of the same shape.
    """
    mean = (reference + live) / 2
    mixed_live, mixed_reference = ((1 - _MIXED_SHARE) * shares + _MIXED_SHARE * mean for shares in (live, reference))
    # Where both shares are 0, the ratio is 1.
    ratio = np.divide(mixed_live, mixed_reference, out=np.ones_like(mean), where=mean > 0)
    return (mixed_live - mixed_reference) * np.log(ratio)


def population_stability_index(reference: Floats, live: Floats) -> float:
    """Return the Jeffreys divergence (Jeffreys, 1946) of live shares from the reference, in nats; bins may be empty.

    >>> round(population_stability_index(np.array([0.5, 0.5]), np.array([0.8, 0.2])), 2)
    0.41
    >>> population_stability_index(np.array([0.5, 0.5]), np.array([0.5, 0.5]))
    0.0
    """
    return float(index_parts(reference, live).sum())


@dataclass(frozen=True)
class Distance:
    """A comparison of a window's counts with the reference's."""

    index: float
    natural_index: float
    """The largest index between a day of the reference and its other days, less the index expected by chance."""
    chance_index: float
    """The index that is exceeded by chance with probability alpha; 0 with a single user or bin."""
    p_value: float
    independent_rows: float
    """Effective number of independent values in the window."""
    changed_bin: int
    """The bin that adds most to the index of all bins."""
    reference_share: float
    """Its share in the reference."""
    live_share: float
    """Its share in the window."""


def measure_distance(
    live: ClusteredCounts, days: Sequence[Sequence[int]], named_bins: int, alpha: float
) -> Distance | None:
    """Return the distance of a window from the reference; None when either has no values.

    Bins in which fewer than ten independent rows are expected are merged first: the index and its test are unreliable
    on them.

    Args:
        live: Counts of the window, per cluster and bin.
        days: Counts of the reference, per day and bin.
        named_bins: Number of bins with values of their own; one more bin after them holds all other values.
        alpha: Probability with which the index exceeds `chance_index` without drift.
    """
    day_counts = np.array(days, dtype=np.float64).reshape(-1, live.totals.size)
    reference_counts, live_counts = day_counts.sum(axis=0), live.totals.astype(np.float64)
    if not reference_counts.sum() or not live_counts.sum():
        return None
    reference_shares, live_shares = reference_counts / reference_counts.sum(), live_counts / live_counts.sum()
    changed_bin = int(index_parts(reference_shares, live_shares).argmax())
    new_bins = _merge_small_bins(
        reference_shares,
        live_shares,
        named_bins,
        live_counts.sum() / live.null_distribution(_expected_shares(reference_counts, live_counts)).effect,
    )
    coarse = live.merge_bins(new_bins)
    merged = np.stack([_merge_bins(day, new_bins) for day in (reference_counts, live_counts, *day_counts)])
    merged_reference, merged_live = (row / row.sum() for row in merged[:2])
    expected, effective_rows = _expected_shares(*merged[:2]), 1 / (1 / live_counts.sum() + 1 / reference_counts.sum())
    null_distribution, is_expected = coarse.null_distribution(expected), expected > 0
    statistic = float(
        ((merged_reference - merged_live)[is_expected] ** 2 / expected[is_expected]).sum() * effective_rows
    )
    return Distance(
        index=population_stability_index(merged_reference, merged_live),
        natural_index=_largest_day_index(merged[2:], null_distribution),
        chance_index=float(null_distribution.bound(alpha) / effective_rows),
        p_value=null_distribution.p_value(statistic),
        independent_rows=float(live_counts.sum() / null_distribution.effect),
        changed_bin=changed_bin,
        reference_share=float(reference_shares[changed_bin]),
        live_share=float(live_shares[changed_bin]),
    )


def _expected_shares(reference: Floats, live: Floats) -> Floats:
    """Return the pooled share of each bin, at least half of its live share.

    Otherwise a value that is new to a large reference would be expected almost never, and one row of it would be
    significant.
    """
    pooled = (reference + live) / (reference.sum() + live.sum())
    expected: Floats = np.maximum(pooled, live / live.sum() / 2)
    return expected


def _merge_bins(counts: Floats, new_bins: Ints) -> Floats:
    return np.bincount(new_bins, counts).astype(np.float64)


def _merge_small_bins(reference: Floats, live: Floats, named_bins: int, rows: float) -> Ints:
    """Return the new number of each bin: too small bins get the same one; numbers have no gap.

    Whether a bin is small depends on the reference alone: selecting bins that happen to be large in the window
    would make chance look like drift.
    """
    expected = reference.copy()
    expected[named_bins:] = ((reference + live) / 2)[named_bins:]
    is_small = expected * rows < _MIN_EXPECTED
    new_bins = np.where(is_small, np.int64((~is_small).sum()), np.cumsum(~is_small) - 1)
    return new_bins.astype(np.int64)


def _largest_day_index(days: Floats, null_distribution: NullDistribution) -> float:
    """Return the largest index between a day and the other days, less the index expected by chance."""
    day_rows, other_days = days.sum(axis=1), days.sum(axis=0) - days
    other_rows = other_days.sum(axis=1)
    has_rows = (day_rows > 0) & (other_rows > 0)
    if not has_rows.any():
        return 0.0
    other_shares = other_days[has_rows] / other_rows[has_rows, None]
    index = index_parts(other_shares, days[has_rows] / day_rows[has_rows, None]).sum(axis=1)
    expected_index = (
        null_distribution.scale * null_distribution.df * (1 / day_rows[has_rows] + 1 / other_rows[has_rows])
    )
    return max(0.0, float((index - expected_index).max()))
