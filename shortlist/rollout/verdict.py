"""`evidence.json`: the verdict of a rollout, with its evidence."""

from __future__ import annotations

from typing import Final, Literal

from shortlist.evaluation.metrics.records import Record
from shortlist.rollout.checks.observations import Decision, GuardedRates, Observation
from shortlist.rollout.evidence.counts import RequestTotals
from shortlist.rollout.record import RolloutRecord, RolloutStep
from shortlist.rollout.states.phases import Phase

EVIDENCE: Final = "evidence.json"
Verdict = Literal["promoted", "rolled_back", "aborted", "returned", "return_failed", "return_aborted"]
"""How a rollout ended; that of the command `rollback` returns to an earlier version, its `candidate`, or does not."""


class PerTrack(Record):
    """A number of each track; None where it could not be measured."""

    stable: float | None
    canary: float | None


class StepVerdict(Record):
    """Evidence and last decision of one step."""

    weight: int
    """Share of the users sent to the canary, in percent."""
    requests: int
    failed: int
    canary_share: float | None
    """Measured share of the users on the canary, between 0 and 1."""
    p99_ms: PerTrack
    kpi: PerTrack
    guards: tuple[GuardedRates, ...] = ()
    """Rates of the guarded labels."""
    decision: Decision
    """The last decision; `hold` when the step was ended before the analysis decided."""
    reason: str


class RolloutVerdict(Record):
    """The content of `evidence.json`."""

    verdict: Verdict
    reason: str
    champion: int | None
    """The version that served when the rollout began; None for the first model."""
    candidate: int
    steps: tuple[StepVerdict, ...]
    requests: RequestTotals


_VERDICTS: Final[dict[Phase, Verdict]] = {
    Phase.PROMOTED: "promoted",
    Phase.ROLLED_BACK: "rolled_back",
    Phase.ABORTED: "aborted",
}
_VERDICTS_OF_RETURNS: Final[dict[Phase, Verdict]] = {
    Phase.PROMOTED: "returned",
    Phase.ROLLED_BACK: "return_failed",
    Phase.ABORTED: "return_aborted",
}


def make_verdict(record: RolloutRecord) -> RolloutVerdict:
    """Return the verdict of a rollout that is over."""
    return RolloutVerdict(
        verdict=(_VERDICTS_OF_RETURNS if record.returning else _VERDICTS)[record.state.phase],
        reason=record.state.reason,
        champion=record.state.former,
        candidate=record.state.candidate,
        steps=tuple(_step(step) for step in record.steps),
        requests=record.requests or RequestTotals(),
    )


def _step(step: RolloutStep) -> StepVerdict:
    observation = step.last or Observation(decision="hold", reason="ended before anything was seen")
    return StepVerdict(
        weight=step.percent,
        requests=observation.stable.requests + observation.canary.requests,
        failed=observation.stable.failed + observation.canary.failed,
        canary_share=observation.canary_share,
        p99_ms=PerTrack(stable=observation.stable.p99_ms, canary=observation.canary.p99_ms),
        kpi=PerTrack(stable=observation.stable.kpi, canary=observation.canary.kpi),
        guards=observation.guards,
        decision=observation.decision,
        reason=observation.reason,
    )
