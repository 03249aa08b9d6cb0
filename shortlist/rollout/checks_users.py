"""The judge's checks of who gets an answer: users who go away, who are refused, whose slates hold no item."""

from __future__ import annotations

from typing import Final, NamedTuple

from shortlist.rollout.checks import AS_BAD, Check
from shortlist.rollout.evidence import StepEvidence, TrackEvidence
from shortlist.rollout.sequential import lower_bound, share_evidence
from shortlist.spec.serving import Canary, Guardrails

_ANY_SHARE: Final = (1.0, 1.0)
"""Beta prior of the canary's part of the users that something happened to: any part is as likely."""


def disconnects(now: StepEvidence, whole: StepEvidence, limits: Guardrails) -> Check:
    """Breach when far more of the canary's users than of the stable track's go away before an answer.

    A client that goes away says nothing of the release by itself: users count, not requests, and what they do on the
    stable track is the measure, with one user more who went away than was seen there.
    """
    canary, stable = now.canary, whole.stable
    gone, users = canary.disconnected_users, max(canary.users, canary.disconnected_users)
    bound = lower_bound(gone, users, limits.confidence)
    limit = max(limits.max_error_rate, AS_BAD * _usual(stable.disconnected_users, stable.users))
    numbers = {"requests": canary.disconnected, "users": gone, "low": bound, "limit": limit}
    counts = f"{gone:,} of {users:,} users of the canary went away before an answer"
    if bound > limit:
        rate = f"{stable.disconnected_users:,} of {stable.users:,} of the stable track"
        return Check("disconnects", "breach", f"{counts}, {rate}", numbers)
    return Check("disconnects", "ok", f"{counts} ({canary.disconnected:,} requests)", numbers)


def refusals(now: StepEvidence, whole: StepEvidence, policy: Canary, step: int) -> Check:
    """Breach when the canary refuses users (4xx) whom the stable track would answer.

    Whoever sends what is wrong is refused on either track: one such user with many requests is one user.
    """

    def counted(track: TrackEvidence) -> _Users:
        return _Users(track.refused_users, max(track.users, track.refused_users))

    tracks = counted(now.canary), counted(now.stable), counted(whole.stable)
    return _compare("refusals", "were refused", *tracks, policy, step)


def slates(now: StepEvidence, whole: StepEvidence, policy: Canary, step: int) -> Check:
    """Breach when the canary leaves users without any item whom the stable track would show some."""

    def counted(track: TrackEvidence) -> _Users:
        return _Users(track.empty_slate_users, track.slate_users)

    tracks = counted(now.canary), counted(now.stable), counted(whole.stable)
    return _compare("slates", "got an empty slate", *tracks, policy, step)


class _Users(NamedTuple):
    met: int
    """To whom it happened at least once."""
    users: int
    """All of them."""

    @property
    def share(self) -> float:
        return self.met / self.users if self.users else 0.0


def _compare(name: str, what: str, canary: _Users, stable: _Users, before: _Users, policy: Canary, step: int) -> Check:
    """Return whether something happens to more of the canary's users.

    Users are sent to the canary by chance, with the declared share. As long as it does not matter on which track they
    are, those to whom it happens are a sample of all, and as large a part of them is on the canary. The test of that
    part holds for all looks at all steps together. A difference of no more than `max_error_rate` is no reason.

    Args:
        name: Of the check.
        what: Happens.
        canary: At this step.
        stable: Likewise.
        before: Of the stable track, at all steps: at 100 % there is no other, and the rollout only waits.
        policy: The declared rollout.
        step: Its number.
    """
    limits, declared = policy.guardrails, policy.steps[step] / 100
    other = stable if declared < 1 else before
    counts = f"{canary.met:,} of {canary.users:,} users of the canary {what}"
    rate = f"{other.met:,} of {other.users:,} of the stable track"
    numbers = {"users": canary.met, "share": canary.share, "stable_users": other.met, "stable_share": other.share}
    if declared == 1:
        low = lower_bound(canary.met, canary.users, limits.confidence)
        more = low > max(limits.max_error_rate, AS_BAD * _usual(other.met, other.users))
        return Check(name, "wait" if more else "ok", f"{counts}, {rate}", numbers | {"low": low})
    odds = share_evidence(canary.met, canary.met + stable.met, declared, _ANY_SHARE)
    more = canary.share - stable.share > limits.max_error_rate
    is_certain = odds > len(policy.steps) / (1 - limits.confidence)
    return Check(name, "breach" if more and is_certain else "ok", f"{counts}, {rate}", numbers | {"odds": odds})


def _usual(met: int, users: int) -> float:
    return min((met + 1) / (max(users, met) + 1), 1.0)
