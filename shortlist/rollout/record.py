"""The record of a rollout: its state, history and observations."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, Self

from pydantic import Field

from shortlist.evaluation.metrics.records import ConfidenceInterval, Record
from shortlist.rollout.checks.observations import Observation
from shortlist.rollout.evidence.counts import RequestTotals
from shortlist.rollout.states.phases import Phase, RolloutState
from shortlist.spec.log_shape import FurtherLabel
from shortlist.spec.serving import Canary

_MAX_SAMPLES: Final = 600
_UNFINISHED_RETURNS: Final = {Phase.ROLLED_BACK: "failed", Phase.ABORTED: "aborted"}
"""How a rollback ended that did not return to the earlier version."""


class PhaseChange(Record):
    """Beginning of a phase."""

    phase: Phase
    step: int
    percent: int
    reason: str
    time: str
    """Wall-clock time, ISO 8601, for people. Wall clocks jump: no decision depends on it."""
    elapsed_seconds: float


class RolloutStep(Record):
    """A step of the rollout, with its newest observation."""

    step: int
    percent: int
    began_seconds: float
    """When the analysis of the step began, in seconds of the rollout's own clock."""
    last: Observation | None = None
    """The newest observation; at the end of the step the one that decided."""


class PlotSample(Record):
    """One point in time of the plot."""

    elapsed_seconds: float
    percent: int
    p99_ms_stable: float | None = None
    p99_ms_canary: float | None = None
    kpi_stable: float | None = None
    kpi_canary: float | None = None
    kpi_difference: ConfidenceInterval | None = None
    guards: dict[str, ConfidenceInterval | None] = Field(default={})
    """Difference of each guarded label, canary minus stable."""
    failed_stable: int = 0
    failed_canary: int = 0


class RolloutRecord(Record):
    """A rollout: its state, its history and its observations."""

    spec: str
    state: RolloutState
    kind: str
    """Kind or name of the candidate's model, such as `xgboost`."""
    digest: str
    """Digest of the candidate's model folder when its blessing was verified; empty before."""
    policy: Canary
    """The policy as declared when the rollout began; later changes of the spec have no effect."""
    labels: dict[str, FurtherLabel] = Field(default={})
    """Guarded labels by name, as declared when the rollout began."""
    notices: tuple[str, ...] = ()
    """What should be known before users get the candidate."""
    retirement: str = ""
    """Which version served and was retired when the rollout began, and why; empty when it was not. The analysis then
    does not compare scores and outcomes with it."""
    salt: str = ""
    """Secret salt of the hash that assigns users to the canary; empty in records of earlier versions: the id."""
    returning: bool = False
    """The rollout returns to a version by the command `rollback`."""
    served_before: bool = True
    """Whether that version had served before."""
    elapsed_seconds: float = 0.0
    """Time that controllers worked on it, by a monotonic clock; time without a controller is not counted."""
    history: tuple[PhaseChange, ...] = ()
    steps: tuple[RolloutStep, ...] = ()
    samples: tuple[PlotSample, ...] = ()
    requests: RequestTotals | None = None
    """Counts at the end of the rollout; None before."""

    @property
    def id(self) -> str:
        """Id of the rollout."""
        return self.state.rollout

    @property
    def is_rolled_back(self) -> bool:
        """Whether it is over and the version before serves: it was rolled back, or it was itself a rollback."""
        return self.state.final and (self.state.phase is Phase.PROMOTED) == self.returning

    @property
    def outcome(self) -> str:
        """How it ended, or its present phase, in words; a return to an earlier version is a rollback, no promotion."""
        phase = self.state.phase
        if self.returning and self.state.final:
            return "rolled back" if phase is Phase.PROMOTED else f"rollback {_UNFINISHED_RETURNS[phase]}"
        return phase.value.replace("_", " ")

    @property
    def began_at(self) -> datetime | None:
        """When the rollout began, by the wall clock; None before."""
        return datetime.fromisoformat(self.history[0].time) if self.history else None

    @property
    def at_step_seconds(self) -> float:
        """Time spent at the newest step."""
        return self.elapsed_seconds - self.steps[-1].began_seconds if self.steps else 0.0

    @property
    def in_phase_seconds(self) -> float:
        """Time spent in the present phase."""
        return self.elapsed_seconds - self.history[-1].elapsed_seconds if self.history else 0.0

    def with_elapsed(self, elapsed_seconds: float) -> Self:
        """Return the record at a later time."""
        return self.model_copy(update={"elapsed_seconds": max(elapsed_seconds, self.elapsed_seconds)})

    def with_state(self, state: RolloutState, time: datetime | None = None) -> Self:
        """Return the record with a new state; a new phase is added to the history.

        Args:
            state: The new state.
            time: Wall-clock time for the history; now by default.
        """
        changes: dict[str, object] = {"state": state}
        if not self.history or (state.phase, state.step) != (self.state.phase, self.state.step):
            changes["history"] = (*self.history, self._phase_change(state, time or datetime.now(UTC)))
            changes["samples"] = self._append_sample(self._plot_sample(state, None))
            if state.phase is Phase.WATCHING:
                began_at = RolloutStep(step=state.step, percent=state.percent, began_seconds=self.elapsed_seconds)
                changes["steps"] = (*self.steps, began_at)
        return self.model_copy(update=changes)

    def with_observation(self, observation: Observation) -> Self:
        """Return the record with an observation of the newest step."""
        step = self.steps[-1].model_copy(update={"last": observation})
        samples = self._append_sample(self._plot_sample(self.state, observation))
        return self.model_copy(update={"steps": (*self.steps[:-1], step), "samples": samples})

    def _phase_change(self, state: RolloutState, time: datetime) -> PhaseChange:
        return PhaseChange(
            phase=state.phase,
            step=state.step,
            percent=state.percent,
            reason=state.reason,
            time=time.isoformat(timespec="milliseconds"),
            elapsed_seconds=self.elapsed_seconds,
        )

    def _plot_sample(self, state: RolloutState, observation: Observation | None) -> PlotSample:
        sample = PlotSample(elapsed_seconds=self.elapsed_seconds, percent=state.percent)
        if observation is None:
            return sample
        return sample.model_copy(
            update={
                "p99_ms_stable": observation.stable.p99_ms,
                "p99_ms_canary": observation.canary.p99_ms,
                "kpi_stable": observation.stable.kpi,
                "kpi_canary": observation.canary.kpi,
                "kpi_difference": observation.kpi_difference,
                "guards": {guard.label: guard.difference for guard in observation.guards},
                "failed_stable": observation.requests.stable.failed,
                "failed_canary": observation.requests.canary.failed,
            }
        )

    def _append_sample(self, sample: PlotSample) -> tuple[PlotSample, ...]:
        samples = (*self.samples, sample)
        if len(samples) <= _MAX_SAMPLES:
            return samples
        # Drop every other sample, but none at which the share changed: the file of a long rollout stays small.
        thinned = [
            earlier_sample
            for number, earlier_sample in enumerate(samples)
            if number % 2 == 0 or number == len(samples) - 1 or earlier_sample.percent != samples[number - 1].percent
        ]
        return tuple(thinned)
