"""The canary analysis: a pure function from a rollout's evidence to the next decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shortlist.rollout.checks import (
    Check,
    Health,
    degraded,
    distribution,
    errors,
    latency,
    readiness,
    scores,
)
from shortlist.rollout.checks_kpi import guards, kpi
from shortlist.rollout.checks_users import disconnects, refusals, slates
from shortlist.rollout.events import Decision
from shortlist.rollout.evidence import RolloutEvidence, StepEvidence, TrackEvidence
from shortlist.rollout.sequential import lower_bound, split_evidence
from shortlist.serving.server.headers import USER_HEADER
from shortlist.spec.serving import Canary


@dataclass(frozen=True)
class StepAnalysis:
    """What happens next, and why."""

    decision: Decision
    reason: str
    """One sentence."""
    checks: tuple[Check, ...]
    """All of them, in the order in which they count."""


def analyze_step(
    evidence: RolloutEvidence,
    policy: Canary,
    step: int,
    at_step_seconds: float,
    health: Health,
    more: Sequence[Check] = (),
) -> StepAnalysis:
    """Return whether a rollout stays, goes on, ends well or goes back.

    Any breach rolls back, at once and however little traffic there was. Otherwise anything that is missing holds, and a
    hold at the deadline rolls back: no traffic and no outcomes are never a success. Only when nothing is missing and
    the step was long enough does the rollout go on; after the last step it is promoted.

    Args:
        evidence: What is known now.
        policy: The declared rollout.
        step: Number of the step, from 0.
        at_step_seconds: Time at it, of a clock that never jumps.
        health: Of the canary's servers.
        more: What else was asked, of a gateway's own numbers say.
    """
    checks = (*_checks(evidence, policy, step, health), *more)
    where = f"at {policy.steps[step]} %"
    if breaches := _reasons(checks, "breach"):
        return StepAnalysis("roll_back", f"{where}: {breaches[0]}", checks)
    waits = _reasons(checks, "wait")
    if waits and at_step_seconds >= policy.deadline_seconds:
        late = f"undecided after {at_step_seconds:.0f} s (deadline {policy.deadline_seconds:g} s)"
        return StepAnalysis("roll_back", f"{where}: {late}: {'; '.join(waits)}", checks)
    if waits:
        return StepAnalysis("hold", f"{where}: {'; '.join(waits)}", checks)
    if at_step_seconds < policy.interval_seconds:
        stay = f"{at_step_seconds:.0f} of {policy.interval_seconds:g} s at this step"
        return StepAnalysis("hold", f"{where}: nothing is wrong after {stay}", checks)
    shown = next(check.reason for check in checks if check.name == "kpi")
    last = step == len(policy.steps) - 1
    return StepAnalysis("promote" if last else "proceed", f"{where}: all checks pass; {shown}", checks)


def _checks(evidence: RolloutEvidence, policy: Canary, step: int, health: Health) -> tuple[Check, ...]:
    now, limits = evidence.at(step), policy.guardrails
    return (
        traffic(evidence, policy, step),
        split(now, policy, step),
        readiness(health),
        scores(now, limits),  # before errors: an answer without usable scores is an error too, but this says why
        errors(now, evidence.whole, limits),
        disconnects(now, evidence.whole, limits),
        refusals(now, evidence.whole, policy, step),
        slates(now, evidence.whole, policy, step),
        latency(evidence, policy, step),
        degraded(now, limits),
        logging(now, policy, step),
        distribution(evidence, policy, step),
        kpi(evidence, policy, step),
        *guards(evidence, policy, step),
    )


def _reasons(checks: Sequence[Check], word: str) -> list[str]:
    return [check.reason for check in checks if check.word == word]


FEWEST_LOGGED: Final = 0.5
"""Share of the answers that must have reached the prediction log; it lags behind by a flush."""


def traffic(evidence: RolloutEvidence, policy: Canary, step: int) -> Check:
    """Wait until each track has answered often enough at this step; at 100 % the stable track did so before."""
    now, least = evidence.at(step), policy.min_requests
    numbers = {"stable": now.stable.judged, "canary": now.canary.judged, "min_requests": least}
    if now.canary.judged < least:
        return Check("traffic", "wait", f"{_few('canary', now.canary, least)}", numbers)
    if policy.steps[step] < 100:
        if now.stable.judged < least:
            return Check("traffic", "wait", f"{_few('stable track', now.stable, least)}", numbers)
        reason = f"{now.canary.judged:,} requests of the canary and {now.stable.judged:,} of the stable track"
        return Check("traffic", "ok", reason, numbers)
    found = evidence.latest_stable(step, least)
    if found is None:
        reason = f"no step had {least:,} requests of the stable track to compare with"
        return Check("traffic", "wait", reason, numbers)
    number, stable = found
    reason = (
        f"{now.canary.judged:,} requests of the canary; nothing is left for the stable track, so it stands on its"
        f" {stable.judged:,} at {policy.steps[number]} %"
    )
    return Check("traffic", "ok", reason, numbers)


def split(now: StepEvidence, policy: Canary, step: int) -> Check:
    """Breach when the users are not split as declared: whatever the two tracks show, they are not comparable.

    Requests end in another order than they began, and on a slow track later: the split of those seen so far only holds
    the rollout. It is broken when it stays wrong among users with whom nothing is under way any more.
    """
    canary, users = now.canary.users, now.canary.users + now.stable.users
    declared = policy.steps[step] / 100
    numbers = {"canary": canary, "users": users, "declared": declared, "flapped": now.flapped}
    alpha = 1 - policy.guardrails.confidence
    if lower_bound(now.flapped, max(users, 1), 1 - alpha) > 0.01:
        return Check("split", "breach", f"{now.flapped:,} of {users:,} users were sent to both tracks", numbers)
    if not users:
        return Check("split", "wait", "no users", numbers)
    seen = f"{canary:,} of {users:,} users ({canary / users:.2%}) are on the canary, declared {declared:.0%}"
    if anonymous := now.canary.anonymous + now.stable.anonymous:
        numbers["anonymous"] = anonymous
        seen = f"{seen}; {anonymous:,} requests without {USER_HEADER} count as a user each"
    if declared == 1:
        # Requests of the step before may still be under way, never many.
        stray = lower_bound(users - canary, users, 1 - alpha) > 0.01
        return Check("split", "breach" if stray else "ok", seen, numbers)
    against = split_evidence(canary, users, declared)
    settled = now.canary.settled_users, now.canary.settled_users + now.stable.settled_users
    certain = split_evidence(*settled, declared)
    numbers |= {"odds": against, "settled_canary": settled[0], "settled_users": settled[1], "settled_odds": certain}
    if certain > 1 / alpha:
        known = f"{settled[0]:,} of {settled[1]:,} users ({settled[0] / settled[1]:.2%}) are on the canary"
        return Check("split", "breach", f"{known}, declared {declared:.0%}; {certain:,.0f} to 1 against it", numbers)
    if against > 1 / alpha:
        return Check("split", "wait", f"{seen}; others may still wait for an answer", numbers)
    odds = f"{against:,.0f} to 1 against that split" if against >= 1 else "which is as it should be"
    return Check("split", "ok", f"{seen}; {odds}", numbers)


def logging(now: StepEvidence, policy: Canary, step: int) -> Check:
    """Wait while most answers of a track are not in the prediction log: scores and KPI would speak of the rest."""
    tracks = {"canary": now.canary, "stable track": now.stable}
    numbers = {name: {"logged": track.logged, "to_log": track.to_log} for name, track in tracks.items()}
    for name, track in tracks.items():
        if name == "stable track" and policy.steps[step] == 100:
            continue
        if track.to_log and track.logged < FEWEST_LOGGED * track.to_log:
            reason = f"only {track.logged:,} of {track.to_log:,} answers of the {name} are in the prediction log"
            return Check("logging", "wait", reason, numbers)
    return Check("logging", "ok", f"{now.canary.logged:,} answers of the canary are in the prediction log", numbers)


def _few(name: str, track: TrackEvidence, least: int) -> str:
    return f"{track.judged:,} requests of the {name} at this step, {least:,} are needed"
