"""Anytime-valid tests: bounds for a difference, for a split of users, and for a share.

A test at a fixed level errs at that level once; looked at again and again while data come in, it errs almost surely.
These bounds hold for all looks together (Ville's inequality on a mixture of likelihood ratios).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import betaincc, betaln, xlog1py, xlogy

Floats = npt.NDArray[np.float64]

SPLIT_PRIOR: Final = 100.0
"""Users that the alternative of the split test is worth: for 5 % it expects splits of about 3 % to 7 %."""
SHARE_PRIOR: Final = (1.0, 10.0)
"""Beta prior of a faulty share: a fault fails some ten percent of the answers, more often few than all."""
_EDGE: Final = 1e-12


@dataclass(frozen=True)
class Interval:
    """An estimate between its bounds."""

    low: float
    value: float
    high: float

    @property
    def is_bounded(self) -> bool:
        """Whether the estimate and both bounds are numbers."""
        return bool(np.isfinite([self.low, self.value, self.high]).all())


def mixture_interval(estimate: float, variance: float, alpha: float, scale: float) -> Interval:
    """Return an interval that covers the truth at every look, together, with probability 1 - alpha.

    The confidence sequence of the normal mixture: the likelihood ratio of a normally distributed estimate, averaged
    over effects from N(0, scale^2), passes 1 / alpha with probability alpha at most (Robbins, 1970; as mSPRT for the
    difference of two means: Johari, Koomen, Pekelis and Walsh, 2022, "Always Valid Inference"; as asymptotic confidence
    sequence: Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, 2024). It needs estimates whose increments are
    uncorrelated, such as means of a growing sample.

    Args:
        estimate: The effect seen so far.
        variance: Of the estimate; infinite when nothing is known.
        alpha: Chance that any of the intervals ever misses the truth, on either side.
        scale: Standard deviation of the effects that the mixture expects; the interval is narrowest for those.

    >>> interval = mixture_interval(-0.10, variance=0.02**2, alpha=0.01, scale=0.05)
    >>> round(interval.low, 3), round(interval.high, 3)
    (-0.172, -0.028)
    """
    if not np.isfinite(variance):
        return Interval(-np.inf, estimate, np.inf)
    assert variance > 0, "a variance of 0 would be certainty"
    radius = float(mixture_radius(np.array([variance]), alpha, scale)[0])
    return Interval(estimate - radius, estimate, estimate + radius)


def mixture_radius(variance: Floats, alpha: float, scale: float) -> Floats:
    """Return how far the truth may be from estimates of these variances: `mixture_interval` for many at once."""
    spread = variance + scale**2
    radius: Floats = np.sqrt(2 * variance * spread / scale**2 * (0.5 * np.log(spread / variance) - np.log(alpha)))
    return radius


def divergence_bound(size: float, bins: int, alpha: float, scale: float) -> float:
    """Return how far samples of one distribution may move apart at every look, together, by chance.

    Times the size, the Jeffreys divergence of two samples' shares over some bins is the squared length of a normally
    distributed vector with one component less than there are bins. Its likelihood ratio, averaged over differences from
    a normal distribution in all directions, passes 1 / alpha with probability alpha at most over all looks
    (`mixture_interval` in more dimensions; Robbins, 1970).

    Args:
        size: 1 / (1 / n + 1 / m) for samples of n and m independent scores.
        bins: Of the comparison.
        alpha: Chance that the bound is ever passed though nothing differs.
        scale: Divergence, in nats, that the mixture expects; the bound is smallest for that.

    >>> round(divergence_bound(50, bins=10, alpha=0.001, scale=1.0), 3)
    0.725
    """
    freedom = bins - 1
    information = size * scale / freedom
    spread = np.log1p(information) * freedom / 2 - np.log(alpha)
    return float(2 / size * (1 + information) / information * spread)


def split_evidence(canary: int, total: int, share: float) -> float:
    """Return how much better another split explains the users of the canary than the declared one does.

    The Bayes factor of the beta-binomial mixture (Lindon and Malek, 2022, "Anytime-Valid Inference for Multinomial
    Count Data"). Under the declared split it passes 1 / alpha with probability alpha at most, over all looks.

    Args:
        canary: Users on the canary.
        total: Users on both tracks.
        share: Declared share of the canary, between 0 and 1, both excluded.

    >>> split_evidence(50, 1000, 0.05) < 1 < 1000 < split_evidence(90, 1000, 0.05)
    True
    """
    prior, against = SPLIT_PRIOR * share, SPLIT_PRIOR * (1 - share)
    other = betaln(prior + canary, against + total - canary) - betaln(prior, against)
    declared = canary * np.log(share) + (total - canary) * np.log1p(-share)
    return float(np.exp(min(other - declared, 700.0)))


def share_evidence(count: int, total: int, limit: float, prior: tuple[float, float] = SHARE_PRIOR) -> float:
    """Return how much better shares above a limit explain a count than the limit does.

    The likelihood ratio of a mixture, of the part of a beta distribution above the limit. Every part of it only falls
    on average when the true share is at the limit or below, so it passes 1 / alpha with probability alpha at most,
    over all looks (Robbins, 1970; Howard, Ramdas, McAuliffe and Sekhon, 2021).

    Args:
        count: Answers of the kind that is limited.
        total: All answers.
        limit: Between 0 and 1.
        prior: The beta distribution's two numbers.
    """
    first, second = prior
    mixed = betaln(first + count, second + total - count) - betaln(first, second)
    above = betaincc(first + count, second + total - count, limit)
    if above == 0:  # a number too small to write down: the count is far below the limit
        return 0.0
    prior_above = betaincc(first, second, limit)
    at_limit = xlogy(count, limit) + xlog1py(total - count, -limit)
    ratio = mixed + np.log(above) - np.log(max(prior_above, 1e-300)) - at_limit
    return float(np.exp(min(ratio, 700.0)))


def lower_bound(count: int, total: int, confidence: float) -> float:
    """Return a share that the true one is above at every look, together, with this confidence.

    It inverts `share_evidence`. Bounds for one look (Clopper and Pearson, 1934) are closer to count / total, and wrong
    far more often than they say when one looks at every answer.

    Args:
        count: Answers of one kind.
        total: All answers.
        confidence: For example 0.999.

    >>> lower_bound(0, 100, 0.999)
    0.0
    >>> round(lower_bound(20, 100, 0.999), 3)
    0.074
    """
    assert 0 <= count <= total, f"{count} of {total}"
    if count == 0:
        return 0.0
    wanted = 1 / (1 - confidence)
    seen = min(count / total, 1 - _EDGE)

    def excess(limit: float) -> float:
        return float(np.log(share_evidence(count, total, limit)) - np.log(wanted))

    if excess(_EDGE) <= 0:
        return 0.0
    return float(brentq(excess, _EDGE, seen, xtol=1e-6)) if excess(seen) < 0 else seen
