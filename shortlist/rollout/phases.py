"""The phases of a rollout, and all that decides what comes next."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from shortlist.evaluation.records import Record


class Phase(StrEnum):
    """Where a rollout is; docs/rollout.md tells what a kill in each of them leaves behind."""

    VERIFYING = "verifying"
    """Is the candidate blessed, and are its files those that were judged?"""
    STARTING = "starting"
    """Its servers start beside the stable track's."""
    LOAD_TESTING = "load_testing"
    """The running servers are put under load."""
    SHIFTING = "shifting"
    """The users of a step are sent to it."""
    WATCHING = "watching"
    """The canary analysis runs repeatedly."""
    PROMOTING = "promoting"
    """Everybody is sent to it; it becomes the champion."""
    DRAINING = "draining"
    """The former servers end what they are doing, and stop."""
    PROMOTED = "promoted"
    ROLLING_BACK = "rolling_back"
    """Everybody is sent back; the candidate's servers stop."""
    ROLLED_BACK = "rolled_back"
    ABORTING = "aborting"
    """The same, because somebody wants it."""
    ABORTED = "aborted"


FINAL_PHASES: Final = frozenset({Phase.PROMOTED, Phase.ROLLED_BACK, Phase.ABORTED})
REVERTING_PHASES: Final = frozenset({Phase.ROLLING_BACK, Phase.ABORTING})
WAITING_PHASES: Final = frozenset(Phase) - FINAL_PHASES - REVERTING_PHASES - {Phase.DRAINING}
"""Phases in which a failure of the candidate leads back."""


class RolloutState(Record):
    """Everything that decides what comes next."""

    rollout: str
    """Its id, which also salts who is a canary user."""
    candidate: int
    """The version that is rolled out."""
    former: int | None
    """The version that served everybody when it began; None for the first model ever."""
    champion: int | None
    """The version that the registry called champion when it began."""
    stable: int | None
    """The version of the stable track; only a promotion moves it."""
    steps: tuple[int, ...]
    """Shares of the users in percent, growing, ending at 100."""
    straight: bool = False
    """No steps: a load-tested candidate gets everybody at once."""
    manual: bool = False
    """Somebody promoted it by hand."""
    phase: Phase = Phase.VERIFYING
    step: int = 0
    percent: int = 0
    """Share of the users that get the candidate."""
    reached: Phase = Phase.VERIFYING
    """The last phase before a rollback: what the rollback has to undo."""
    reason: str = ""
    """Why it went where it is going."""

    @property
    def final(self) -> bool:
        """Whether it is over."""
        return self.phase in FINAL_PHASES
