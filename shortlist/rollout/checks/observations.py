"""Records of what the canary analysis observed at a step."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from shortlist.evaluation.metrics.records import ConfidenceInterval, Record
from shortlist.rollout.evidence.counts import RequestTotals, TrackCounts, UserCounts

Decision = Literal["hold", "proceed", "promote", "roll_back"]
"""What an analysis decides about the step."""


@dataclass(frozen=True, config=ConfigDict(allow_inf_nan=False))
class TrackSummary(TrackCounts, UserCounts):
    """Traffic of one track at one step: its counts, and numbers derived from them."""

    p99_ms: float | None = None
    """99th percentile of the latency; None without an answer."""
    kpi: float | None = None
    """Mean of the users' values over the rollout so far; None without outcomes."""
    hit_rate: float | None = None
    """Share of slates with a positive label on any item; None without slates."""
    clicks_per_slate: float | None = None
    """Positive labels per slate; None without slates."""


class GuardedRates(Record):
    """Rate of a guarded label on both tracks, over the rollout so far."""

    label: str
    stable: float | None = None
    """Mean of the users' values; None without outcomes."""
    canary: float | None = None
    difference: ConfidenceInterval | None = None
    """Canary minus stable, divided by stable if the limit is relative. The bounds are valid under repeated analysis;
    None while they are unknown."""
    allowed: float
    """Largest drop that is allowed, in the same unit."""
    relative: bool = False
    """Whether the limit is a share of the stable track's rate."""


class CheckRecord(Record):
    """Result of one check of the canary analysis."""

    name: str
    passed: bool | None
    """None while there is too little evidence."""
    skipped: bool = False
    """Whether it decided nothing: it compares with a stable version that was retired."""
    reason: str
    numbers: dict[str, Any] = Field(default_factory=dict)


class Observation(Record):
    """One canary analysis: what was measured and decided."""

    decision: Decision
    reason: str
    checks: tuple[CheckRecord, ...] = ()
    stable: TrackSummary = TrackSummary()
    canary: TrackSummary = TrackSummary()
    canary_share: float | None = None
    """Share of the step's users that got the canary; None without users."""
    kpi_difference: ConfidenceInterval | None = None
    """Canary minus stable, with bounds that are valid under repeated analysis; None while they are unknown."""
    guards: tuple[GuardedRates, ...] = ()
    """Guarded labels, in the order of the spec."""
    requests: RequestTotals = RequestTotals()
    """Counts over the whole rollout so far."""
