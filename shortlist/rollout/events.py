"""What can happen to a rollout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shortlist.rollout.phases import Phase

Decision = Literal["hold", "proceed", "promote", "roll_back"]


@dataclass(frozen=True)
class Done:
    """All that a phase asks for is so."""

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
    """The candidate is not fit for traffic."""

    reason: str


@dataclass(frozen=True)
class Abort:
    """Somebody wants it to end."""

    reason: str


@dataclass(frozen=True)
class Promote:
    """Somebody wants it to be promoted without more waiting."""

    reason: str


Event = Done | StepAnalyzed | Failed | Abort | Promote
