"""Checks of health, latency and scores: pure functions from evidence and limits to a status with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from shortlist.rollout.evidence.rollout_evidence import Floats, RolloutEvidence, StepEvidence, TrackEvidence
from shortlist.rollout.evidence.sequential import divergence_bound, lower_bound
from shortlist.spec.serving import Canary, Guardrails

CheckStatus = Literal["ok", "wait", "breach", "skipped"]

SLOW_SHARE: Final = 0.01
"""Share of answers that may exceed a limit on the 99th percentile."""
_LOADED_SHARE: Final = 0.5
"""Share of `max_p99_ms` from which the stable track's p99 at an earlier step says that the machine is loaded."""
SCORE_BINS: Final = 10
MIN_SCORES: Final = 50
"""Fewest scores of each track before distributions are compared."""
MAX_RATIO_TO_STABLE: Final = 2.0
"""A share whose lower bound is at most this multiple of the stable track's share counts as equally bad."""
MAX_CONSTANT_SHARE: Final = 0.5
"""Largest share of requests whose items all have the same score; above it the model ranks nothing."""


@dataclass(frozen=True)
class Health:
    """Health of the canary's servers, as they report it."""

    ready: bool
    """Whether all of them answer that they are ready; False only after a second request."""
    restarts: int = 0
    """Number of restarts of these servers since the rollout began."""
    fatal: tuple[str, ...] = ()
    """Programs that the supervisor no longer restarts."""
    version: int = 0
    """Version of the canary, which the metrics of its servers are labelled with."""


@dataclass(frozen=True)
class CheckResult:
    """Result of one check, with its reason."""

    name: str
    status: CheckStatus
    """`wait` holds the rollout, `breach` rolls it back, `skipped` decides nothing."""
    reason: str
    numbers: dict[str, Any] = field(default_factory=dict)


def not_compared(name: str, retirement: str, numbers: dict[str, Any] | None = None) -> CheckResult:
    """Return the result of a comparison with a stable version that was retired: its scores are no yardstick.

    Args:
        name: Name of the check.
        retirement: Which version was retired, and why.
        numbers: What was measured all the same.
    """
    return CheckResult(name, "skipped", f"not compared: {retirement}", numbers or {})


def readiness(health: Health) -> CheckResult:
    """Breach when a server of the canary crashed, is no longer restarted, or does not become ready."""
    numbers = {"ready": health.ready, "restarts": health.restarts, "fatal": list(health.fatal)}
    if health.fatal:
        return CheckResult("readiness", "breach", f"{', '.join(health.fatal)} crashed again and again (FATAL)", numbers)
    if health.restarts:
        return CheckResult("readiness", "breach", f"its servers crashed {health.restarts} time(s)", numbers)
    if not health.ready:
        return CheckResult("readiness", "breach", "its servers are not ready", numbers)
    return CheckResult("readiness", "ok", "its servers are ready and never crashed", numbers)


def errors(step_evidence: StepEvidence, whole: StepEvidence, limits: Guardrails) -> CheckResult:
    """Breach when more answers failed than allowed, at this step or in the whole rollout.

    Wait when the stable track fails as often: the cause is something that both tracks share. Client errors and
    disconnected requests count neither as failures nor as answers.
    """
    failures: list[CheckResult] = []
    for tracks, period in ((step_evidence, "at this step"), (whole, "in the whole rollout")):
        track, stable = tracks.canary, tracks.stable
        bound = lower_bound(track.failed, track.judged_requests, limits.confidence)
        low = lower_bound(stable.failed, stable.judged_requests, limits.confidence)
        numbers = {
            "failed": track.failed,
            "requests": track.judged_requests,
            "low": bound,
            "limit": limits.max_error_rate,
        }
        if bound > limits.max_error_rate:
            rate = _share(stable.failed, stable.judged_requests)
            failed_text = f"{track.failed:,} of {track.judged_requests:,} answers failed {period}"
            reason = f"{failed_text}: {_describe_excess(bound, limits)}"
            if low > limits.max_error_rate and bound <= MAX_RATIO_TO_STABLE * rate:
                failures.append(
                    CheckResult("errors", "wait", f"{reason}; the stable track is as bad ({rate:.2%})", numbers)
                )
            else:
                failures.append(CheckResult("errors", "breach", f"{reason} (stable track {rate:.2%})", numbers))
    if failures:
        return min(failures, key=lambda check: check.status != "breach")
    rate = _share(step_evidence.canary.failed, step_evidence.canary.judged_requests)
    reason = f"{step_evidence.canary.failed:,} of {step_evidence.canary.judged_requests:,} answers failed ({rate:.2%})"
    numbers = {
        "failed": step_evidence.canary.failed,
        "requests": step_evidence.canary.judged_requests,
        "limit": limits.max_error_rate,
    }
    return CheckResult("errors", "ok", reason, numbers)


def latency(evidence: RolloutEvidence, policy: Canary, step: int) -> CheckResult:
    """Breach when more than 1 % of the canary's answers at this step are slower than the limit.

    The limit is a multiple of the stable track's p99 at this step. With too few answers of the stable track only
    `max_p99_ms` counts: latencies of different times depend on the machine more than on the model. When the stable
    track itself exceeds `max_p99_ms`, the machine is the cause: a canary within the multiple then waits. At 100 % a
    canary above `max_p99_ms` also waits while it is within the multiple of what the stable track had at an earlier
    step, if that was half of `max_p99_ms` or more.
    """
    limits, canary, stable_track = policy.guardrails, evidence.at_step(step).canary, evidence.at_step(step).stable
    has_enough = stable_track.judged_requests >= policy.min_requests
    stable = stable_track.latencies.quantile_ms(0.99) if has_enough else None
    limit = limits.max_p99_ms if stable is None else min(limits.max_p99_ms, limits.max_latency_ratio * stable)
    limit = max(limit, limits.latency_floor_ms)
    slow, total = canary.latencies.count_slower(limit), canary.latencies.total
    bound, p99 = lower_bound(slow, total, limits.confidence), canary.latencies.quantile_ms(0.99)
    numbers = {"p99_ms": p99, "stable_p99_ms": stable, "limit_ms": limit, "slow": slow, "answers": total, "low": bound}
    stable_text = f"stable {stable:.1f} ms" if stable is not None else "no stable p99 at this step"
    if p99 is None:
        return CheckResult("latency", "wait", "no answers to time", numbers)
    if bound > SLOW_SHARE:
        reason = f"p99 latency {p99:.1f} ms > {limit:.1f} ms: {slow:,} of {total:,} answers are slower ({stable_text})"
        if is_slow(stable_track, policy) and not _slower_than_stable(canary, stable_track, limits):
            return CheckResult("latency", "wait", f"{reason}; the stable track is as slow", numbers)
        latest_stable = evidence.latest_stable(step - 1, policy.min_requests) if policy.steps[step] == 100 else None
        if latest_stable is None:
            return CheckResult("latency", "breach", reason, numbers)
        earlier_step, earlier_stable = latest_stable
        is_slower = _slower_than_stable(canary, earlier_stable, limits)
        is_loaded = (earlier_stable.p99_ms or 0.0) >= _LOADED_SHARE * limits.max_p99_ms
        earlier_text = _describe_earlier_stable(
            earlier_stable, policy.steps[earlier_step], is_slower, is_loaded, policy
        )
        status: CheckStatus = "wait" if is_loaded and not is_slower else "breach"
        return CheckResult("latency", status, f"{reason}; {earlier_text}", numbers)
    reason = f"p99 latency {p99:.1f} ms, limit {limit:.1f} ms ({stable_text}, {total:,} answers)"
    return CheckResult("latency", "ok", reason, numbers)


def is_slow(track: TrackEvidence, policy: Canary) -> bool:
    """Whether more than 1 % of a track's answers exceed the absolute limit, by the lower bound."""
    limits, total = policy.guardrails, track.latencies.total
    slow = track.latencies.count_slower(max(limits.max_p99_ms, limits.latency_floor_ms))
    return lower_bound(slow, total, limits.confidence) > SLOW_SHARE


def _describe_earlier_stable(
    stable: TrackEvidence, percent: int, is_slower: bool, is_loaded: bool, policy: Canary
) -> str:  # fmt: skip
    limits = policy.guardrails
    p99_text = f"at {percent} % the stable track had {stable.p99_ms:.1f} ms on this machine"
    if is_slower:
        return f"{p99_text}, and the canary has more than {limits.max_latency_ratio:g} times as much"
    if not is_loaded:
        return f"{p99_text}, so that the machine is not the cause"
    if is_slow(stable, policy):
        p99_text = f"{p99_text}, itself above max_p99_ms ({limits.max_p99_ms:g})"
    return f"{p99_text}, and the canary is within {limits.max_latency_ratio:g} times that: the load may be the cause"


def _slower_than_stable(canary: TrackEvidence, stable: TrackEvidence, limits: Guardrails) -> bool:
    p99 = stable.latencies.quantile_ms(0.99)
    assert p99 is not None
    slow = canary.latencies.count_slower(limits.max_latency_ratio * p99)
    return lower_bound(slow, canary.latencies.total, limits.confidence) > SLOW_SHARE


def scores(step_evidence: StepEvidence, whole: StepEvidence, limits: Guardrails) -> CheckResult:
    """Breach when scores are not finite, or constant within requests while the stable track's are not.

    Wait when the stable track has none to compare with.
    """
    canary = step_evidence.canary
    stable = step_evidence.stable if step_evidence.stable.rankable else whole.stable
    bad = lower_bound(canary.bad, canary.logged, limits.confidence)
    flat = lower_bound(canary.flat, canary.rankable, limits.confidence)
    numbers = {"bad": canary.bad, "flat": canary.flat, "rankable": canary.rankable, "logged": canary.logged}
    if bad > limits.max_error_rate:
        counts = f"{canary.bad:,} of {canary.logged:,} answers hold NaN, infinite or no scores"
        return CheckResult("scores", "breach", f"{counts}: {_describe_excess(bad, limits)}", numbers)
    if not canary.scores.size:
        kind = "scores of this step that are evidence" if canary.logged_left_out else "scores of this step"
        return CheckResult("scores", "wait", f"the prediction log holds no {kind}", numbers)
    if flat <= MAX_CONSTANT_SHARE and not _has_constant_scores(canary):
        reason = f"{canary.bad:,} of {canary.logged:,} answers hold scores that are no numbers"
        return CheckResult("scores", "ok", reason, numbers)
    constant_text = (
        f"constant scores: {canary.flat:,} of {canary.rankable:,} requests have one score for all their items"
    )
    if _has_constant_scores(canary):
        constant_text = f"constant scores: all {canary.scores.size:,} are {canary.scores[0]:.6g}"
    if not stable.rankable:
        return CheckResult(
            "scores", "wait", f"{constant_text}; no request of the stable track can be compared", numbers
        )
    if _share(stable.flat, stable.rankable) > MAX_CONSTANT_SHARE or _has_constant_scores(stable):
        return CheckResult(
            "scores", "wait", f"{constant_text}, on both tracks; such requests cannot compare them", numbers
        )
    return CheckResult("scores", "breach", constant_text, numbers)


def degraded(step_evidence: StepEvidence, whole: StepEvidence, limits: Guardrails) -> CheckResult:
    """Breach when the canary answers without features and the stable track does not; wait when both do."""
    canary, stable = step_evidence.canary, step_evidence.stable if step_evidence.stable.logged else whole.stable
    bound, stable_share = (
        lower_bound(canary.degraded, canary.logged, limits.confidence),
        _share(stable.degraded, stable.logged),
    )
    numbers = {"degraded": canary.degraded, "logged": canary.logged, "low": bound, "stable_share": stable_share}
    counts = f"{canary.degraded:,} of {canary.logged:,} answers were made without features"
    if bound <= limits.max_error_rate:
        return CheckResult("features", "ok", counts, numbers)
    reason = f"{counts} (stable track {stable_share:.1%}, limit {limits.max_error_rate:.1%})"
    # A failing store degrades both tracks; only a canary that is much worse is at fault itself.
    is_worse = stable.logged > 0 and bound > MAX_RATIO_TO_STABLE * stable_share
    return CheckResult("features", "breach" if is_worse else "wait", reason, numbers)


def distribution(evidence: RolloutEvidence, policy: Canary, step: int, spec: str) -> CheckResult:
    """Breach when the distribution of the canary's scores differs from that of the stable track's newest scores.

    The bound on differences by chance is valid for all analyses of all steps together. The reason of a breach names the
    command that takes the spec's version over where the change is wanted.
    """
    canary, limits = evidence.at_step(step).canary, policy.guardrails
    latest_stable = evidence.latest_stable(step, policy.min_requests)
    stable = latest_stable[1] if latest_stable else evidence.at_step(step).stable
    if min(canary.scores.size, stable.scores.size) < MIN_SCORES:
        counts = f"{canary.scores.size:,} scores of the canary, {stable.scores.size:,} of the stable track"
        return CheckResult("distribution", "wait", f"{counts}; {MIN_SCORES} are needed of each", {})
    index = stability_index(stable.scores, canary.scores)
    # Scores of one user are similar: the number of users, not of scores, bounds what chance alone does.
    effective_size = 1 / (1 / stable.score_users + 1 / canary.score_users)
    alpha = (1 - limits.confidence) / len(policy.steps)
    chance_bound = divergence_bound(effective_size, SCORE_BINS, alpha, limits.max_score_shift)
    limit = max(limits.max_score_shift, chance_bound)
    numbers = {
        "psi": index,
        "limit": limit,
        "chance": chance_bound,
        "step_of_stable": latest_stable[0] if latest_stable else step,
    }
    shift = f"population stability index of the scores {index:.3f}"
    means_text = f"mean score {canary.scores.mean():.4f}, stable {stable.scores.mean():.4f}"
    if index > limit:
        wanted_text = (
            f"If other scores are wanted, .venv/bin/shortlist promote {spec} takes the newest blessed version over"
            f" without analysis; or raise serving.canary.guardrails.max_score_shift ({limits.max_score_shift:g})"
        )
        return CheckResult("distribution", "breach", f"{shift} > {limit:.3f} ({means_text}). {wanted_text}", numbers)
    return CheckResult("distribution", "ok", f"{shift}, limit {limit:.3f} ({means_text})", numbers)


def stability_index(reference: Floats, live: Floats) -> float:
    """Return the Jeffreys divergence of two samples of scores, in nats, over the deciles of the reference.

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


def _has_constant_scores(track: TrackEvidence) -> bool:
    return track.scores.size >= MIN_SCORES and float(track.scores[-1] - track.scores[0]) == 0


def _describe_excess(bound: float, limits: Guardrails) -> str:
    return f"more than {bound:.2%} with {limits.confidence:.1%} confidence, limit {limits.max_error_rate:.2%}"


def _share(count: int, total: int) -> float:
    return count / total if total else 0.0
