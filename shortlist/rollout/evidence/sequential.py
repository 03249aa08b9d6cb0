"""Anytime-valid tests: bounds for a difference, for a split of users, and for a share.

The error rate of a test at a fixed level grows towards 1 when it is repeated while data arrive. These bounds are valid
for all analyses together (Ville's inequality on a mixture of likelihood ratios).
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
"""Weight of the split test's alternative, in users: for 5 % it expects splits of about 3 % to 7 %."""
SHARE_PRIOR: Final = (1.0, 10.0)
"""Beta prior of the share of failed answers under a fault: about ten percent, small shares being more likely."""
_EDGE: Final = 1e-12


@dataclass(frozen=True)
class AnytimeInterval:
    """An estimate between its bounds."""

    low: float
    value: float
    high: float

    @property
    def is_bounded(self) -> bool:
        """Whether the estimate and both bounds are numbers."""
        return bool(np.isfinite([self.low, self.value, self.high]).all())


def mixture_interval(estimate: float, variance: float, alpha: float, scale: float) -> AnytimeInterval:
    """Return an interval that covers the truth at all analyses together with probability 1 - alpha.

    The confidence sequence of the normal mixture: the likelihood ratio of a normally distributed estimate, averaged
    over effects from N(0, scale^2), passes 1 / alpha with probability alpha at most (Robbins, 1970; as mSPRT for the
    difference of two means: Johari, Koomen, Pekelis and Walsh, 2022, "Always Valid Inference"; as asymptotic confidence
    sequence: Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, 2024). It needs estimates whose increments are
    uncorrelated, such as means of a growing sample.

    Args:
        estimate: Estimate of the effect so far.
        variance: Variance of the estimate; infinite without data.
        alpha: Probability that any of the intervals ever misses the truth, on either side.
        scale: Standard deviation of the effects that the mixture expects; the interval is narrowest for those.

    >>> interval = mixture_interval(-0.10, variance=0.02**2, alpha=0.01, scale=0.05)
    >>> round(interval.low, 3), round(interval.high, 3)
    (-0.172, -0.028)
    """
    if not np.isfinite(variance):
        return AnytimeInterval(-np.inf, estimate, np.inf)
    assert variance > 0, "a variance of 0 would be certainty"
    radius = float(mixture_radius(np.array([variance]), alpha, scale)[0])
    return AnytimeInterval(estimate - radius, estimate, estimate + radius)


def mixture_radius(variance: Floats, alpha: float, scale: float) -> Floats:
    """Return the radii of `mixture_interval` for many variances."""
    spread = variance + scale**2
    radius: Floats = np.sqrt(2 * variance * spread / scale**2 * (0.5 * np.log(spread / variance) - np.log(alpha)))
    return radius


def divergence_bound(size: float, bins: int, alpha: float, scale: float) -> float:
    """Return a bound on the divergence of two samples of one distribution, valid at all analyses together.

    Times the size, the Jeffreys divergence of two samples' shares over some bins is the squared length of a normally
    distributed vector with one component less than there are bins. Its likelihood ratio, averaged over differences from
    a normal distribution in all directions, passes 1 / alpha with probability alpha at most over all looks
    (`mixture_interval` in more dimensions; Robbins, 1970).

    Args:
        size: 1 / (1 / n + 1 / m) for samples of n and m independent scores.
        bins: Number of bins of the comparison.
        alpha: Probability that the bound is ever exceeded although nothing differs.
        scale: Divergence, in nats, that the mixture expects; the bound is smallest for that.

    >>> round(divergence_bound(50, bins=10, alpha=0.001, scale=1.0), 3)
    0.725
    """
    degrees_of_freedom = bins - 1
    information = size * scale / degrees_of_freedom
    spread = np.log1p(information) * degrees_of_freedom / 2 - np.log(alpha)
    return float(2 / size * (1 + information) / information * spread)


def split_evidence(canary: int, total: int, share: float) -> float:
    """Return the Bayes factor of another split of the users against the declared one.

    The Bayes factor of the beta-binomial mixture (Lindon and Malek, 2022, "Anytime-Valid Inference for Multinomial
    Count Data"). Under the declared split it exceeds 1 / alpha with probability alpha at most, over all analyses.

    Args:
        canary: Users on the canary.
        total: Users on both tracks.
        share: Declared share of the canary, between 0 and 1, both excluded.

    >>> split_evidence(50, 1000, 0.05) < 1 < 1000 < split_evidence(90, 1000, 0.05)
    True
    """
    canary_prior, stable_prior = SPLIT_PRIOR * share, SPLIT_PRIOR * (1 - share)
    alternative = betaln(canary_prior + canary, stable_prior + total - canary) - betaln(canary_prior, stable_prior)
    declared = canary * np.log(share) + (total - canary) * np.log1p(-share)
    return float(np.exp(min(alternative - declared, 700.0)))


def share_evidence(count: int, total: int, limit: float, prior: tuple[float, float] = SHARE_PRIOR) -> float:
    """Return the likelihood ratio of shares above a limit against the limit itself.

    The mixture is the part of a beta distribution above the limit. Each of its components is a supermartingale when the
    true share is at most the limit, so the ratio exceeds 1 / alpha with probability alpha at most, over all analyses
    (Robbins, 1970; Howard, Ramdas, McAuliffe and Sekhon, 2021).

    Args:
        count: Number of answers of the limited kind.
        total: Number of all answers.
        limit: The limit, between 0 and 1.
        prior: The two parameters of the beta distribution.
    """
    prior_alpha, prior_beta = prior
    mixture = betaln(prior_alpha + count, prior_beta + total - count) - betaln(prior_alpha, prior_beta)
    tail = betaincc(prior_alpha + count, prior_beta + total - count, limit)
    if tail == 0:  # floating-point underflow: the count is far below the limit
        return 0.0
    prior_above = betaincc(prior_alpha, prior_beta, limit)
    at_limit = xlogy(count, limit) + xlog1py(total - count, -limit)
    ratio = mixture + np.log(tail) - np.log(max(prior_above, 1e-300)) - at_limit
    return float(np.exp(min(ratio, 700.0)))


def lower_bound(count: int, total: int, confidence: float) -> float:
    """Return a lower bound of a share that is valid at all analyses together, with this confidence.

    It inverts `share_evidence`. Bounds for a single analysis (Clopper and Pearson, 1934) are closer to count / total,
    but miss the truth far more often than stated when the analysis is repeated.

    Args:
        count: Number of answers of one kind.
        total: Number of all answers.
        confidence: Confidence, for example 0.999.

    >>> lower_bound(0, 100, 0.999)
    0.0
    >>> round(lower_bound(20, 100, 0.999), 3)
    0.074
    """
    assert 0 <= count <= total, f"{count} of {total}"
    if count == 0:
        return 0.0
    threshold = 1 / (1 - confidence)
    observed_share = min(count / total, 1 - _EDGE)

    def excess(limit: float) -> float:
        return float(np.log(share_evidence(count, total, limit)) - np.log(threshold))

    if excess(_EDGE) <= 0:
        return 0.0
    return float(brentq(excess, _EDGE, observed_share, xtol=1e-6)) if excess(observed_share) < 0 else observed_share
