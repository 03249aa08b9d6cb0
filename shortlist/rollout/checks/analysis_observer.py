"""Runs the canary analysis of a step: reads the logs, checks the servers' health, returns the observation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np

from shortlist.evaluation.metrics.records import ConfidenceInterval
from shortlist.rollout.checks.analysis import StepAnalysis, analyze_step
from shortlist.rollout.checks.health import CheckResult, Health
from shortlist.rollout.checks.kpi import guard_interval, kpi_interval
from shortlist.rollout.checks.observations import CheckRecord, GuardedRates, Observation, TrackSummary
from shortlist.rollout.evidence import sequential
from shortlist.rollout.evidence.counts import RequestTotals
from shortlist.rollout.evidence.reader import EvidenceReader
from shortlist.rollout.evidence.rollout_evidence import RolloutEvidence, TrackEvidence
from shortlist.rollout.evidence.sequential_difference import NO_DIFFERENCE, TrackDifference
from shortlist.spec.serving import Canary

_PASSED = {"ok": True, "wait": None, "breach": False, "skipped": True}


class AnalysisObserver:
    """The `Observer` of one rollout."""

    def __init__(
        self,
        reader: EvidenceReader,
        policy: Canary,
        health: Callable[[], Health],
        spec: str = "",
        retirement: str = "",
    ) -> None:
        """Keep the sources of the evidence.

        Args:
            reader: Reader of the rollout's logs.
            policy: The declared rollout.
            health: Returns the health of the canary's servers.
            spec: Name of the spec, for commands in messages.
            retirement: Which version of the stable track was retired, and why; empty when it was not.
        """
        self._reader, self._policy, self._health = reader, policy, health
        self._spec, self._retirement = spec, retirement

    def observe_step(self, step: int, at_step_seconds: float) -> Observation:
        """Return what was observed of a step, with the decision of the canary analysis."""
        health = self._health()
        self._reader.poll()
        evidence = self._reader.snapshot()
        analysis = analyze_step(
            evidence, self._policy, step, at_step_seconds, health, spec=self._spec, retirement=self._retirement
        )
        return make_observation(evidence, self._policy, step, analysis)

    def total(self) -> RequestTotals:
        """Return the count of all requests so far."""
        self._reader.poll()
        return self._reader.snapshot().request_totals()


def make_observation(evidence: RolloutEvidence, policy: Canary, step: int, analysis: StepAnalysis) -> Observation:
    """Return the evidence and the analysis of a step as a record."""
    step_evidence, kpi = evidence.at_step(step), evidence.kpi
    return Observation(
        decision=analysis.decision,
        reason=analysis.reason,
        checks=tuple(_check_record(check) for check in analysis.checks),
        stable=_summarize_track(step_evidence.stable, kpi.stable_mean),
        canary=_summarize_track(step_evidence.canary, kpi.canary_mean),
        canary_share=step_evidence.canary_share,
        kpi_difference=_bounded_interval(kpi_interval(kpi, policy)),
        guards=tuple(
            _guarded_rates(label, evidence.guards.get(label, NO_DIFFERENCE), policy) for label in policy.guards
        ),
        requests=evidence.request_totals(),
    )


def _guarded_rates(label: str, difference: TrackDifference, policy: Canary) -> GuardedRates:
    guard = policy.guards[label]
    return GuardedRates(
        label=label,
        stable=_finite_or_none(difference.stable_mean),
        canary=_finite_or_none(difference.canary_mean),
        difference=_bounded_interval(guard_interval(label, difference, policy)),
        allowed=guard.allowed,
        relative=guard.is_relative,
    )


def _bounded_interval(estimate: sequential.AnytimeInterval) -> ConfidenceInterval | None:
    return (
        ConfidenceInterval(low=estimate.low, value=estimate.value, high=estimate.high) if estimate.is_bounded else None
    )


def _finite_or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _summarize_track(track: TrackEvidence, kpi: float) -> TrackSummary:
    numbers = {summary.name: getattr(track, summary.name) for summary in fields(TrackSummary)}
    return TrackSummary(**numbers | {"kpi": _finite_or_none(kpi)})


def _check_record(check: CheckResult) -> CheckRecord:
    return CheckRecord(
        name=check.name,
        passed=_PASSED[check.status],
        skipped=check.status == "skipped",
        reason=check.reason,
        numbers=check.numbers,
    )
