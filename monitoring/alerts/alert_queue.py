"""Alerts on their way: one record per alert and endpoint, from before the first try until somebody took it.

Below the outbox: `waiting/`, `sent/` (what an endpoint took, so that nobody sends it again), `lost/` (what none would
take, with the reason); an alert moves in one step, and a crash leaves it where it was. `told/` has the newest alert
of each name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from monitoring import record_files
from monitoring.alerts.alert import Alert
from monitoring.record_files import RecordError
from shortlist.storage.records.store import LockedError, RecordStore

QueueState = Literal["waiting", "sent", "lost"]
PLACES: Final[tuple[QueueState, ...]] = ("waiting", "sent", "lost")
_OUTBOX: Final = "outbox/"


class QueuedAlert(BaseModel):
    """An alert for one endpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    alert: Alert
    endpoint: str
    """Digest of its URL, which may hold a secret and is not written down."""
    since: datetime
    """When it was put here."""
    problem: str = ""
    """Why it was not taken yet, or never."""

    @property
    def name(self) -> str:
        """Of its record."""
        return f"{self.alert.id}-{self.endpoint}.json"


class AlertQueue:
    """The letters of a spec.

    Args:
        state: Where they are kept, below `outbox/`; nothing is made before the first alert comes.
    """

    def __init__(self, state: RecordStore) -> None:
        self._state = state

    def put(self, alert: Alert, urls: Sequence[str], now: datetime) -> int:
        """Keep an alert for every endpoint that has not got it; return for how many.

        Putting it again changes nothing, whoever does it and whether it was sent, waits or was lost.
        """
        letters = [QueuedAlert(alert=alert, endpoint=endpoint_digest(url), since=now) for url in urls]
        if not letters:
            return 0
        with self._moving():
            new = sum(self._put(letter) for letter in letters)
            # After the letters: a crash in between only means that the same news is brought again.
            record_files.replace(self._state, f"{_OUTBOX}told/{alert.name}.json", alert)
            return new

    def told(self) -> dict[str, Alert]:
        """Return the newest alert of each name that people were told, or will be.

        Raises:
            RecordError: A record is torn or was edited.
        """
        alerts = (self._parsed(name, text, Alert) for name, text in self._texts("told"))
        return {alert.name: alert for alert in alerts}

    def waiting(self) -> tuple[QueuedAlert, ...]:
        """Return what is on its way, oldest first. A record that nobody can read goes to `lost/` and hides no other."""
        found = []
        for name, text in self._texts("waiting"):
            try:
                found.append(self._parsed(name, text, QueuedAlert))
            except RecordError:
                with self._moving():
                    self._move(name.rpartition("/")[2], "lost")
        return tuple(sorted(found, key=lambda one: (one.since, one.name)))

    def count(self, place: QueueState) -> int:
        """Return how many letters are in a place."""
        return sum(name.endswith(".json") for name in self._state.names(f"{_OUTBOX}{place}/"))

    def sent(self, letter: QueuedAlert) -> None:
        """Note that its endpoint took it."""
        with self._moving():
            self._move(letter.name, "sent")

    def delayed(self, letter: QueuedAlert, problem: str) -> None:
        """Note why its endpoint did not take it; it stays."""
        if problem != letter.problem:
            with self._moving():
                self._rewrite(letter, problem)

    def lost(self, letter: QueuedAlert, problem: str) -> None:
        """Give it up, and keep it with the reason."""
        with self._moving():
            self._rewrite(letter, problem)
            self._move(letter.name, "lost")

    @contextmanager
    def delivering(self, seconds: float) -> Iterator[bool]:
        """Be the only process that delivers; give False when another one still does after so many seconds."""
        # The block's own errors pass: only taking the lock may fail so.
        with ExitStack() as stack:
            try:
                stack.enter_context(self._state.lock(f"{_OUTBOX}delivering", seconds))
            except LockedError:
                yield False
                return
            yield True

    def _put(self, letter: QueuedAlert) -> bool:
        if any(self._state.read(f"{_OUTBOX}{place}/{letter.name}") is not None for place in PLACES):
            return False
        return record_files.create(self._state, f"{_OUTBOX}waiting/{letter.name}", letter)

    def _rewrite(self, letter: QueuedAlert, problem: str) -> None:
        changed = letter.model_copy(update={"problem": problem})
        record_files.replace(self._state, f"{_OUTBOX}waiting/{letter.name}", changed)

    def _move(self, name: str, place: QueueState) -> None:
        self._state.move(f"{_OUTBOX}waiting/{name}", f"{_OUTBOX}{place}/{name}")

    def _texts(self, place: QueueState | Literal["told"]) -> list[tuple[str, str]]:
        texts = self._state.texts(f"{_OUTBOX}{place}/")
        return [(name, text) for name, text in texts.items() if name.endswith(".json")]

    def _parsed(self, name: str, text: str, kind: type[record_files.Kind]) -> record_files.Kind:
        return record_files.parsed(text, self._state.where(name), kind, "an alert")

    def _moving(self) -> AbstractContextManager[None]:
        return self._state.lock(f"{_OUTBOX}moving")


def endpoint_digest(url: str) -> str:
    """Return the digest by which an endpoint is known: 12 hexadecimal digits."""
    return hashlib.sha256(url.encode()).hexdigest()[:12]
