"""The difference of two tracks' per-user means while users move from one to the other, with its variance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

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
    estimate, variance = _least_squares(value, stable[:, both], canary[:, both])
    return Difference(estimate, variance, *known)


def _least_squares(value: Floats, stable: Bools, canary: Bools) -> tuple[float, float]:
    # All of shape (users, steps).
    stable_n, canary_n = stable.sum(axis=0), canary.sum(axis=0)
    share = canary_n / (stable_n + canary_n)
    information = float((stable_n * share).sum())
    weight = canary - share * (stable | canary)
    estimate = float((weight * value).sum() / information)
    level = [(value * track).sum(axis=0) / track.sum(axis=0) for track in (stable, canary)]
    residual = stable * (value - level[0]) + canary * (value - level[1])
    # A user is on the canary at steps whose share passes the user's hash: Cov = smaller share * (1 - larger share).
    redraws = np.minimum.outer(share, share) * (1 - np.maximum.outer(share, share))
    drawn = float(((residual @ redraws) * residual).sum() + PRETEND * np.trace(redraws))
    pretended = PRETEND * float(((1 - share) ** 2 + share**2).sum())
    robust = float(((weight * residual).sum(axis=1) ** 2).sum()) + pretended
    return estimate, max(drawn, robust) / information**2


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
