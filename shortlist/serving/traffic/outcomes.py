"""What users do with what they are shown, written to the outcome log after a while."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from shortlist.serving.traffic.answers import Scores
from shortlist.serving.traffic.requests import Array
from shortlist.serving.traffic.sessions import Session


@dataclass
class Outcomes:
    """Outcomes that are not known yet; handed over when their time comes."""

    top: int
    """Items of an answer that are shown, the best-scored ones."""
    delay_seconds: float
    write: Callable[[Sequence[Any]], object]
    """Takes one row of the outcome log, in the order of its schema."""
    _waiting: list[tuple[float, str, Session, Array]] = field(default_factory=list)

    def expect(self, request_id: str, session: Session, scores: Scores, now: float) -> None:
        """Note that a user was shown the best of a session, whatever the model thinks the best are."""
        heapq.heappush(self._waiting, (now + self.delay_seconds, request_id, session, shown(scores, self.top)))

    def release(self, now: float) -> None:
        """Write every outcome whose time has come; `now` may be infinite."""
        while self._waiting and self._waiting[0][0] <= now:
            _, request_id, session, rows = heapq.heappop(self._waiting)
            moment = datetime.now(UTC)
            for row in rows.tolist():
                item = None if session.items is None else session.items[row]
                self.write((moment, request_id, item, row, int(session.labels[row])))


def shown(scores: Scores, top: int) -> Array:
    """Return the rows with the best scores, the earlier one of equals first; NaN comes last.

    >>> shown(np.array([0.1, np.nan, 0.9, 0.9], np.float32), 2).tolist()
    [2, 3]
    """
    return np.argsort(-scores, kind="stable")[:top]
