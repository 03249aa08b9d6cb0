"""What was seen of a step, in the form in which it is kept and shown."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from shortlist.evaluation.records import ConfidenceInterval, Record
from shortlist.rollout.events import Decision


class TrackSummary(Record):
    """One track's traffic at one step."""

    requests: int = 0
    failed: int = 0
    """Not answered as they should be, by the server's fault."""
    client_errors: int = 0
    """Refused: the client got them wrong."""
    disconnected: int = 0
    """Their client went away before there was an answer."""
    p99_ms: float | None = None
    """None without an answer."""
    users: int = 0
    """Different ones."""
    kpi: float | None = None
    """Mean of the users' values over the rollout so far; None without outcomes."""
    slates: int = 0
    """Slates of this step of which an outcome is known."""
    hit_rate: float | None = None
    """Share of them with a positive label on any item; None without slates."""
    clicks_per_slate: float | None = None
    """Positive labels per slate, likewise."""


class GuardedRates(Record):
    """A guard's label on both tracks, over the rollout so far."""

    label: str
    stable: float | None = None
    """Mean of the users' values; None without outcomes."""
    canary: float | None = None
    difference: ConfidenceInterval | None = None
    """Canary less stable, as a share of stable where the limit is one; with bounds that hold however often one looks,
    None while they are not known."""
    allowed: float
    """Most that it may fall, in the same unit."""
    relative: bool = False
    """Whether that is a share of the stable track's rate."""


class CheckRecord(Record):
    """A check of the canary analysis."""

    name: str
    passed: bool | None
    """None when there is too little to tell."""
    reason: str
    numbers: dict[str, Any] = Field(default_factory=dict)


class RequestTotals(Record):
    """Every request of a rollout."""

    total: int = 0
    failed_stable: int = 0
    failed_canary: int = 0
    client_errors: int = 0
    """Refused on either track: the client got them wrong."""
    disconnected: int = 0
    """Their client went away before there was an answer, on either track."""
    lost: int = 0
    """Answered, yet not in the prediction log."""
    logged: int = 0
    """In the prediction log."""
    doubled: int = 0
    """In it more than once."""


class Observation(Record):
    """One canary analysis: what was observed and decided."""

    decision: Decision
    reason: str
    checks: tuple[CheckRecord, ...] = ()
    stable: TrackSummary = TrackSummary()
    canary: TrackSummary = TrackSummary()
    canary_share: float | None = None
    """Share of the step's users that got the canary; None without users."""
    kpi_difference: ConfidenceInterval | None = None
    """Canary less stable, with bounds that hold however often one looks; None while nothing is known."""
    guards: tuple[GuardedRates, ...] = ()
    """In the order of the spec."""
    requests: RequestTotals = RequestTotals()
    """Over the whole rollout so far."""
