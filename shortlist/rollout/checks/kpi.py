"""The checks of the KPI and of guarded labels: a non-inferiority test of the canary against the stable track."""

from __future__ import annotations

from typing import Final

import numpy as np

from shortlist.rollout.checks.health import CheckResult, not_compared
from shortlist.rollout.evidence.rollout_evidence import RolloutEvidence, kpi_summary
from shortlist.rollout.evidence.sequential import AnytimeInterval, mixture_interval
from shortlist.rollout.evidence.sequential_difference import NO_DIFFERENCE, TrackDifference, ratio_interval
from shortlist.spec.serving import Canary

MIN_USERS: Final = 10
"""Fewest users of each track before the mean of their values counts as normally distributed."""


def kpi(evidence: RolloutEvidence, policy: Canary, step: int, retirement: str = "") -> CheckResult:
    """Breach when the canary is shown to be worse; wait until a drop larger than allowed is ruled out.

    The drop must be ruled out at the last step before 100 %; earlier steps only need some outcomes on both tracks. At
    100 % no stable users remain, but outcomes of earlier steps still arrive. The interval is valid for all analyses
    together, so a drop that was ruled out once stays ruled out when the lower bound later moves back a little; at 100 %
    the check therefore waits only while the difference itself is a larger drop than allowed.

    With a retired stable version (`retirement`: which one, and why) it only waits for outcomes of the canary.
    """
    difference, limits = evidence.kpi, policy.kpi
    if len(policy.steps) == 1:
        reason = "steps: [100] leaves no stable track to compare with; declare a smaller step before it"
        return CheckResult("kpi", "breach", reason)
    estimate = kpi_interval(difference, policy)
    numbers = kpi_summary(difference) | _bounds(estimate)
    difference_text = _describe_difference("KPI", estimate, difference, policy)
    if retirement:
        return _without_comparison("kpi", "", retirement, difference, policy, step)
    if estimate.high < 0:
        return CheckResult("kpi", "breach", f"{difference_text}: the canary is worse", numbers)
    if missing_text := _missing_evidence(difference, policy, step):
        return CheckResult("kpi", "wait", missing_text, numbers)
    if _drop_in_question(estimate, limits.max_drop, policy, step):
        return CheckResult(
            "kpi", "wait", f"{difference_text}: a drop of {limits.max_drop:g} is not ruled out yet", numbers
        )
    return CheckResult("kpi", "ok", difference_text, numbers)


def guards(evidence: RolloutEvidence, policy: Canary, step: int, retirement: str = "") -> tuple[CheckResult, ...]:
    """Return one result per guard: breach when its label is shown to fall by more than allowed; wait like the KPI."""
    return tuple(
        _guard_check(name, evidence.guards.get(name, NO_DIFFERENCE), policy, step, retirement) for name in policy.guards
    )


def _guard_check(label: str, difference: TrackDifference, policy: Canary, step: int, retirement: str) -> CheckResult:
    guard, name = policy.guards[label], f"guard {label}"
    if retirement:
        return _without_comparison(name, f"{label}: ", retirement, difference, policy, step)
    estimate = guard_interval(label, difference, policy)
    numbers = kpi_summary(difference) | _bounds(estimate) | {"allowed": guard.allowed, "relative": guard.is_relative}
    difference_text = _describe_difference(label, estimate, difference, policy, guard.is_relative)
    allowed = f"{100 * guard.allowed:g}% of the stable track's" if guard.is_relative else f"{guard.allowed:g}"
    if estimate.high < -guard.allowed:
        return CheckResult(name, "breach", f"{difference_text}: it falls by more than {allowed}", numbers)
    if missing_text := _missing_evidence(difference, policy, step):
        return CheckResult(name, "wait", f"{label}: {missing_text}", numbers)
    if _drop_in_question(estimate, guard.allowed, policy, step):
        return CheckResult(name, "wait", f"{difference_text}: a drop of {allowed} is not ruled out yet", numbers)
    return CheckResult(name, "ok", difference_text, numbers)


def _without_comparison(
    name: str, prefix: str, retirement: str, difference: TrackDifference, policy: Canary, step: int
) -> CheckResult:
    """Return that a difference is not compared; wait for the outcomes of the canary: none are never a success."""
    numbers = kpi_summary(difference)
    if missing_text := _too_few_outcomes("canary", difference.canary_users, policy, step):
        return CheckResult(name, "wait", f"{prefix}{missing_text}", numbers)
    return not_compared(name, retirement, numbers)


def kpi_interval(difference: TrackDifference, policy: Canary) -> AnytimeInterval:
    """Return the interval of the canary's KPI minus the stable track's; unbounded while there are too few users."""
    return mixture_interval(difference.value, _known_variance(difference), policy.alpha_per_test, policy.kpi.scale)


def guard_interval(label: str, difference: TrackDifference, policy: Canary) -> AnytimeInterval:
    """Return the interval of a guarded label, in the unit of its limit; unbounded while there are too few users.

    Args:
        label: Name of the guarded label.
        difference: Difference of the label between the tracks.
        policy: The declared rollout.

    Returns:
        Interval of the canary's rate minus the stable track's; for a relative limit, of the ratio of both minus 1.
    """
    guard, alpha = policy.guards[label], policy.alpha_per_test
    scale = policy.kpi.scale if guard.scale is None else guard.scale
    if not guard.is_relative:
        return mixture_interval(difference.value, _known_variance(difference), alpha, scale)
    return ratio_interval(difference.contrast if np.isfinite(_known_variance(difference)) else None, alpha, scale)


def _known_variance(difference: TrackDifference) -> float:
    return float("inf") if min(difference.stable_users, difference.canary_users) < MIN_USERS else difference.variance


def _bounds(estimate: AnytimeInterval) -> dict[str, float]:
    return {"low": estimate.low, "high": estimate.high} if estimate.is_bounded else {}


def _drop_in_question(estimate: AnytimeInterval, allowed: float, policy: Canary, step: int) -> bool:
    """Whether a drop larger than allowed is possible: by the lower bound before 100 %, by the estimate at 100 %."""
    if not _is_decisive(policy, step):
        return False
    at_100 = step == len(policy.steps) - 1
    return (estimate.value if at_100 and estimate.is_bounded else estimate.low) <= -allowed


def _is_decisive(policy: Canary, step: int) -> bool:
    """Whether the KPI must be shown not to be worse at a step: at the one before 100 %, and at 100 %."""
    return step >= len(policy.steps) - 2


def _missing_evidence(difference: TrackDifference, policy: Canary, step: int) -> str:
    for name, users in (("canary", difference.canary_users), ("stable track", difference.stable_users)):
        if missing_text := _too_few_outcomes(name, users, policy, step):
            return missing_text
    if (
        _is_decisive(policy, step)
        and difference.stable_mean == difference.canary_mean
        and difference.stable_mean in {0.0, 1.0}
    ):
        return f"every outcome is {difference.stable_mean:.0f} on both tracks, so they cannot be compared"
    return ""


def _too_few_outcomes(name: str, users: int, policy: Canary, step: int) -> str:
    min_users = policy.min_users if _is_decisive(policy, step) else 1
    if users >= min_users:
        return ""
    shortage_text = f"{users:,} users of the {name} have outcomes, {min_users:,} are needed"
    return shortage_text if users else f"no outcome of the {name} has arrived"


def _describe_difference(
    label: str, estimate: AnytimeInterval, difference: TrackDifference, policy: Canary, relative: bool = False
) -> str:
    users = f"{difference.canary_users:,} and {difference.stable_users:,} users"
    if not estimate.is_bounded:
        return f"{label} difference not known yet ({users} with outcomes)"
    value, low, high = (
        f"{number:+.1%}" if relative else f"{number:+.4f}" for number in (estimate.value, estimate.low, estimate.high)
    )
    level = f"{100 * (1 - policy.alpha_per_test):.4g}% at every look"
    return f"{label} difference {value} in [{low}, {high}] ({level}; {users})"
