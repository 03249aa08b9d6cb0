"""What somebody tells a running controller from another process."""

from __future__ import annotations

from typing import Final, Literal

from shortlist.evaluation.records import Record
from shortlist.rollout.events import Abort, Promote

ORDER: Final = "order.json"


class OperatorCommand(Record):
    """Somebody's wish; the newest counts."""

    wish: Literal["promote", "rollback"]
    reason: str

    @property
    def event(self) -> Promote | Abort:
        """What it means for the rollout."""
        return Promote(self.reason) if self.wish == "promote" else Abort(self.reason)
