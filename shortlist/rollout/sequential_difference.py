"""Two tracks' per-user means compared while users move from one to the other, as a difference or as a ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from shortlist.rollout.sequential import Interval, mixture_interval

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

PRETEND: Final = 0.5
"""Squared residuals of two pretended users, one with the value 0 and one with 1, that are added to every variance: a
handful of equal values is not certainty (Agresti and Coull, 1998)."""


@dataclass(frozen=True)
class UserValues:
    """What users did with what they were shown, by step of the rollout."""

    shown: Floats
    """Items shown whose outcome is known, shape (users, steps)."""
    positive: Floats
    """Those with a positive label, same shape."""
    canary: Bools
    """Whether the canary chose them, same shape; of no meaning where nothing was shown."""


@dataclass(frozen=True)
class Contrast:
    """The canary's level minus any multiple of the stable track's: its variance is quadratic in the multiple."""

    canary: float
    """Level over the steps at which both tracks have users, each step with the weight that it has in the difference."""
    stable: float
    randomization: tuple[float, float, float]
    """Randomization variance, from drawing again who is on the canary: of the canary's part, twice the covariance, of
    the other's."""
    robust: tuple[float, float, float]
    """Variance that is robust to tracks of unequal variance, likewise."""

    def at(self, multiple: float) -> tuple[float, float]:
        """Return estimate and variance of the canary's level minus this multiple of the stable track's."""
        powers = np.array([1.0, multiple, multiple**2])
        variance = max(float(powers @ self.randomization), float(powers @ self.robust))
        return self.canary - multiple * self.stable, variance


@dataclass(frozen=True)
class Difference:
    """Canary minus stable."""

    value: float
    variance: float
    """Infinite when a track has no users."""
    stable_users: int
    """Users with outcomes, at steps where both tracks have some."""
    canary_users: int
    stable_mean: float
    """Mean of its users' values; NaN without any."""
    canary_mean: float
    contrast: Contrast | None = None
    """What the difference is the multiple 1 of; None when a track has no users."""


NO_DIFFERENCE: Final = Difference(float("nan"), float("inf"), 0, 0, float("nan"), float("nan"))
"""While nothing is known of any user."""


def difference(values: UserValues) -> Difference:
    """Return the canary's mean value per user minus the stable track's, compared within each step.

    A user's value is the mean label of what that user was shown on one track at one step. Users are compared only with
    users of the same step: a rollout gives the canary more users later, so a KPI that changes during the day would
    otherwise look like a difference of models (Crook, Frasca, Kohavi and Longbotham, 2009, "Seven Pitfalls to Avoid
    when Running Controlled Experiments on the Web"). Steps are joined by least squares: one effect, a level per step;
    a step weighs n_canary * n_stable / (n_canary + n_stable), and one without stable users nothing.

    A user who moves to the canary at a later step counts on the stable track for the steps before and on the canary for
    those after. That the two values are of one person is kept in the variance, which is the larger of two:
    that of drawing again who is on the canary (residuals of both tracks pooled, so that few canary users do no harm),
    and the one robust to tracks of unequal spread, clustered by user (Liang and Zeger, 1986).

    Args:
        values: Of all users.
    """
    seen = values.shown > 0
    tracks = seen & ~values.canary, seen & values.canary
    stable_n, canary_n = (track.sum(axis=0) for track in tracks)
    both = (stable_n > 0) & (canary_n > 0)
    stable, canary = (track & both for track in tracks)
    (stable_mean, stable_users), (canary_mean, canary_users) = (mean_of_users(values, one) for one in (stable, canary))
    known = stable_users, canary_users, stable_mean, canary_mean
    if not both.any():
        return Difference(float("nan"), float("inf"), *known)
    value = np.divide(values.positive, values.shown, out=np.zeros_like(values.positive), where=seen)[:, both]
    contrast = _least_squares(value, stable[:, both], canary[:, both])
    estimate, variance = contrast.at(1.0)
    return Difference(estimate, variance, *known, contrast=contrast)


def _least_squares(value: Floats, stable: Bools, canary: Bools) -> Contrast:
    # All of shape (users, steps).
    stable_n, canary_n = stable.sum(axis=0), canary.sum(axis=0)
    share = canary_n / (stable_n + canary_n)
    weights = stable_n * share
    information = float(weights.sum())
    levels = [(value * track).sum(axis=0) / track.sum(axis=0) for track in (canary, stable)]
    residuals = [track * (value - level) for track, level in zip((canary, stable), levels, strict=True)]
    # Products of residuals summed over users, by pairs of steps.
    canary_only, both, stable_only = (residuals[one].T @ residuals[other] for one, other in ((0, 0), (0, 1), (1, 1)))
    # A user is on the canary at steps whose share passes the user's hash: Cov = smaller share * (1 - larger share).
    redraws = np.minimum.outer(share, share) * (1 - np.maximum.outer(share, share))
    randomization = [(redraws * products).sum() for products in (canary_only, both, stable_only)]
    own, other = 1 - share, -share
    robust = [own @ canary_only @ own, own @ both @ other, other @ stable_only @ other]
    half = np.trace(redraws) / 2
    return Contrast(
        canary=float((weights * levels[0]).sum()) / information,
        stable=float((weights * levels[1]).sum()) / information,
        randomization=_variance(randomization, half, half, information),
        robust=_variance(robust, own @ own, other @ other, information),
    )


def _variance(sums: list[Any], canary: float, stable: float, information: float) -> tuple[float, float, float]:
    """Return the parts of a variance: of sums of products, with what pretended users add to either track's."""
    parts = sums[0] + PRETEND * canary, 2 * sums[1], sums[2] + PRETEND * stable
    one, both, other = (float(part) / information**2 for part in parts)
    return one, both, other


FARTHEST: Final = 1_000.0
"""Multiple of the stable track's level beyond which a ratio counts as unbounded."""


def ratio_interval(contrast: Contrast | None, alpha: float, scale: float) -> Interval:
    """Return bounds of canary / stable - 1 that cover the truth at every look, together, with probability 1 - alpha.

    They hold every relative change for which the canary's level minus so many times the stable track's has an interval
    with 0 in it (`mixture_interval`; of one look: Fieller, 1954, "Some Problems in Interval Estimation").

    Args:
        contrast: Of the two tracks; None when nothing is known.
        alpha: As of `mixture_interval`.
        scale: Likewise: of differences, not of ratios; of a multiple above 1, so many times as large.

    Returns:
        From -1 to infinity at most; the upper bound is infinite while the stable track's level may be 0.
    """
    if contrast is None or contrast.stable <= 0:
        return Interval(-1.0, float("nan"), np.inf)

    def bound(multiple: float, side: float) -> float:
        estimate, variance = contrast.at(multiple)
        between = mixture_interval(estimate, variance, alpha, scale * max(multiple, 1.0))
        return between.low if side < 0 else between.high

    ratio = contrast.canary / contrast.stable
    far = FARTHEST * max(ratio, 1.0)
    low = brentq(bound, 0.0, ratio, args=(-1,)) if ratio > 0 and bound(0.0, -1) > 0 else 0.0
    high = brentq(bound, ratio, far, args=(1,)) if bound(far, 1) < 0 else np.inf
    return Interval(float(low) - 1, ratio - 1, float(high) - 1)


def mean_of_users(values: UserValues, chosen: Bools) -> tuple[float, int]:
    """Return the mean of users' values, and how many users have one.

    Args:
        values: What users did.
        chosen: Which cells count, shape (users, steps).

    Returns:
        The mean over users of each one's share of positives in those cells, NaN without users; their number.
    """
    shown, positive = (np.where(chosen, part, 0).sum(axis=1) for part in (values.shown, values.positive))
    users = shown > 0
    return (float((positive[users] / shown[users]).mean()) if users.any() else float("nan")), int(users.sum())
