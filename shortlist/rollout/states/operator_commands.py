"""Commands that another process sends to a running controller."""

from __future__ import annotations

from typing import Final, Literal

from shortlist.evaluation.metrics.records import Record
from shortlist.rollout.states.events import Abort, Promote

COMMAND_FILE: Final = "order.json"


class OperatorCommand(Record):
    """Command of an operator; the newest one replaces earlier ones."""

    action: Literal["promote", "rollback"]
    reason: str

    @property
    def event(self) -> Promote | Abort:
        """The event that the command causes."""
        return Promote(self.reason) if self.action == "promote" else Abort(self.reason)
