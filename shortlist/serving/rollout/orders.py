"""What somebody tells a running controller from another process: a file in the rollout's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError

from shortlist.artefacts import write_text
from shortlist.evaluation.records import Record
from shortlist.serving.rollout.events import Abort, Promote

ORDER: Final = "order.json"


class Order(Record):
    """Somebody's wish; the newest counts."""

    wish: Literal["promote", "rollback"]
    reason: str

    @property
    def event(self) -> Promote | Abort:
        """What it means for the rollout."""
        return Promote(self.reason) if self.wish == "promote" else Abort(self.reason)


def give(folder: Path, order: Order) -> None:
    """Leave an order for the controller of the rollout in a folder."""
    write_text(folder / ORDER, order.model_dump_json() + "\n")


def given(folder: Path) -> Order | None:
    """Return the order in a rollout's folder, if there is one; one that nobody can read counts as none."""
    try:
        return Order.model_validate_json((folder / ORDER).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValidationError):
        return None
