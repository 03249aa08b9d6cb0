"""What the gateway counted of a version's requests, those included that never reached a server."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from shortlist.rollout.checks import AS_BAD, SLOW_SHARE, Check
from shortlist.rollout.evidence import RolloutEvidence, StepEvidence, TrackEvidence
from shortlist.rollout.kserve.owner import ObjectOwner
from shortlist.rollout.kserve.prometheus import Prometheus
from shortlist.rollout.kserve.routing import PLACES
from shortlist.rollout.sequential import lower_bound
from shortlist.spec.serving import Canary

FEWEST_KNOWN: Final = 0.5
"""Share of the served requests that the gateway's numbers must know of; they lag behind by a scrape."""
_CLASS: Final = "envoy_response_code_class"


@dataclass(frozen=True)
class GatewayMetrics:
    """One version's requests within a window, as Envoy ended them."""

    answered: int = 0
    """2xx."""
    client_errors: int = 0
    """4xx."""
    failed: int = 0
    """5xx, Envoy's own included: no server, no connection, a timeout."""
    slow: int = 0
    """Slower for certain than the longest latency allowed; Envoy's buckets are wide."""
    timed: int = 0
    """Those whose time is known."""

    @property
    def requests(self) -> int:
        """All of them."""
        return self.answered + self.client_errors + self.failed


def gateway_metrics(
    prometheus: Prometheus, owner: ObjectOwner, track: str, seconds: float, max_ms: float
) -> GatewayMetrics | None:
    """Return what the gateway counted of a track's requests; None when it knows of none.

    Args:
        prometheus: Where Envoy's own metrics are. Envoy Gateway calls the cluster of a backend
            `httproute/<namespace>/<route>/rule/<rule>/backend/<place>`, see deploy/k8s/base/gateway.yaml.
        owner: Of the route.
        track: `canary` or `stable`.
        seconds: The window, up to now; within one step, so that the places of the tracks are the same.
        max_ms: Latency beyond which an answer is slow.

    Raises:
        PrometheusUnavailableError: Prometheus does not answer.
    """
    places = "|".join(map(str, PLACES[track]))
    chosen = f'envoy_cluster_name=~"httproute/{owner.namespace}/{owner.route_name}/rule/0/backend/({places})"'
    window = f"{math.ceil(max(seconds, 1))}s"
    classes = prometheus.by(_CLASS, f"sum by ({_CLASS}) (increase(envoy_cluster_upstream_rq_xx{{{chosen}}}[{window}]))")
    if not classes:
        return None
    buckets = prometheus.by(
        "le", f"sum by (le) (increase(envoy_cluster_upstream_rq_time_bucket{{{chosen}}}[{window}]))"
    )
    within = {float(le): count for le, count in buckets.items()}
    timed = within.get(math.inf, 0.0)
    quick = within[min(le for le in within if le >= max_ms)] if within else 0.0
    return GatewayMetrics(
        answered=round(classes.get("2", 0.0)),
        client_errors=round(classes.get("4", 0.0)),
        failed=round(classes.get("5", 0.0)),
        slow=max(round(timed - quick), 0),
        timed=round(timed),
    )


def merge_gateway_metrics(
    evidence: RolloutEvidence, step: int, stable: GatewayMetrics | None, canary: GatewayMetrics | None, sampling: float
) -> RolloutEvidence:
    """Return the evidence of a step with what only the gateway knows of.

    Each count is the larger one: the log misses what never reached a server, or was refused there, and Prometheus what
    it has not scraped yet.

    Args:
        evidence: From the prediction log.
        step: Its number.
        stable: Since the step began.
        canary: Likewise.
        sampling: Share of the answers that the prediction log keeps.
    """
    now = evidence.at(step)
    tracks = _joined(now.stable, stable, sampling), _joined(now.canary, canary, sampling)
    whole = evidence.whole
    return replace(
        evidence,
        steps=tuple(replace(one, stable=tracks[0], canary=tracks[1]) if number == step else one
                    for number, one in enumerate(evidence.steps)),
        whole=replace(
            whole,
            stable=_plus(whole.stable, now.stable, tracks[0]),
            canary=_plus(whole.canary, now.canary, tracks[1]),
        ),
    )  # fmt: skip


def gateway_check(
    policy: Canary,
    step: int,
    served: StepEvidence,
    stable: GatewayMetrics | None,
    canary: GatewayMetrics | None,
    blind: str = "",
) -> Check:
    """Wait while the gateway's numbers are missing; breach when too many answers were slow on their whole way.

    Errors need no check of their own: `with_gateway` counts them.

    Args:
        policy: The declared rollout.
        step: Its number.
        served: Of the step, from the prediction log alone.
        stable: What the gateway counted since the step began.
        canary: Likewise.
        blind: Why Prometheus could not be asked; empty: it answered.
    """
    if blind:
        return Check("gateway", "wait", f"{blind}; what did not reach a server cannot be seen")
    tracks = [("canary", canary, served.canary)]
    if policy.steps[step] < 100:
        tracks.append(("stable track", stable, served.stable))
    for name, counted, logged in tracks:
        known = 0 if counted is None else counted.requests
        if known < max(FEWEST_KNOWN * logged.requests, 1):
            reason = f"Prometheus knows {known:,} requests of the {name} at this step, its log {logged.requests:,}"
            return Check("gateway", "wait", reason, {"known": known, "logged": logged.requests})
    assert canary is not None
    limits = policy.guardrails
    bound = lower_bound(canary.slow, canary.timed, limits.confidence)
    numbers = {"requests": canary.requests, "failed": canary.failed, "slow": canary.slow, "low": bound}
    if bound > SLOW_SHARE:
        slow = f"{canary.slow:,} of {canary.timed:,} answers took longer than {limits.max_p99_ms:g} ms at the gateway"
        if stable is not None and stable.timed:
            low, rate = lower_bound(stable.slow, stable.timed, limits.confidence), stable.slow / stable.timed
            if low > SLOW_SHARE and bound <= AS_BAD * rate:
                return Check("gateway", "wait", f"{slow}; the stable track is as slow ({rate:.1%})", numbers)
        return Check("gateway", "breach", slow, numbers)
    reason = f"the gateway ended {canary.requests:,} requests of the canary, {canary.failed:,} with 5xx"
    return Check("gateway", "ok", reason, numbers)


def _joined(track: TrackEvidence, counted: GatewayMetrics | None, sampling: float) -> TrackEvidence:
    if counted is None:
        return track
    return replace(
        track,
        requests=max(track.requests, counted.requests),
        failed=max(track.failed, counted.failed),
        client_errors=max(track.client_errors, counted.client_errors),
        answered=max(track.answered, counted.answered),
        to_log=max(track.to_log, round(counted.answered * sampling)),
    )


def _plus(whole: TrackEvidence, before: TrackEvidence, after: TrackEvidence) -> TrackEvidence:
    names = ("requests", "failed", "client_errors", "answered", "to_log")
    return replace(
        whole, **{name: getattr(whole, name) + getattr(after, name) - getattr(before, name) for name in names}
    )
