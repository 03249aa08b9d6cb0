"""An estimate of value with its interval by user, or the reason why it is unknown."""

from __future__ import annotations

from math import ceil
from typing import Final

import numpy as np
from pydantic import Field

from shortlist.evaluation.metrics.records import Record
from shortlist.evaluation.value.base import Contributions
from shortlist.evaluation.value.evidence import Floats, Ints

MAX_UNSUPPORTED: Final = 0.15
"""Largest share of a list without support; above it the value is unknown."""
MIN_EFFECTIVE_SAMPLES: Final = 50.0
"""Fewest effective samples; below, an interval by user is too narrow."""
DIFFERENCE_CONFIDENCE: Final = 0.98
"""Level of intervals of differences, so that lists of equal value are held in at most 4 % of the cases also where the
log explores little (`make bench NAME=value`)."""
_FEWEST_USERS: Final = 20


class LogExtent(Record):
    """How much a log explores."""

    days: float = Field(gt=0)
    """Number of days of the requests."""
    explored: float = Field(ge=0, le=1)
    """Share of the requests whose slates were drawn."""


class ValueEstimate(Record):
    """Expected reward of a request's list; bounds are null where the value is unknown."""

    estimate: float | None
    low: float | None = None
    high: float | None = None
    effective_samples: float = Field(ge=0)
    unsupported: float = Field(ge=0, le=1)
    problem: str = ""
    """Why the value is unknown, and what would settle it; empty where it is known."""

    @property
    def is_known(self) -> bool:
        """Whether there is an interval."""
        return not self.problem


def estimate_value(contributions: Contributions, user: Ints, confidence: float, extent: LogExtent) -> ValueEstimate:
    """Return the value with its interval by user; the interval is wider by the bias that may be in the estimate.

    Args:
        contributions: Contributions of the requests.
        user: Number of the user of each request, from 0.
        confidence: Level of the interval.
        extent: Extent of the log, for what would settle an unknown value.
    """
    problem = find_problem(contributions, user, extent)
    support = contributions.support
    numbers = {"effective_samples": support.effective_samples, "unsupported": support.unsupported}
    if problem:
        return ValueEstimate(estimate=contributions.value, problem=problem, **numbers)
    radius = interval_radius(contributions.by_request, user, confidence) + contributions.bias
    centre = float(contributions.by_request.mean())
    return ValueEstimate(estimate=contributions.value, low=centre - radius, high=centre + radius, **numbers)


def find_problem(contributions: Contributions, user: Ints, extent: LogExtent) -> str:
    """Return why a value is unknown, with the exploration and days that would settle it; empty where it is known."""
    users = int(np.unique(user).size)
    if users < _FEWEST_USERS:
        return f"{users} users with requests; wanted {_FEWEST_USERS} or more"
    if extent.explored == 0:
        return (
            "the log shows the same slate to every request of a kind, so nothing is known of others; declare"
            " ordering.explore, or log a share of requests at random (data.propensity)"
        )
    samples, unsupported = contributions.support.effective_samples, contributions.support.evident_unsupported
    if samples >= MIN_EFFECTIVE_SAMPLES and unsupported <= MAX_UNSUPPORTED:
        return ""
    # Samples grow with days and with the share; support with the share alone, as larger weights are cut.
    share = min(1.0, extent.explored * max(1.0, unsupported / MAX_UNSUPPORTED))
    days = extent.days * MIN_EFFECTIVE_SAMPLES / max(samples * share / extent.explored, 1e-9)
    settled = f"about {share:.0%} of requests explored for {max(1, ceil(min(days, 9_999)))} days would settle it"
    if unsupported > MAX_UNSUPPORTED:
        return f"{unsupported:.0%} of its places have no support in the log (at most {MAX_UNSUPPORTED:.0%}); {settled}"
    return f"{samples:.0f} effective samples (at least {MIN_EFFECTIVE_SAMPLES:.0f}); {settled}"


def interval_radius(by_request: Floats, user: Ints, confidence: float) -> float:
    """Return half the width of the interval of a mean over requests, which are correlated within users.

    The quantile is Student's, with as many degrees of freedom as the users' contributions are worth (Satterthwaite).
    """
    from scipy.special import ndtri, stdtrit  # scipy.stats has them as distributions, and takes a second to load

    residuals = np.bincount(user, by_request - by_request.mean())
    squares = residuals**2
    total = float(squares.sum())
    if total == 0:
        return 0.0
    freedom = max(total**2 / float((squares**2).sum()) - 1.0, 1.0)
    quantile = float(stdtrit(freedom, (1 + confidence) / 2) if freedom < 1e4 else ndtri((1 + confidence) / 2))
    return quantile * float(np.sqrt(total)) / by_request.size


class ValueDifference(Record):
    """Difference of the values of two lists on the same requests; bounds are null where it is unknown."""

    value: float | None
    low: float | None = None
    high: float | None = None
    problem: str = ""


def estimate_difference(
    candidate: Contributions, reference: Contributions, user: Ints, extent: LogExtent
) -> ValueDifference:
    """Return the paired difference of two lists, with the arguments of `estimate_value`."""
    difference = candidate.by_request - reference.by_request
    problem = find_problem(candidate, user, extent) or find_problem(reference, user, extent)
    value = float(difference.mean())
    if problem:
        return ValueDifference(value=value, problem=problem)
    radius = interval_radius(difference, user, DIFFERENCE_CONFIDENCE) + candidate.bias + reference.bias
    return ValueDifference(value=value, low=value - radius, high=value + radius)
