"""`evidence.json`: how a rollout ended and why, for programs."""

from __future__ import annotations

from typing import Final, Literal

from shortlist.evaluation.records import Record
from shortlist.rollout.events import Decision
from shortlist.rollout.observations import GuardedRates, Observation, Requests
from shortlist.rollout.phases import Phase
from shortlist.rollout.record import RolloutRecord, Step

EVIDENCE: Final = "evidence.json"


class PerTrack(Record):
    """A number of each track; None where it could not be measured."""

    stable: float | None
    canary: float | None


class StepVerdict(Record):
    """One step."""

    weight: int
    """Share of the users sent to the canary, in percent."""
    requests: int
    failed: int
    canary_share: float | None
    """Share of the users that were there, between 0 and 1."""
    p99_ms: PerTrack
    kpi: PerTrack
    guards: tuple[GuardedRates, ...] = ()
    """Of the further labels that the spec guards."""
    decision: Decision
    """The last one; `hold` when somebody ended the step before the analysis did."""
    reason: str


class RequestCounts(Record):
    """Over the whole rollout."""

    total: int
    failed_stable: int
    failed_canary: int
    client_errors: int = 0
    """Refused: the client got them wrong. No evidence against a release."""
    disconnected: int = 0
    """Their client went away before there was an answer. No evidence against a release."""
    lost: int
    """Answered, yet missing in the prediction log."""
    logged: int


class Verdict(Record):
    """The content of `evidence.json`."""

    verdict: Literal["promoted", "rolled_back", "aborted"]
    reason: str
    champion: int | None
    """The version that served when it began; None for the first model ever."""
    candidate: int
    steps: tuple[StepVerdict, ...]
    requests: RequestCounts


_VERDICTS: Final[dict[Phase, Literal["promoted", "rolled_back", "aborted"]]] = {
    Phase.PROMOTED: "promoted",
    Phase.ROLLED_BACK: "rolled_back",
    Phase.ABORTED: "aborted",
}


def verdict_of(record: RolloutRecord) -> Verdict:
    """Return the verdict of a rollout that is over."""
    counts = record.requests or Requests()
    return Verdict(
        verdict=_VERDICTS[record.state.phase],
        reason=record.state.reason,
        champion=record.state.former,
        candidate=record.state.candidate,
        steps=tuple(_step(step) for step in record.steps),
        requests=RequestCounts(**counts.model_dump(include=set(RequestCounts.model_fields))),
    )


def _step(step: Step) -> StepVerdict:
    seen = step.last or Observation(decision="hold", reason="ended before anything was seen")
    return StepVerdict(
        weight=step.percent,
        requests=seen.stable.requests + seen.canary.requests,
        failed=seen.stable.failed + seen.canary.failed,
        canary_share=seen.canary_share,
        p99_ms=PerTrack(stable=seen.stable.p99_ms, canary=seen.canary.p99_ms),
        kpi=PerTrack(stable=seen.stable.kpi, canary=seen.canary.kpi),
        guards=seen.guards,
        decision=seen.decision,
        reason=seen.reason,
    )
