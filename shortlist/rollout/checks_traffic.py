"""The judge's checks of the experiment itself: is there enough traffic, is it split as declared, is it logged?"""

from __future__ import annotations

from typing import Final

from shortlist.rollout.checks import Check
from shortlist.rollout.evidence import RolloutEvidence, StepEvidence, TrackEvidence
from shortlist.rollout.sequential import lower_bound, split_evidence
from shortlist.serving.server.headers import USER_HEADER
from shortlist.spec.serving import Canary

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
