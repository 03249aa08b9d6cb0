"""The check of what users do: is the canary worse, is it shown not to be, or is it too early to say?"""

from __future__ import annotations

from typing import Final

import numpy as np

from shortlist.rollout.checks import Check
from shortlist.rollout.evidence import RolloutEvidence, kpi_summary
from shortlist.rollout.sequential import Interval, mixture_interval
from shortlist.rollout.sequential_difference import Difference
from shortlist.spec.serving import Canary

FEWEST_USERS: Final = 10
"""Of each track, before the mean of their values is taken for normally distributed."""


def kpi(evidence: RolloutEvidence, policy: Canary, step: int) -> Check:
    """Breach as soon as the canary is shown to be worse; wait until it is shown not to be worse by more than allowed.

    The second is asked where it still can be answered: at the step before 100 %, and again at 100 %, where outcomes of
    earlier steps may still arrive. Steps before only need some outcomes on both tracks.
    """
    seen, limits = evidence.kpi, policy.kpi
    if len(policy.steps) == 1:
        reason = "steps: [100] leaves no stable track to compare with; declare a smaller step before it"
        return Check("kpi", "breach", reason)
    between = interval(seen, policy)
    numbers = kpi_summary(seen)
    if np.isfinite(between.low):
        numbers |= {"low": between.low, "high": between.high}
    if between.high < 0:
        return Check("kpi", "breach", f"{_difference(seen, between, policy)}: the canary is worse", numbers)
    missing = _missing(seen, policy, last=step >= len(policy.steps) - 2)
    if missing:
        return Check("kpi", "wait", missing, numbers)
    if step >= len(policy.steps) - 2 and between.low <= -limits.max_drop:
        reason = f"{_difference(seen, between, policy)}: a drop of {limits.max_drop:g} is not ruled out yet"
        return Check("kpi", "wait", reason, numbers)
    return Check("kpi", "ok", _difference(seen, between, policy), numbers)


def interval(seen: Difference, policy: Canary) -> Interval:
    """Return the interval of the canary's KPI minus the stable track's; unbounded while there are too few users."""
    few = min(seen.stable_users, seen.canary_users) < FEWEST_USERS
    return mixture_interval(seen.value, np.inf if few else seen.variance, policy.kpi.alpha, policy.kpi.scale)


def _missing(seen: Difference, policy: Canary, last: bool) -> str:
    needed = policy.min_users if last else 1
    for name, users in (("canary", seen.canary_users), ("stable track", seen.stable_users)):
        if users < needed:
            few = f"{users:,} users of the {name} have outcomes, {needed:,} are needed"
            return f"no outcome of the {name} has arrived" if not users else few
    if last and seen.stable_mean == seen.canary_mean and seen.stable_mean in {0.0, 1.0}:
        return f"every outcome is {seen.stable_mean:.0f} on both tracks, which compares nothing"
    return ""


def _difference(seen: Difference, between: Interval, policy: Canary) -> str:
    users = f"{seen.canary_users:,} and {seen.stable_users:,} users"
    level = f"{1 - policy.kpi.alpha:.0%} at every look"
    if not np.isfinite(between.low):
        return f"KPI difference not known yet ({users} with outcomes)"
    return f"KPI difference {seen.value:+.4f} in [{between.low:+.4f}, {between.high:+.4f}] ({level}; {users})"
