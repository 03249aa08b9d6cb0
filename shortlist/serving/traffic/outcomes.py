"""What users do with what they are shown, written to the outcome log after a while."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any

from shortlist.serving.traffic.requests import Array
from shortlist.serving.traffic.sessions import Session

_Waiting = tuple[float, int, str, Sequence[Any] | None, Array, Sequence[Sequence[Any]]]


@dataclass
class Outcomes:
    """Outcomes that are not known yet; handed over when their time comes.

    A log's impressions were all shown, so every row of a session has its outcome, however a model would have ordered
    them. Whoever asks what users saw of a model takes the rows that it put first.
    """

    delay_seconds: float
    write: Callable[[Sequence[Sequence[Any]]], object]
    """Takes the rows of one request, each in the order of the outcome log's schema."""
    _waiting: list[_Waiting] = field(default_factory=list)
    _order: count[int] = field(default_factory=count)

    def expect(self, request_id: str, session: Session, now: float) -> None:
        """Note that a session was answered; of it, only the items and what became of them are kept."""
        due = now + self.delay_seconds
        heapq.heappush(
            self._waiting, (due, next(self._order), request_id, session.items, session.labels, session.after)
        )

    def release(self, now: float) -> None:
        """Write every outcome whose time has come; `now` may be infinite."""
        while self._waiting and self._waiting[0][0] <= now:
            _, _, request_id, items, labels, after = heapq.heappop(self._waiting)
            moment = datetime.now(UTC)
            self.write(
                [
                    (moment, request_id, None if items is None else items[row], row, label, *(of[row] for of in after))
                    for row, label in enumerate(labels.tolist())
                ]
            )
