"""Runs the canary analysis of a step: reads the logs, asks the servers, returns the record that is kept."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shortlist.evaluation.records import Interval
from shortlist.rollout import sequential
from shortlist.rollout.analysis import StepAnalysis, analyze_step
from shortlist.rollout.checks import Check, Health
from shortlist.rollout.checks_kpi import guard_interval, interval
from shortlist.rollout.evidence import RolloutEvidence, TrackEvidence
from shortlist.rollout.evidence_reader import EvidenceReader
from shortlist.rollout.observations import CheckResult, GuardedRates, Observation, Requests, Track
from shortlist.rollout.sequential_difference import NO_DIFFERENCE, Difference
from shortlist.spec.serving import Canary

_PASSED = {"ok": True, "wait": None, "breach": False}


class AnalysisObserver:
    """The `Observer` of one rollout."""

    def __init__(self, reader: EvidenceReader, policy: Canary, health: Callable[[], Health]) -> None:
        """Prepare to look.

        Args:
            reader: Of the rollout's logs.
            policy: The declared rollout.
            health: Asks the canary's servers how they are.
        """
        self._reader, self._policy, self._health = reader, policy, health

    def observe_step(self, step: int, at_step_seconds: float) -> Observation:
        """Return what was observed of a step, with the decision of the canary analysis."""
        health = self._health()
        self._reader.poll()
        evidence = self._reader.snapshot()
        return observation(
            evidence, self._policy, step, analyze_step(evidence, self._policy, step, at_step_seconds, health)
        )

    def total(self) -> Requests:
        """Return the count of all requests so far."""
        self._reader.poll()
        return requests_of(self._reader.snapshot())


def observation(evidence: RolloutEvidence, policy: Canary, step: int, judgement: StepAnalysis) -> Observation:
    """Return what was seen and said in the form in which it is kept."""
    now, kpi = evidence.at(step), evidence.kpi
    return Observation(
        decision=judgement.decision,
        reason=judgement.reason,
        checks=tuple(_result(check) for check in judgement.checks),
        stable=_track(now.stable, kpi.stable_mean),
        canary=_track(now.canary, kpi.canary_mean),
        canary_share=now.canary_share,
        kpi_difference=_kept(interval(kpi, policy)),
        guards=tuple(_rates(label, evidence.guards.get(label, NO_DIFFERENCE), policy) for label in policy.guards),
        requests=requests_of(evidence),
    )


def _rates(label: str, seen: Difference, policy: Canary) -> GuardedRates:
    guard = policy.guards[label]
    return GuardedRates(
        label=label,
        stable=_finite(seen.stable_mean),
        canary=_finite(seen.canary_mean),
        difference=_kept(guard_interval(label, seen, policy)),
        allowed=guard.allowed,
        relative=guard.is_relative,
    )


def _kept(between: sequential.Interval) -> Interval | None:
    return Interval(low=between.low, value=between.value, high=between.high) if between.is_bounded else None


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def requests_of(evidence: RolloutEvidence) -> Requests:
    """Return the count of all requests of a rollout."""
    whole, accounting = evidence.whole, evidence.accounting
    return Requests(
        total=whole.stable.requests + whole.canary.requests,
        failed_stable=whole.stable.failed,
        failed_canary=whole.canary.failed,
        client_errors=whole.stable.client_errors + whole.canary.client_errors,
        disconnected=whole.stable.disconnected + whole.canary.disconnected,
        lost=accounting.lost,
        logged=accounting.logged,
        doubled=accounting.doubled,
    )


def _track(track: TrackEvidence, kpi: float) -> Track:
    return Track(
        requests=track.requests,
        failed=track.failed,
        client_errors=track.client_errors,
        disconnected=track.disconnected,
        p99_ms=track.latencies.quantile_ms(0.99),
        users=track.users,
        kpi=_finite(kpi),
        slates=track.slates,
        hit_rate=track.hit_rate,
        clicks_per_slate=track.clicks_per_slate,
    )


def _result(check: Check) -> CheckResult:
    return CheckResult(name=check.name, passed=_PASSED[check.word], reason=check.reason, numbers=check.numbers)
