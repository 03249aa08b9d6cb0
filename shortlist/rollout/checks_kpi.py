"""The checks of what users do: is the canary worse, is it shown not to be, or is it too early to say?"""

from __future__ import annotations

from typing import Final

import numpy as np

from shortlist.rollout.checks import Check
from shortlist.rollout.evidence import RolloutEvidence, kpi_summary
from shortlist.rollout.sequential import Interval, mixture_interval
from shortlist.rollout.sequential_difference import NO_DIFFERENCE, Difference, ratio_interval
from shortlist.spec.serving import Canary

FEWEST_USERS: Final = 10
"""Of each track, before the mean of their values is taken for normally distributed."""


def kpi(evidence: RolloutEvidence, policy: Canary, step: int) -> Check:
    """Breach as soon as the canary is shown to be worse; wait until it is shown not to be worse by more than allowed.

    The second is asked where it can be answered: at the step before 100 %. Steps before only need some outcomes on both
    tracks. At 100 % nobody is left to compare with, but outcomes of earlier steps still arrive. The interval holds at
    all looks together, so what it once ruled out stays ruled out when its lower bound moves back a little; the rollout
    waits there only while the difference itself is a larger drop than is allowed.
    """
    seen, limits = evidence.kpi, policy.kpi
    if len(policy.steps) == 1:
        reason = "steps: [100] leaves no stable track to compare with; declare a smaller step before it"
        return Check("kpi", "breach", reason)
    between = interval(seen, policy)
    numbers = kpi_summary(seen) | _bounds(between)
    shown = _shown("KPI", between, seen, policy)
    if between.high < 0:
        return Check("kpi", "breach", f"{shown}: the canary is worse", numbers)
    if missing := _missing(seen, policy, step):
        return Check("kpi", "wait", missing, numbers)
    if _drop_in_question(between, limits.max_drop, policy, step):
        return Check("kpi", "wait", f"{shown}: a drop of {limits.max_drop:g} is not ruled out yet", numbers)
    return Check("kpi", "ok", shown, numbers)


def guards(evidence: RolloutEvidence, policy: Canary, step: int) -> tuple[Check, ...]:
    """Return a check per guard: breach when its label is shown to fall by more than allowed; wait as the KPI does."""
    return tuple(_guard(name, evidence.guards.get(name, NO_DIFFERENCE), policy, step) for name in policy.guards)


def _guard(label: str, seen: Difference, policy: Canary, step: int) -> Check:
    guard, name = policy.guards[label], f"guard {label}"
    between = guard_interval(label, seen, policy)
    numbers = kpi_summary(seen) | _bounds(between) | {"allowed": guard.allowed, "relative": guard.is_relative}
    shown = _shown(label, between, seen, policy, guard.is_relative)
    allowed = f"{100 * guard.allowed:g}% of the stable track's" if guard.is_relative else f"{guard.allowed:g}"
    if between.high < -guard.allowed:
        return Check(name, "breach", f"{shown}: it falls by more than {allowed}", numbers)
    if missing := _missing(seen, policy, step):
        return Check(name, "wait", f"{label}: {missing}", numbers)
    if _drop_in_question(between, guard.allowed, policy, step):
        return Check(name, "wait", f"{shown}: a drop of {allowed} is not ruled out yet", numbers)
    return Check(name, "ok", shown, numbers)


def interval(seen: Difference, policy: Canary) -> Interval:
    """Return the interval of the canary's KPI minus the stable track's; unbounded while there are too few users."""
    return mixture_interval(seen.value, _known_variance(seen), policy.alpha_of_test, policy.kpi.scale)


def guard_interval(label: str, seen: Difference, policy: Canary) -> Interval:
    """Return the interval of a guard's label, in the unit of its limit; unbounded while there are too few users.

    Args:
        label: Of the guard.
        seen: What is known of the label.
        policy: The declared rollout.

    Returns:
        Of the canary's rate minus the stable track's; where the limit is relative, of the first as a share of the
        second, less 1.
    """
    guard, alpha = policy.guards[label], policy.alpha_of_test
    scale = policy.kpi.scale if guard.scale is None else guard.scale
    if not guard.is_relative:
        return mixture_interval(seen.value, _known_variance(seen), alpha, scale)
    return ratio_interval(seen.contrast if np.isfinite(_known_variance(seen)) else None, alpha, scale)


def _known_variance(seen: Difference) -> float:
    return float("inf") if min(seen.stable_users, seen.canary_users) < FEWEST_USERS else seen.variance


def _bounds(between: Interval) -> dict[str, float]:
    return {"low": between.low, "high": between.high} if between.is_bounded else {}


def _drop_in_question(between: Interval, allowed: float, policy: Canary, step: int) -> bool:
    """Whether the allowed drop is in question: by the lower bound before 100 %, by the difference itself at 100 %."""
    if not _is_decisive(policy, step):
        return False
    at_100 = step == len(policy.steps) - 1
    return (between.value if at_100 and between.is_bounded else between.low) <= -allowed


def _is_decisive(policy: Canary, step: int) -> bool:
    """Whether a step is the one before 100 %, or 100 %: there the KPI has to be shown not to be worse."""
    return step >= len(policy.steps) - 2


def _missing(seen: Difference, policy: Canary, step: int) -> str:
    decisive = _is_decisive(policy, step)
    needed = policy.min_users if decisive else 1
    for name, users in (("canary", seen.canary_users), ("stable track", seen.stable_users)):
        if users < needed:
            few = f"{users:,} users of the {name} have outcomes, {needed:,} are needed"
            return f"no outcome of the {name} has arrived" if not users else few
    if decisive and seen.stable_mean == seen.canary_mean and seen.stable_mean in {0.0, 1.0}:
        return f"every outcome is {seen.stable_mean:.0f} on both tracks, so they cannot be compared"
    return ""


def _shown(what: str, between: Interval, seen: Difference, policy: Canary, relative: bool = False) -> str:
    users = f"{seen.canary_users:,} and {seen.stable_users:,} users"
    if not between.is_bounded:
        return f"{what} difference not known yet ({users} with outcomes)"
    value, low, high = (
        f"{one:+.1%}" if relative else f"{one:+.4f}" for one in (between.value, between.low, between.high)
    )
    level = f"{100 * (1 - policy.alpha_of_test):.4g}% at every look"
    return f"{what} difference {value} in [{low}, {high}] ({level}; {users})"
