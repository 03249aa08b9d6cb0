"""Comparison of two tracks by the users' mean values while users move between them: difference and ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from shortlist.rollout.evidence.sequential import AnytimeInterval, mixture_interval

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

PSEUDO_RESIDUALS: Final = 0.5
"""Squared residuals of two pseudo-users, with the values 0 and 1, that are added to every variance: a handful of equal
values must not give a variance of 0 (Agresti and Coull, 1998)."""


@dataclass(frozen=True)
class UserValues:
    """Shown items and positive labels by user and step."""

    shown_items: Floats
    """Number of shown items with a known outcome, shape (users, steps)."""
    positive_items: Floats
    """Number of these items with a positive label, same shape."""
    canary: Bools
    """Whether the canary chose the items, same shape; meaningless where nothing was shown."""


@dataclass(frozen=True)
class Contrast:
    """The canary's level minus any multiple of the stable track's; its variance is quadratic in the multiple."""

    canary: float
    """Level over the steps at which both tracks have users, each step with its weight in the difference."""
    stable: float
    randomization: tuple[float, float, float]
    """Randomization variance, under redrawing the assignment of users: the canary's part, twice the covariance, the
    stable track's part."""
    robust: tuple[float, float, float]
    """Variance that is robust to unequal variances of the tracks, in the same three parts."""

    def difference_at(self, multiple: float) -> tuple[float, float]:
        """Return estimate and variance of the canary's level minus this multiple of the stable track's."""
        powers = np.array([1.0, multiple, multiple**2])
        variance = max(float(powers @ self.randomization), float(powers @ self.robust))
        return self.canary - multiple * self.stable, variance


@dataclass(frozen=True)
class TrackDifference:
    """Difference between the tracks, canary minus stable."""

    value: float
    variance: float
    """Infinite when a track has no users."""
    stable_users: int
    """Users with outcomes, at steps where both tracks have some."""
    canary_users: int
    stable_mean: float
    """Mean of the stable users' values; NaN without users."""
    canary_mean: float
    contrast: Contrast | None = None
    """The contrast, of which the difference is the value at the multiple 1; None when a track has no users."""


NO_DIFFERENCE: Final = TrackDifference(float("nan"), float("inf"), 0, 0, float("nan"), float("nan"))
"""The difference without any outcomes."""


def difference(values: UserValues) -> TrackDifference:
    """Return the canary's mean value per user minus the stable track's, compared within each step.

    A user's value is the mean label of the items shown to that user on one track at one step. Users are compared only
    within a step: the canary gets more users at later steps, so a KPI that changes during the day would otherwise look
    like a difference of models (Crook, Frasca, Kohavi and Longbotham, 2009, "Seven Pitfalls to Avoid when Running
    Controlled Experiments on the Web"). Steps are combined by least squares, with one effect and a level per step; the
    weight of a step is n_canary * n_stable / (n_canary + n_stable), which is 0 without stable users.

    A user who moves to the canary counts on the stable track before and on the canary afterwards. The variance takes
    into account that both values are of one user. It is the larger of two: the randomization variance (residuals of
    both tracks pooled, so that few canary users do no harm), and the variance robust to unequal variances of the
    tracks, clustered by user (Liang and Zeger, 1986).

    Args:
        values: Values of all users.
    """
    has_outcome = values.shown_items > 0
    tracks = has_outcome & ~values.canary, has_outcome & values.canary
    stable_n, canary_n = (track.sum(axis=0) for track in tracks)
    has_both_tracks = (stable_n > 0) & (canary_n > 0)
    stable, canary = (track & has_both_tracks for track in tracks)
    (stable_mean, stable_users), (canary_mean, canary_users) = (
        mean_of_users(values, track) for track in (stable, canary)
    )
    track_statistics = stable_users, canary_users, stable_mean, canary_mean
    if not has_both_tracks.any():
        return TrackDifference(float("nan"), float("inf"), *track_statistics)
    value = np.divide(
        values.positive_items, values.shown_items, out=np.zeros_like(values.positive_items), where=has_outcome
    )[:, has_both_tracks]
    contrast = _least_squares(value, stable[:, has_both_tracks], canary[:, has_both_tracks])
    estimate, variance = contrast.difference_at(1.0)
    return TrackDifference(estimate, variance, *track_statistics, contrast=contrast)


def _least_squares(value: Floats, stable: Bools, canary: Bools) -> Contrast:
    # All of shape (users, steps).
    stable_n, canary_n = stable.sum(axis=0), canary.sum(axis=0)
    share = canary_n / (stable_n + canary_n)
    weights = stable_n * share
    information = float(weights.sum())
    levels = [(value * track).sum(axis=0) / track.sum(axis=0) for track in (canary, stable)]
    residuals = [track * (value - level) for track, level in zip((canary, stable), levels, strict=True)]
    # Products of residuals summed over users, by pairs of steps.
    canary_only, cross, stable_only = (residuals[row].T @ residuals[column] for row, column in ((0, 0), (0, 1), (1, 1)))
    # A user is on the canary at steps whose share passes the user's hash: Cov = smaller share * (1 - larger share).
    redraws = np.minimum.outer(share, share) * (1 - np.maximum.outer(share, share))
    randomization = [(redraws * products).sum() for products in (canary_only, cross, stable_only)]
    canary_weights, stable_weights = 1 - share, -share
    robust = [
        canary_weights @ canary_only @ canary_weights,
        canary_weights @ cross @ stable_weights,
        stable_weights @ stable_only @ stable_weights,
    ]
    half = np.trace(redraws) / 2
    return Contrast(
        canary=float((weights * levels[0]).sum()) / information,
        stable=float((weights * levels[1]).sum()) / information,
        randomization=_variance(randomization, half, half, information),
        robust=_variance(robust, canary_weights @ canary_weights, stable_weights @ stable_weights, information),
    )


def _variance(sums: list[Any], canary: float, stable: float, information: float) -> tuple[float, float, float]:
    """Return the three parts of a variance, from sums of products and the weights of the pseudo-users."""
    parts = sums[0] + PSEUDO_RESIDUALS * canary, 2 * sums[1], sums[2] + PSEUDO_RESIDUALS * stable
    canary_part, cross_part, stable_part = (float(part) / information**2 for part in parts)
    return canary_part, cross_part, stable_part


MAX_MULTIPLE: Final = 1_000.0
"""Multiple of the stable track's level above which a ratio counts as unbounded."""


def ratio_interval(contrast: Contrast | None, alpha: float, scale: float) -> AnytimeInterval:
    """Return bounds of canary / stable - 1 that cover the truth at all analyses together with probability 1 - alpha.

    The interval contains every ratio for which the contrast at that multiple has an interval that contains 0
    (`mixture_interval`; for a single analysis: Fieller, 1954, "Some Problems in Interval Estimation").

    Args:
        contrast: Contrast of the two tracks; None without data.
        alpha: As for `mixture_interval`.
        scale: As for `mixture_interval`, for differences; multiplied by multiples above 1.

    Returns:
        Bounds between -1 and infinity; the upper bound is infinite while the stable track's level may be 0.
    """
    if contrast is None or contrast.stable <= 0:
        return AnytimeInterval(-1.0, float("nan"), np.inf)

    def bound(multiple: float, side: float) -> float:
        estimate, variance = contrast.difference_at(multiple)
        interval = mixture_interval(estimate, variance, alpha, scale * max(multiple, 1.0))
        return interval.low if side < 0 else interval.high

    ratio = contrast.canary / contrast.stable
    max_multiple = MAX_MULTIPLE * max(ratio, 1.0)
    low = brentq(bound, 0.0, ratio, args=(-1,)) if ratio > 0 and bound(0.0, -1) > 0 else 0.0
    high = brentq(bound, ratio, max_multiple, args=(1,)) if bound(max_multiple, 1) < 0 else np.inf
    return AnytimeInterval(float(low) - 1, ratio - 1, float(high) - 1)


def mean_of_users(values: UserValues, cells: Bools) -> tuple[float, int]:
    """Return the mean of the users' values, and the number of users with a value.

    Args:
        values: Values of the users.
        cells: Which cells count, shape (users, steps).

    Returns:
        The mean over users of their share of positive items in those cells, NaN without users; the number of users.
    """
    shown_per_user, positive_per_user = (
        np.where(cells, part, 0).sum(axis=1) for part in (values.shown_items, values.positive_items)
    )
    users = shown_per_user > 0
    return (float((positive_per_user[users] / shown_per_user[users]).mean()) if users.any() else float("nan")), int(
        users.sum()
    )
