"""The gateway's metrics of a version's requests, including those that never reached a server."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from shortlist.rollout.checks.health import MAX_RATIO_TO_STABLE, SLOW_SHARE, CheckResult
from shortlist.rollout.evidence.rollout_evidence import RolloutEvidence, StepEvidence, TrackEvidence
from shortlist.rollout.evidence.sequential import lower_bound
from shortlist.rollout.kserve.objects.owner import ObjectOwner
from shortlist.rollout.kserve.objects.routing import PLACES
from shortlist.spec.serving import Canary
from shortlist.system.prometheus import Prometheus

MIN_KNOWN_SHARE: Final = 0.5
"""Smallest share of the served requests in the gateway's metrics, which lag behind by a scrape."""
_CLASS: Final = "envoy_response_code_class"


@dataclass(frozen=True)
class GatewayMetrics:
    """Counts of one version's requests within a window, by Envoy's response."""

    answered: int = 0
    """Responses 2xx."""
    client_errors: int = 0
    """Responses 4xx."""
    failed: int = 0
    """Responses 5xx, including Envoy's own: no server, no connection, a timeout."""
    slow: int = 0
    """Responses that certainly exceed the longest latency allowed; Envoy's buckets are wide."""
    timed: int = 0
    """Responses with a known latency."""

    @property
    def requests(self) -> int:
        """Number of all requests."""
        return self.answered + self.client_errors + self.failed


def gateway_metrics(
    prometheus: Prometheus, owner: ObjectOwner, track: str, seconds: float, max_ms: float
) -> GatewayMetrics | None:
    """Return the gateway's metrics of a track's requests; None when there are none.

    Args:
        prometheus: Prometheus with Envoy's metrics. Envoy Gateway names the cluster of a backend
            `httproute/<namespace>/<route>/rule/<rule>/backend/<place>`, see deploy/k8s/base/gateway.yaml.
        owner: Owner of the route.
        track: `canary` or `stable`.
        seconds: Length of the window up to now, within one step, so that the places of the tracks are the same.
        max_ms: Latency above which an answer is slow.

    Raises:
        PrometheusUnavailableError: Prometheus does not answer.
    """
    backend_places = "|".join(map(str, PLACES[track]))
    selector = f'envoy_cluster_name=~"httproute/{owner.namespace}/{owner.route_name}/rule/0/backend/({backend_places})"'
    window = f"{math.ceil(max(seconds, 1))}s"
    classes = prometheus.query_by(
        _CLASS, f"sum by ({_CLASS}) (increase(envoy_cluster_upstream_rq_xx{{{selector}}}[{window}]))"
    )
    if not classes:
        return None
    buckets = prometheus.query_by(
        "le", f"sum by (le) (increase(envoy_cluster_upstream_rq_time_bucket{{{selector}}}[{window}]))"
    )
    cumulative_counts = {float(le): count for le, count in buckets.items()}
    timed = cumulative_counts.get(math.inf, 0.0)
    within_limit = cumulative_counts[min(le for le in cumulative_counts if le >= max_ms)] if cumulative_counts else 0.0
    return GatewayMetrics(
        answered=round(classes.get("2", 0.0)),
        client_errors=round(classes.get("4", 0.0)),
        failed=round(classes.get("5", 0.0)),
        slow=max(round(timed - within_limit), 0),
        timed=round(timed),
    )


def merge_gateway_metrics(
    evidence: RolloutEvidence, step: int, stable: GatewayMetrics | None, canary: GatewayMetrics | None, sampling: float
) -> RolloutEvidence:
    """Return the evidence with the counts of a step merged with the gateway's metrics.

    Each count is the larger one: the log misses requests that never reached a server or were refused there, and
    Prometheus misses those that it has not scraped yet.

    Args:
        evidence: Evidence from the prediction log.
        step: Number of the step.
        stable: Metrics of the stable track since the step began.
        canary: Metrics of the canary since the step began.
        sampling: Share of the answers in the prediction log.
    """
    now = evidence.at_step(step)
    tracks = _merge_track(now.stable, stable, sampling), _merge_track(now.canary, canary, sampling)
    whole = evidence.whole
    return replace(
        evidence,
        steps=tuple(replace(step_evidence, stable=tracks[0], canary=tracks[1]) if number == step else step_evidence
                    for number, step_evidence in enumerate(evidence.steps)),
        whole=replace(
            whole,
            stable=_replace_step_counts(whole.stable, now.stable, tracks[0]),
            canary=_replace_step_counts(whole.canary, now.canary, tracks[1]),
        ),
    )  # fmt: skip


def gateway_check(
    policy: Canary,
    step: int,
    served: StepEvidence,
    stable: GatewayMetrics | None,
    canary: GatewayMetrics | None,
    unavailable_reason: str = "",
) -> CheckResult:
    """Wait while the gateway's metrics are missing; breach when too many answers were slow at the gateway.

    Errors need no check here: `merge_gateway_metrics` adds them to the evidence.

    Args:
        policy: The declared rollout.
        step: Number of the step.
        served: Evidence of the step from the prediction log alone.
        stable: Metrics of the stable track since the step began.
        canary: Metrics of the canary since the step began.
        unavailable_reason: Why Prometheus could not be asked; empty: it answered.
    """
    if unavailable_reason:
        return CheckResult("gateway", "wait", f"{unavailable_reason}; what did not reach a server cannot be seen")
    tracks = [("canary", canary, served.canary)]
    if policy.steps[step] < 100:
        tracks.append(("stable track", stable, served.stable))
    for name, metrics, logged in tracks:
        known_requests = 0 if metrics is None else metrics.requests
        if known_requests < max(MIN_KNOWN_SHARE * logged.requests, 1):
            reason = (
                f"Prometheus knows {known_requests:,} requests of the {name} at this step, its log {logged.requests:,}"
            )
            return CheckResult("gateway", "wait", reason, {"known": known_requests, "logged": logged.requests})
    assert canary is not None
    limits = policy.guardrails
    bound = lower_bound(canary.slow, canary.timed, limits.confidence)
    numbers = {"requests": canary.requests, "failed": canary.failed, "slow": canary.slow, "low": bound}
    if bound > SLOW_SHARE:
        slow_text = (
            f"{canary.slow:,} of {canary.timed:,} answers took longer than {limits.max_p99_ms:g} ms at the gateway"
        )
        if stable is not None and stable.timed:
            low, rate = lower_bound(stable.slow, stable.timed, limits.confidence), stable.slow / stable.timed
            if low > SLOW_SHARE and bound <= MAX_RATIO_TO_STABLE * rate:
                return CheckResult("gateway", "wait", f"{slow_text}; the stable track is as slow ({rate:.1%})", numbers)
        return CheckResult("gateway", "breach", slow_text, numbers)
    reason = f"the gateway ended {canary.requests:,} requests of the canary, {canary.failed:,} with 5xx"
    return CheckResult("gateway", "ok", reason, numbers)


def _merge_track(track: TrackEvidence, metrics: GatewayMetrics | None, sampling: float) -> TrackEvidence:
    if metrics is None:
        return track
    # The gateway does not count by address. Requests that are no evidence may not dilute the failures of the others.
    share = track.requests / max(track.requests + track.left_out, 1) if track.left_out else 1.0
    answered = round(metrics.answered * share)
    return replace(
        track,
        requests=max(track.requests, round(metrics.requests * share)),
        failed=max(track.failed, metrics.failed),
        client_errors=max(track.client_errors, round(metrics.client_errors * share)),
        answered=max(track.answered, answered),
        to_log=max(track.to_log, round(answered * sampling)),
    )


def _replace_step_counts(whole: TrackEvidence, old_step: TrackEvidence, new_step: TrackEvidence) -> TrackEvidence:
    names = ("requests", "failed", "client_errors", "answered", "to_log")
    return replace(
        whole, **{name: getattr(whole, name) + getattr(new_step, name) - getattr(old_step, name) for name in names}
    )
