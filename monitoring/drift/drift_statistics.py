"""How far the distribution of a column in a window is from the reference's, and how much of that is no drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from monitoring.windows.sampling import ClusteredCounts, Floats, Ints, NullDistribution

_MIXED: Final = 0.01
_FEWEST_EXPECTED: Final = 10
"""Independent rows that a bin should expect: twice the old rule for chi-square tests, for the index has logarithms."""


def index_parts(reference: Floats, live: Floats) -> Floats:
    """Return what each bin adds to the population stability index, shape (..., bins).

    Both sides are mixed with 1 % of their mean: equal shares stay equal, whatever the numbers of rows are, and an empty
    bin adds at most 5.3 times its share on the other side.

    Args:
        reference: Shares, shape (..., bins), sums to 1.
        live: Shares, likewise.
    """
    mean = (reference + live) / 2
    ours, theirs = ((1 - _MIXED) * shares + _MIXED * mean for shares in (live, reference))
    # Where both are 0 the logarithm is that of 1.
    ratio = np.divide(ours, theirs, out=np.ones_like(mean), where=mean > 0)
    return (ours - theirs) * np.log(ratio)


def population_stability_index(reference: Floats, live: Floats) -> float:
    """Return how far live shares have moved: the Jeffreys divergence (Jeffreys, 1946) in nats, empty bins allowed.

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
    natural: float
    """The largest index between a day of the reference and its other days, chance taken off."""
    chance: float
    """The index that chance alone passes with probability alpha; 0 when one user, or one bin, tells nothing."""
    p_value: float
    independent: float
    """What the window's values are worth in independent ones."""
    changed: int
    """The bin that adds most to the index of all bins."""
    reference: float
    """Its share in the reference."""
    live: float
    """Its share in the window."""


def distance(live: ClusteredCounts, days: Sequence[Sequence[int]], named: int, alpha: float) -> Distance | None:
    """Return how far a window is from the reference; None when either has no values.

    Bins in which fewer than ten independent rows are expected are taken together first: neither the index nor its
    test is worth much otherwise.

    Args:
        live: Values of the window, per cluster and bin.
        days: Values of the reference, per day and bin.
        named: Bins that stand for themselves; one after them holds whatever was not foreseen.
        alpha: Of the bound.
    """
    counts = np.array(days, dtype=np.float64).reshape(-1, live.totals.size)
    then, now = counts.sum(axis=0), live.totals.astype(np.float64)
    if not then.sum() or not now.sum():
        return None
    reference, shares = then / then.sum(), now / now.sum()
    changed = int(index_parts(reference, shares).argmax())
    into = _coarser(reference, shares, named, now.sum() / live.spread(_expected(then, now)).effect)
    coarse = live.merged(into)
    merged = np.stack([_merged(day, into) for day in (then, now, *counts)])
    old, new = (row / row.sum() for row in merged[:2])
    expected, rows = _expected(*merged[:2]), 1 / (1 / now.sum() + 1 / then.sum())
    spread, kept = coarse.spread(expected), expected > 0
    statistic = float(((old - new)[kept] ** 2 / expected[kept]).sum() * rows)
    return Distance(
        index=population_stability_index(old, new),
        natural=_natural(merged[2:], spread),
        chance=float(spread.bound(alpha) / rows),
        p_value=spread.p_value(statistic),
        independent=float(now.sum() / spread.effect),
        changed=changed,
        reference=float(reference[changed]),
        live=float(shares[changed]),
    )


def _expected(reference: Floats, live: Floats) -> Floats:
    """Return the share of each bin on both sides together, and half of the live one at least.

    A value new to a large reference would have next to no expectation otherwise, and one row of it would be a proof.
    """
    pooled = (reference + live) / (reference.sum() + live.sum())
    expected: Floats = np.maximum(pooled, live / live.sum() / 2)
    return expected


def _merged(counts: Floats, into: Ints) -> Floats:
    return np.bincount(into, counts).astype(np.float64)


def _coarser(reference: Floats, live: Floats, named: int, rows: float) -> Ints:
    """Return the new number of each bin: too small ones together, numbers without a gap.

    Which bins are small is told by the reference alone: picking those that happen to be large in the window would make
    chance look like drift.
    """
    expected = reference.copy()
    expected[named:] = ((reference + live) / 2)[named:]
    small = expected * rows < _FEWEST_EXPECTED
    into = np.where(small, np.int64((~small).sum()), np.cumsum(~small) - 1)
    return into.astype(np.int64)


def _natural(days: Floats, spread: NullDistribution) -> float:
    """Return the largest index between a day and the other days, less what chance gives on average."""
    rows, rest = days.sum(axis=1), days.sum(axis=0) - days
    others = rest.sum(axis=1)
    there = (rows > 0) & (others > 0)
    if not there.any():
        return 0.0
    theirs = rest[there] / others[there, None]
    index = index_parts(theirs, days[there] / rows[there, None]).sum(axis=1)
    chance = spread.scale * spread.df * (1 / rows[there] + 1 / others[there])
    return max(0.0, float((index - chance).max()))
