"""What a rollout has shown so far: plain numbers per step and track, on which the canary analysis decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shortlist.rollout.evidence_latency import Latencies
from shortlist.rollout.sequential_difference import Difference

Floats = npt.NDArray[np.float64]


def _no_scores() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True, eq=False)
class TrackEvidence:
    """One track at one step, or over the whole rollout."""

    requests: int = 0
    """Inference requests in Envoy's access logs."""
    failed: int = 0
    """Those without a usable answer by the server's fault: 5xx, or a gRPC status that says so."""
    client_errors: int = 0
    """Those that the client got wrong."""
    disconnected: int = 0
    """Those whose client went away before there was an answer."""
    answered: int = 0
    """Those answered with scores."""
    anonymous: int = 0
    """Those without a user, in the access logs: each was routed by chance, and counts as a user of its own."""
    users: int = 0
    """Different users in the access logs; a request without one counts as a user. Before the last step, only those who
    asked before the newest answered request of the slower track: see `evidence_arrivals`."""
    settled_users: int = 0
    """Those of requests that began so long ago that all that began with them have ended."""
    disconnected_users: int = 0
    """Those who went away before an answer at least once."""
    refused_users: int = 0
    """Those who got something wrong at least once, by the track's own judgement (4xx)."""
    slate_users: int = 0
    """Those with a slate in the prediction log, also an empty one."""
    empty_slate_users: int = 0
    """Those of them with an empty one."""
    latencies: Latencies = field(default_factory=Latencies)
    """Of those answered with scores, through Envoy."""
    to_log: int = 0
    """Answered, and chosen for the prediction log."""
    logged: int = 0
    """Rows of the prediction log, double ones too."""
    bad: int = 0
    """Logged ones with a score that is not a finite number, or none."""
    degraded: int = 0
    """Logged ones whose features could not be read."""
    rankable: int = 0
    """Logged ones with two or more finite scores."""
    flat: int = 0
    """Those of them whose scores are all the same."""
    with_outcomes: int = 0
    """Logged ones of which an outcome is known."""
    slates: int = 0
    """Slates of which an outcome is known: answers with items that the release itself found."""
    hits: int = 0
    """Those of them with a positive label on any of their items."""
    clicks: int = 0
    """Their items with a positive label."""
    kpi: float | None = None
    """Mean over its users of what they did with what was shown (see `OutcomeJoin`); None without outcomes."""
    kpi_users: int = 0
    """Its users with outcomes."""
    scores: Floats = field(default_factory=_no_scores)
    """A bounded sample of finite scores."""
    score_users: float = 0.0
    """Users (or requests without one) in the sample, as many as would spread it evenly: its independent parts."""

    @property
    def hit_rate(self) -> float | None:
        """Share of slates with a positive label; None without slates."""
        return self.hits / self.slates if self.slates else None

    @property
    def clicks_per_slate(self) -> float | None:
        """Positive labels per slate; None without slates."""
        return self.clicks / self.slates if self.slates else None

    @property
    def judged(self) -> int:
        """Requests that say something of the release: a client's mistake, or one that went away, does not."""
        return self.answered + self.failed

    def summary(self) -> dict[str, Any]:
        """Return the numbers for a report."""
        return {
            "requests": self.requests,
            "failed": self.failed,
            "client_errors": self.client_errors,
            "disconnected": self.disconnected,
            "users": self.users,
            "refused_users": self.refused_users,
            "empty_slate_users": self.empty_slate_users,
            "p50_ms": _rounded(self.latencies.quantile_ms(0.50)),
            "p95_ms": _rounded(self.latencies.quantile_ms(0.95)),
            "p99_ms": _rounded(self.latencies.quantile_ms(0.99)),
            "logged": self.logged,
            "bad_scores": self.bad,
            "degraded": self.degraded,
            "with_outcomes": self.with_outcomes,
            "slates": self.slates,
            "hit_rate": _rounded(self.hit_rate, 6),
            "clicks_per_slate": _rounded(self.clicks_per_slate, 6),
            "kpi": _rounded(self.kpi, 6),
            "kpi_users": self.kpi_users,
            "mean_score": _rounded(float(self.scores.mean()) if self.scores.size else None, 6),
        }


@dataclass(frozen=True)
class StepEvidence:
    """Both tracks."""

    stable: TrackEvidence = field(default_factory=TrackEvidence)
    canary: TrackEvidence = field(default_factory=TrackEvidence)
    flapped: int = 0
    """Users seen on both tracks at one and the same step."""

    @property
    def canary_share(self) -> float | None:
        """Share of the users that were on the canary."""
        users = self.stable.users + self.canary.users
        return self.canary.users / users if users else None

    def summary(self) -> dict[str, Any]:
        """Return the numbers for a report."""
        share = {"canary_share": _rounded(self.canary_share, 5), "flapped": self.flapped}
        return {"stable": self.stable.summary(), "canary": self.canary.summary(), **share}


@dataclass(frozen=True)
class RequestAccounting:
    """What Envoy answered against what the servers wrote down, by request id."""

    answered: int = 0
    """Requests answered with scores that the prediction log should hold."""
    logged: int = 0
    """Rows of the prediction log with status 200."""
    lost: int = 0
    """Answered, and not in the log (yet)."""
    doubled: int = 0
    """Rows of the log beyond the first, or beyond the answers that Envoy saw under that id."""
    unanswered: int = 0
    """In the log, and not answered according to Envoy (yet): its client went away."""
    unreadable: int = 0
    """Lines and files that could not be read."""


@dataclass(frozen=True)
class RolloutEvidence:
    """Everything the canary analysis reads."""

    rollout: str
    steps: tuple[StepEvidence, ...]
    """By step; steps not reached are empty."""
    whole: StepEvidence
    kpi: Difference
    accounting: RequestAccounting = RequestAccounting()
    guards: Mapping[str, Difference] = field(default_factory=dict)
    """What users did by each guard's label."""

    def at(self, step: int) -> StepEvidence:
        """Return what is known of a step."""
        return self.steps[step] if step < len(self.steps) else StepEvidence()

    def latest_stable(self, step: int, least: int) -> tuple[int, TrackEvidence] | None:
        """Return the newest step, this one or before, where the stable track answered this often; None without."""
        for number in range(min(step, len(self.steps) - 1), -1, -1):
            if self.steps[number].stable.judged >= least:
                return number, self.steps[number].stable
        return None

    def summary(self) -> dict[str, Any]:
        """Return the numbers for a report, fit for JSON."""
        return {
            "rollout": self.rollout,
            "steps": _summaries(self.steps),
            "whole": self.whole.summary(),
            "kpi": kpi_summary(self.kpi),
            "guards": {label: kpi_summary(seen) for label, seen in self.guards.items()},
            "requests": {
                "total": self.whole.stable.requests + self.whole.canary.requests,
                "failed_stable": self.whole.stable.failed,
                "failed_canary": self.whole.canary.failed,
                "client_errors": self.whole.stable.client_errors + self.whole.canary.client_errors,
                "disconnected": self.whole.stable.disconnected + self.whole.canary.disconnected,
                "lost": self.accounting.lost,
                "logged": self.accounting.logged,
                "doubled": self.accounting.doubled,
                "unanswered": self.accounting.unanswered,
                "unreadable": self.accounting.unreadable,
            },
        }


def kpi_summary(kpi: Difference) -> dict[str, Any]:
    """Return the numbers for a report; what is not a number is None."""
    known = bool(np.isfinite(kpi.variance))
    return {
        "stable": _finite(kpi.stable_mean),
        "canary": _finite(kpi.canary_mean),
        "difference": _finite(kpi.value),
        "standard_error": _rounded(kpi.variance**0.5, 6) if known else None,
        "stable_users": kpi.stable_users,
        "canary_users": kpi.canary_users,
    }


def _summaries(steps: Sequence[StepEvidence]) -> list[dict[str, Any]]:
    return [{"step": number, **step.summary()} for number, step in enumerate(steps)]


def _finite(value: float) -> float | None:
    return _rounded(value, 6) if np.isfinite(value) else None


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)
