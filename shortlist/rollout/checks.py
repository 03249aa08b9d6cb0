"""Checks of health, speed and scores: pure functions from evidence and limits to a word with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from shortlist.rollout.evidence import Floats, RolloutEvidence, StepEvidence, TrackEvidence
from shortlist.rollout.sequential import divergence_bound, lower_bound
from shortlist.spec.serving import Canary, Guardrails

CheckStatus = Literal["ok", "wait", "breach"]

SLOW_SHARE: Final = 0.01
"""Share of answers that may pass a limit on the 99th percentile."""
SCORE_BINS: Final = 10
FEWEST_SCORES: Final = 50
"""Of each track, before distributions are compared."""
AS_BAD: Final = 2.0
"""A share that is not for certain more than this multiple of the stable track's is as bad as that."""
MOST_FLAT: Final = 0.5
"""Share of requests whose items may all have one score: more, and the model ranks nothing."""


@dataclass(frozen=True)
class Health:
    """What the canary's own servers say, besides what users see."""

    ready: bool
    """All of them answer that they are; ask twice before saying no."""
    restarts: int = 0
    """Times that one of them ended since the rollout began and was started again."""
    fatal: tuple[str, ...] = ()
    """Programs that the supervisor gave up."""


@dataclass(frozen=True)
class Check:
    """One question, its answer and the reason."""

    name: str
    word: CheckStatus
    """`wait` holds the rollout, `breach` ends it."""
    reason: str
    numbers: dict[str, Any] = field(default_factory=dict)


def readiness(health: Health) -> Check:
    """Breach when a server of the canary crashed, was given up, or does not get ready again."""
    numbers = {"ready": health.ready, "restarts": health.restarts, "fatal": list(health.fatal)}
    if health.fatal:
        return Check("readiness", "breach", f"{', '.join(health.fatal)} crashed again and again (FATAL)", numbers)
    if health.restarts:
        return Check("readiness", "breach", f"its servers crashed {health.restarts} time(s)", numbers)
    if not health.ready:
        return Check("readiness", "breach", "its servers are not ready", numbers)
    return Check("readiness", "ok", "its servers are ready and never crashed", numbers)


def errors(now: StepEvidence, whole: StepEvidence, limits: Guardrails) -> Check:
    """Breach when more answers failed than allowed, at this step or in the whole rollout.

    Where the stable track fails as often, something that both need is at fault: that holds the rollout. Requests that
    the client got wrong, or did not wait for, are neither failures nor answers.
    """
    found: list[Check] = []
    for both, when in ((now, "at this step"), (whole, "in the whole rollout")):
        track, stable = both.canary, both.stable
        bound = lower_bound(track.failed, track.judged, limits.confidence)
        low = lower_bound(stable.failed, stable.judged, limits.confidence)
        numbers = {"failed": track.failed, "requests": track.judged, "low": bound, "limit": limits.max_error_rate}
        if bound > limits.max_error_rate:
            rate = _share(stable.failed, stable.judged)
            reason = f"{track.failed:,} of {track.judged:,} answers failed {when}: {_above(bound, limits)}"
            if low > limits.max_error_rate and bound <= AS_BAD * rate:
                found.append(Check("errors", "wait", f"{reason}; the stable track is as bad ({rate:.2%})", numbers))
            else:
                found.append(Check("errors", "breach", f"{reason} (stable track {rate:.2%})", numbers))
    if found:
        return min(found, key=lambda check: check.word != "breach")
    rate = _share(now.canary.failed, now.canary.judged)
    reason = f"{now.canary.failed:,} of {now.canary.judged:,} answers failed ({rate:.2%})"
    numbers = {"failed": now.canary.failed, "requests": now.canary.judged, "limit": limits.max_error_rate}
    return Check("errors", "ok", reason, numbers)


def latency(evidence: RolloutEvidence, policy: Canary, step: int) -> Check:
    """Breach when more than 1 % of the canary's answers at this step are slower than the limit.

    The limit follows the stable track at this step; where it has too few answers only `max_p99_ms` counts: speeds of
    different moments say more about the machine than about the model. Where the stable track itself passes
    `max_p99_ms` the machine is at fault: a canary that is not slower than its multiple of that holds the rollout.
    """
    limits, canary, stable_track = policy.guardrails, evidence.at(step).canary, evidence.at(step).stable
    enough = stable_track.judged >= policy.min_requests
    stable = stable_track.latencies.quantile_ms(0.99) if enough else None
    limit = limits.max_p99_ms if stable is None else min(limits.max_p99_ms, limits.max_latency_ratio * stable)
    limit = max(limit, limits.latency_floor_ms)
    slow, total = canary.latencies.slower_than(limit), canary.latencies.total
    bound, p99 = lower_bound(slow, total, limits.confidence), canary.latencies.quantile_ms(0.99)
    numbers = {"p99_ms": p99, "stable_p99_ms": stable, "limit_ms": limit, "slow": slow, "answers": total, "low": bound}
    against = "no stable p99 yet" if stable is None else f"stable {stable:.1f} ms"
    if p99 is None:
        return Check("latency", "wait", "no answers to time", numbers)
    if bound > SLOW_SHARE:
        reason = f"p99 latency {p99:.1f} ms > {limit:.1f} ms: {slow:,} of {total:,} answers are slower ({against})"
        if is_slow(stable_track, policy) and not _slower_than_stable(canary, stable_track, limits):
            return Check("latency", "wait", f"{reason}; the stable track is as slow", numbers)
        return Check("latency", "breach", reason, numbers)
    reason = f"p99 latency {p99:.1f} ms, limit {limit:.1f} ms ({against}, {total:,} answers)"
    return Check("latency", "ok", reason, numbers)


def is_slow(track: TrackEvidence, policy: Canary) -> bool:
    """Whether more than 1 % of a track's answers for certain pass the absolute limit."""
    limits, total = policy.guardrails, track.latencies.total
    slow = track.latencies.slower_than(max(limits.max_p99_ms, limits.latency_floor_ms))
    return lower_bound(slow, total, limits.confidence) > SLOW_SHARE


def _slower_than_stable(canary: TrackEvidence, stable: TrackEvidence, limits: Guardrails) -> bool:
    p99 = stable.latencies.quantile_ms(0.99)
    assert p99 is not None
    slow = canary.latencies.slower_than(limits.max_latency_ratio * p99)
    return lower_bound(slow, canary.latencies.total, limits.confidence) > SLOW_SHARE


def scores(now: StepEvidence, limits: Guardrails) -> Check:
    """Breach when scores are not numbers, or the same for all items while the stable track's are not."""
    canary, stable = now.canary, now.stable
    bad = lower_bound(canary.bad, canary.logged, limits.confidence)
    flat = lower_bound(canary.flat, canary.rankable, limits.confidence)
    numbers = {"bad": canary.bad, "flat": canary.flat, "rankable": canary.rankable, "logged": canary.logged}
    if bad > limits.max_error_rate:
        counts = f"{canary.bad:,} of {canary.logged:,} answers hold NaN, infinite or no scores"
        return Check("scores", "breach", f"{counts}: {_above(bad, limits)}", numbers)
    if not canary.scores.size:
        return Check("scores", "wait", "the prediction log holds no scores of this step", numbers)
    if flat <= MOST_FLAT and not _constant(canary):
        reason = f"{canary.bad:,} of {canary.logged:,} answers hold scores that are no numbers"
        return Check("scores", "ok", reason, numbers)
    what = f"constant scores: {canary.flat:,} of {canary.rankable:,} requests have one score for all their items"
    if _constant(canary):
        what = f"constant scores: all {canary.scores.size:,} are {canary.scores[0]:.6g}"
    if _share(stable.flat, stable.rankable) > MOST_FLAT or _constant(stable):
        return Check("scores", "wait", f"{what}, on both tracks; such requests cannot compare them", numbers)
    return Check("scores", "breach", what, numbers)


def degraded(now: StepEvidence, limits: Guardrails) -> Check:
    """Breach when the canary answers without features and the stable track does not; wait when both do."""
    canary, stable = now.canary, now.stable
    bound, other = (
        lower_bound(canary.degraded, canary.logged, limits.confidence),
        _share(stable.degraded, stable.logged),
    )
    numbers = {"degraded": canary.degraded, "logged": canary.logged, "low": bound, "stable_share": other}
    counts = f"{canary.degraded:,} of {canary.logged:,} answers were made without features"
    if bound <= limits.max_error_rate:
        return Check("features", "ok", counts, numbers)
    reason = f"{counts} (stable track {other:.1%}, limit {limits.max_error_rate:.1%})"
    # A store that fails, fails both; a canary's own fault is much more than that.
    return Check("features", "breach" if bound > AS_BAD * other else "wait", reason, numbers)


def distribution(evidence: RolloutEvidence, policy: Canary, step: int) -> Check:
    """Breach when the canary's scores of this step are spread otherwise than the stable track's newest.

    The bound on what chance may do holds for all looks at all steps together.
    """
    canary, limits = evidence.at(step).canary, policy.guardrails
    found = evidence.latest_stable(step, policy.min_requests)
    stable = found[1] if found else evidence.at(step).stable
    if min(canary.scores.size, stable.scores.size) < FEWEST_SCORES:
        counts = f"{canary.scores.size:,} scores of the canary, {stable.scores.size:,} of the stable track"
        return Check("distribution", "wait", f"{counts}; {FEWEST_SCORES} are needed of each", {})
    index = stability_index(stable.scores, canary.scores)
    # Scores of one user are alike: users, not scores, say how far chance alone moves the index.
    size = 1 / (1 / stable.score_users + 1 / canary.score_users)
    alpha = (1 - limits.confidence) / len(policy.steps)
    chance = divergence_bound(size, SCORE_BINS, alpha, limits.max_score_shift)
    limit = max(limits.max_score_shift, chance)
    numbers = {"psi": index, "limit": limit, "chance": chance, "step_of_stable": found[0] if found else step}
    shift = f"population stability index of the scores {index:.3f}"
    means = f"mean score {canary.scores.mean():.4f}, stable {stable.scores.mean():.4f}"
    if index > limit:
        return Check("distribution", "breach", f"{shift} > {limit:.3f} ({means})", numbers)
    return Check("distribution", "ok", f"{shift}, limit {limit:.3f} ({means})", numbers)


def stability_index(reference: Floats, live: Floats) -> float:
    """Return how far scores have moved, in nats, over the reference's deciles (the Jeffreys divergence).

    Half a score is added to every bin, so that an empty one does not make it infinite.

    Args:
        reference: Sorted scores of the stable track, at least one.
        live: Sorted scores of the canary, at least one.

    >>> same = np.linspace(0, 1, 1000)
    >>> stability_index(same, same)
    0.0
    >>> stability_index(same, same + 0.5) > 1
    True
    """
    edges = np.unique(np.quantile(reference, np.linspace(0, 1, SCORE_BINS + 1)[1:-1]))
    shares = []
    for sample in (reference, live):
        inside = np.diff(np.concatenate([[0], np.searchsorted(sample, edges, side="right"), [sample.size]]))
        shares.append((inside + 0.5) / (sample.size + 0.5 * inside.size))
    return float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())


def _constant(track: TrackEvidence) -> bool:
    return track.scores.size >= FEWEST_SCORES and float(track.scores[-1] - track.scores[0]) == 0


def _above(bound: float, limits: Guardrails) -> str:
    return f"more than {bound:.2%} with {limits.confidence:.1%} confidence, limit {limits.max_error_rate:.2%}"


def _share(count: int, total: int) -> float:
    return count / total if total else 0.0
