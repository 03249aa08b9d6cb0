"""Checks of users without a usable answer: users who disconnect, who are refused, who get an empty slate."""

from __future__ import annotations

from typing import Final, NamedTuple

from shortlist.rollout.checks.health import MAX_RATIO_TO_STABLE, CheckResult
from shortlist.rollout.evidence.rollout_evidence import StepEvidence, TrackEvidence
from shortlist.rollout.evidence.sequential import lower_bound, share_evidence
from shortlist.spec.serving import Canary, Guardrails

_ANY_SHARE: Final = (1.0, 1.0)
"""Uniform beta prior of the canary's share of the affected users."""


def disconnects(step_evidence: StepEvidence, whole: StepEvidence, limits: Guardrails) -> CheckResult:
    """Breach when far more users of the canary than of the stable track disconnect before an answer.

    A single disconnect is no evidence against a release. Users are counted, not requests, and compared with the stable
    track, to which one affected user is added. Without users of the stable track there is nothing to compare with.
    """
    canary, stable = step_evidence.canary, whole.stable
    disconnected_users, users = canary.disconnected_users, max(canary.users, canary.disconnected_users)
    bound = lower_bound(disconnected_users, users, limits.confidence)
    limit = max(limits.max_error_rate, MAX_RATIO_TO_STABLE * _smoothed_share(stable.disconnected_users, stable.users))
    numbers = {"requests": canary.disconnected, "users": disconnected_users, "low": bound, "limit": limit}
    counts = f"{disconnected_users:,} of {users:,} users of the canary went away before an answer"
    if bound > limit and stable.users:
        rate = f"{stable.disconnected_users:,} of {stable.users:,} of the stable track"
        return CheckResult("disconnects", "breach", f"{counts}, {rate}", numbers)
    return CheckResult("disconnects", "ok", f"{counts} ({canary.disconnected:,} requests)", numbers)


def refusals(step_evidence: StepEvidence, whole: StepEvidence, policy: Canary, step: int) -> CheckResult:
    """Breach when the canary refuses users (4xx) whom the stable track would answer.

    Wrong requests are refused on either track. Users are counted, so one client with many wrong requests counts once.
    """

    def count_users(track: TrackEvidence) -> _AffectedUsers:
        return _AffectedUsers(track.refused_users, max(track.users, track.refused_users))

    tracks = count_users(step_evidence.canary), count_users(step_evidence.stable), count_users(whole.stable)
    return _compare_users("refusals", "were refused", *tracks, policy, step)


def slates(step_evidence: StepEvidence, whole: StepEvidence, policy: Canary, step: int) -> CheckResult:
    """Breach when the canary gives empty slates to more users than the stable track."""

    def count_users(track: TrackEvidence) -> _AffectedUsers:
        return _AffectedUsers(track.empty_slate_users, track.slate_users)

    tracks = count_users(step_evidence.canary), count_users(step_evidence.stable), count_users(whole.stable)
    return _compare_users("slates", "got an empty slate", *tracks, policy, step)


class _AffectedUsers(NamedTuple):
    affected: int
    """Users to whom the event happened at least once."""
    users: int
    """All users of the track."""

    @property
    def share(self) -> float:
        return self.affected / self.users if self.users else 0.0


def _compare_users(
    name: str,
    event_text: str,
    canary: _AffectedUsers,
    stable: _AffectedUsers,
    stable_overall: _AffectedUsers,
    policy: Canary,
    step: int,
) -> CheckResult:
    """Return the result of a check of an event that happens to users: breach when more of the canary's are affected.

    Users are assigned to the canary at random, with the declared share. If the track does not matter, the affected
    users are a random sample, with the same share on the canary. The test of that share is valid for all analyses of
    all steps together. A difference of at most `max_error_rate` is accepted. Without users of the stable track there is
    nothing to compare with.

    Args:
        name: Name of the check.
        event_text: What happens to the users, for the reason.
        canary: Canary users at this step.
        stable: Stable users at this step.
        stable_overall: Stable users of all steps; used at 100 %, where the check only waits.
        policy: The declared rollout.
        step: Number of the step.
    """
    limits, declared = policy.guardrails, policy.steps[step] / 100
    reference = stable if declared < 1 else stable_overall
    counts = f"{canary.affected:,} of {canary.users:,} users of the canary {event_text}"
    rate = f"{reference.affected:,} of {reference.users:,} of the stable track"
    numbers = {
        "users": canary.affected,
        "share": canary.share,
        "stable_users": reference.affected,
        "stable_share": reference.share,
    }
    if not reference.users:
        return CheckResult(name, "ok", f"{counts}; the stable track has no such users to compare with", numbers)
    if declared == 1:
        low = lower_bound(canary.affected, canary.users, limits.confidence)
        is_excessive = low > max(
            limits.max_error_rate, MAX_RATIO_TO_STABLE * _smoothed_share(reference.affected, reference.users)
        )
        return CheckResult(name, "wait" if is_excessive else "ok", f"{counts}, {rate}", numbers | {"low": low})
    odds = share_evidence(canary.affected, canary.affected + stable.affected, declared, _ANY_SHARE)
    is_excessive = canary.share - stable.share > limits.max_error_rate
    is_certain = odds > len(policy.steps) / (1 - limits.confidence)
    return CheckResult(
        name, "breach" if is_excessive and is_certain else "ok", f"{counts}, {rate}", numbers | {"odds": odds}
    )


def _smoothed_share(affected: int, users: int) -> float:
    return min((affected + 1) / (max(users, affected) + 1), 1.0)
