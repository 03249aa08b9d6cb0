"""The phases of a rollout, and its state."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from shortlist.evaluation.metrics.records import Record


class Phase(StrEnum):
    """Phase of a rollout; docs/rollout.md describes what a kill in each phase leaves behind."""

    VERIFYING = "verifying"
    """The candidate's blessing and files are verified."""
    STARTING = "starting"
    """The candidate's servers start beside those of the stable track."""
    LOAD_TESTING = "load_testing"
    """The candidate's servers are load-tested."""
    SHIFTING = "shifting"
    """The share of users of a step is routed to the candidate."""
    WATCHING = "watching"
    """The canary analysis runs repeatedly."""
    PROMOTING = "promoting"
    """All users are routed to the candidate; it becomes the champion."""
    CONFIRMING = "confirming"
    """The former servers still run while the candidate is checked with all users; a failure rolls back."""
    DRAINING = "draining"
    """The former servers finish their requests and stop."""
    PROMOTED = "promoted"
    ROLLING_BACK = "rolling_back"
    """All users are routed back; the candidate's servers stop."""
    ROLLED_BACK = "rolled_back"
    ABORTING = "aborting"
    """Like rolling_back, caused by an operator or a signal."""
    ABORTED = "aborted"


FINAL_PHASES: Final = frozenset({Phase.PROMOTED, Phase.ROLLED_BACK, Phase.ABORTED})
REVERTING_PHASES: Final = frozenset({Phase.ROLLING_BACK, Phase.ABORTING})
WAITING_PHASES: Final = frozenset(Phase) - FINAL_PHASES - REVERTING_PHASES - {Phase.DRAINING}
"""Phases in which a failure of the candidate causes a rollback."""


class RolloutState(Record):
    """State of a rollout; the state machine reads nothing else."""

    rollout: str
    """Id of the rollout; also the salt of the hash that assigns users to the canary."""
    candidate: int
    """The version that is rolled out."""
    former: int | None
    """The version that served all users when the rollout began; None for the first model."""
    champion: int | None
    """The version of the registry's champion alias when the rollout began."""
    stable: int | None
    """The version of the stable track; only a promotion changes it."""
    steps: tuple[int, ...]
    """Shares of the users in percent, increasing, ending at 100."""
    straight: bool = False
    """Skip the steps: the candidate gets all users right after the load test."""
    manual: bool = False
    """An operator promoted it by hand."""
    phase: Phase = Phase.VERIFYING
    step: int = 0
    percent: int = 0
    """Share of the users that get the candidate."""
    reached: Phase = Phase.VERIFYING
    """The last phase before a rollback: what the rollback has to undo."""
    reason: str = ""
    """Reason of the last decision."""

    @property
    def final(self) -> bool:
        """Whether the rollout is over."""
        return self.phase in FINAL_PHASES
