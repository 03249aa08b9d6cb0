"""Evidence of a rollout: numbers per step and track, from which the canary analysis decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shortlist.rollout.evidence.counts import TRACK_COUNTS, USER_COUNTS, RequestTotals, TrackCounts, UserCounts
from shortlist.rollout.evidence.latency import Latencies
from shortlist.rollout.evidence.sequential_difference import TrackDifference

Floats = npt.NDArray[np.float64]


def _no_scores() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True, eq=False)
class TrackEvidence(TrackCounts, UserCounts):
    """Evidence of one track, at one step or over the whole rollout."""

    anonymous: int = 0
    """Requests without a user: each was routed at random, and counts as one user."""
    latencies: Latencies = field(default_factory=Latencies)
    """Latencies of the answered requests, measured by Envoy."""
    kpi: float | None = None
    """Mean over the users of their values (see `OutcomeJoin`); None without outcomes."""
    kpi_users: int = 0
    """Users with outcomes."""
    scores: Floats = field(default_factory=_no_scores)
    """Bounded sample of finite scores."""
    score_users: float = 0.0
    """Effective number of users in the sample of scores: as many as would have equal shares of it."""
    left_out_senders: tuple[str, ...] = ()
    """Senders of what is no evidence, those of most first; an empty text stands for those without an address."""

    @property
    def p99_ms(self) -> float | None:
        """99th percentile of the latencies; None without an answer."""
        return self.latencies.quantile_ms(0.99)

    @property
    def hit_rate(self) -> float | None:
        """Share of slates with a positive label; None without slates."""
        return self.hits / self.slates if self.slates else None

    @property
    def clicks_per_slate(self) -> float | None:
        """Positive labels per slate; None without slates."""
        return self.clicks / self.slates if self.slates else None

    @property
    def judged_requests(self) -> int:
        """Requests that are evidence about the release: all but client errors and disconnected ones."""
        return self.answered + self.failed

    def summary(self) -> dict[str, Any]:
        """Return the numbers for a report."""
        return {
            **{name: getattr(self, name) for name in (*TRACK_COUNTS, *USER_COUNTS)},
            "p50_ms": _rounded(self.latencies.quantile_ms(0.50)),
            "p95_ms": _rounded(self.latencies.quantile_ms(0.95)),
            "p99_ms": _rounded(self.p99_ms),
            "hit_rate": _rounded(self.hit_rate, 6),
            "clicks_per_slate": _rounded(self.clicks_per_slate, 6),
            "kpi": _rounded(self.kpi, 6),
            "kpi_users": self.kpi_users,
            "mean_score": _rounded(float(self.scores.mean()) if self.scores.size else None, 6),
        }


@dataclass(frozen=True)
class StepEvidence:
    """Evidence of both tracks."""

    stable: TrackEvidence = field(default_factory=TrackEvidence)
    canary: TrackEvidence = field(default_factory=TrackEvidence)
    users_on_both_tracks: int = 0
    """Users with requests on both tracks at the same step."""

    @property
    def canary_share(self) -> float | None:
        """Share of the users that were on the canary."""
        users = self.stable.users + self.canary.users
        return self.canary.users / users if users else None

    def summary(self) -> dict[str, Any]:
        """Return the numbers for a report."""
        share = {"canary_share": _rounded(self.canary_share, 5), "flapped": self.users_on_both_tracks}
        return {"stable": self.stable.summary(), "canary": self.canary.summary(), **share}


@dataclass(frozen=True)
class RequestAccounting:
    """Comparison of Envoy's access logs with the prediction log, by request id."""

    answered: int = 0
    """Answered requests that the prediction log should contain."""
    logged: int = 0
    """Rows of the prediction log with status 200."""
    lost: int = 0
    """Answered requests that are not (yet) in the prediction log."""
    doubled: int = 0
    """Rows of the prediction log beyond the first, or beyond the answers that Envoy logged under that id."""
    unanswered: int = 0
    """Logged requests that have no answer in Envoy's logs (yet), because their client disconnected."""
    unreadable: int = 0
    """Lines and files that could not be read."""


@dataclass(frozen=True)
class RolloutEvidence:
    """All evidence of a rollout that the canary analysis reads."""

    rollout: str
    steps: tuple[StepEvidence, ...]
    """Evidence by step; empty for steps that were not reached."""
    whole: StepEvidence
    kpi: TrackDifference
    accounting: RequestAccounting = RequestAccounting()
    guards: Mapping[str, TrackDifference] = field(default_factory=dict)
    """Difference of each guarded label."""
    left_out: Mapping[bool, TrackCounts] = field(default_factory=dict)
    """Counts of the requests that are no evidence, by whether they were on the canary."""

    def at_step(self, step: int) -> StepEvidence:
        """Return the evidence of a step."""
        return self.steps[step] if step < len(self.steps) else StepEvidence()

    def latest_stable(self, step: int, min_requests: int) -> tuple[int, TrackEvidence] | None:
        """Return the newest step up to this one with `min_requests` stable requests, and its evidence; or None."""
        for number in range(min(step, len(self.steps) - 1), -1, -1):
            if self.steps[number].stable.judged_requests >= min_requests:
                return number, self.steps[number].stable
        return None

    def request_totals(self) -> RequestTotals:
        """Return the counts of all requests, also of those that are no evidence, by track."""
        whole, accounting = self.whole, self.accounting
        return RequestTotals(
            stable=whole.stable.counts() + self.left_out.get(False, TrackCounts()),
            canary=whole.canary.counts() + self.left_out.get(True, TrackCounts()),
            lost=accounting.lost,
            logged=accounting.logged,
            doubled=accounting.doubled,
        )

    def summary(self) -> dict[str, Any]:
        """Return the numbers for a report, fit for JSON."""
        return {
            "rollout": self.rollout,
            "steps": _summaries(self.steps),
            "whole": self.whole.summary(),
            "kpi": kpi_summary(self.kpi),
            "guards": {label: kpi_summary(difference) for label, difference in self.guards.items()},
            "requests": {
                **self.request_totals().model_dump(),
                "unanswered": self.accounting.unanswered,
                "unreadable": self.accounting.unreadable,
            },
        }


def kpi_summary(kpi: TrackDifference) -> dict[str, Any]:
    """Return the numbers for a report; what is not a number is None."""
    is_known = bool(np.isfinite(kpi.variance))
    return {
        "stable": _finite(kpi.stable_mean),
        "canary": _finite(kpi.canary_mean),
        "difference": _finite(kpi.value),
        "standard_error": _rounded(kpi.variance**0.5, 6) if is_known else None,
        "stable_users": kpi.stable_users,
        "canary_users": kpi.canary_users,
    }


def _summaries(steps: Sequence[StepEvidence]) -> list[dict[str, Any]]:
    return [{"step": number, **step.summary()} for number, step in enumerate(steps)]


def _finite(value: float) -> float | None:
    return _rounded(value, 6) if np.isfinite(value) else None


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)
