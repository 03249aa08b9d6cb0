"""Events of a rollout."""

from __future__ import annotations

from dataclasses import dataclass

from shortlist.rollout.checks.observations import Decision
from shortlist.rollout.states.phases import Phase


@dataclass(frozen=True)
class PhaseCompleted:
    """All actions of a phase succeeded."""

    phase: Phase
    step: int


@dataclass(frozen=True)
class StepAnalyzed:
    """The canary analysis of a step has ended."""

    step: int
    decision: Decision
    reason: str


@dataclass(frozen=True)
class Failed:
    """An action failed because of the candidate."""

    reason: str


@dataclass(frozen=True)
class Abort:
    """An operator or a signal ends the rollout."""

    reason: str


@dataclass(frozen=True)
class Promote:
    """An operator promotes the candidate without waiting for evidence."""

    reason: str


Event = PhaseCompleted | StepAnalyzed | Failed | Abort | Promote
