"""The outbox of alerts: one record per alert and endpoint, written before the first attempt to send it.

Below the outbox: `waiting/`, `sent/` (accepted by the endpoint, so that no process sends it again), `lost/` (given
up, with the reason); an alert moves in one step, and a crash leaves it where it was. `told/` has the newest alert of
each name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from monitoring.alerts.alert import Alert
from monitoring.store import record_files
from monitoring.store.record_files import RecordError
from shortlist.storage.records.store import LockedError, RecordStore

QueueState = Literal["waiting", "sent", "lost"]
_STATES: Final[tuple[QueueState, ...]] = ("waiting", "sent", "lost")
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
    """Why the endpoint has not accepted it."""

    @property
    def name(self) -> str:
        """Name of its record."""
        return f"{self.alert.id}-{self.endpoint}.json"


class AlertQueue:
    """The queued alerts of a spec.

    Args:
        state: Where they are kept, below `outbox/`; nothing is made before the first alert comes.
    """

    def __init__(self, state: RecordStore) -> None:
        self._state = state

    def put(self, alert: Alert, urls: Sequence[str], now: datetime) -> int:
        """Keep an alert for every endpoint that has not got it; return for how many.

        Putting it again changes nothing, whoever does it and whether it was sent, waits or was lost.
        """
        queued = [QueuedAlert(alert=alert, endpoint=endpoint_digest(url), since=now) for url in urls]
        if not queued:
            return 0
        with self._moving():
            new = sum(self._put(one) for one in queued)
            # After the queued alerts: a crash in between only means that the same alert is put again.
            record_files.replace(self._state, f"{_OUTBOX}told/{alert.name}.json", alert)
            return new

    def latest(self) -> dict[str, Alert]:
        """Return the newest alert of each name that was sent, or will be.

        Raises:
            RecordError: A record is torn or was edited.
        """
        alerts = (self._parsed(name, text, Alert) for name, text in self._texts("told"))
        return {alert.name: alert for alert in alerts}

    def waiting(self) -> tuple[QueuedAlert, ...]:
        """Return what waits, oldest first. A record that cannot be read goes to `lost/` and hides no other."""
        found = []
        for name, text in self._texts("waiting"):
            try:
                found.append(self._parsed(name, text, QueuedAlert))
            except RecordError:
                with self._moving():
                    self._move(name.rpartition("/")[2], "lost")
        return tuple(sorted(found, key=lambda one: (one.since, one.name)))

    def count(self, state: QueueState) -> int:
        """Return how many alerts are in a state."""
        return sum(name.endswith(".json") for name in self._state.names(f"{_OUTBOX}{state}/"))

    def sent(self, queued: QueuedAlert) -> None:
        """Record that its endpoint accepted it."""
        with self._moving():
            self._move(queued.name, "sent")

    def delayed(self, queued: QueuedAlert, problem: str) -> None:
        """Record why its endpoint did not accept it; it stays in the queue."""
        if problem != queued.problem:
            with self._moving():
                self._rewrite(queued, problem)

    def lost(self, queued: QueuedAlert, problem: str) -> None:
        """Give it up, and keep it with the reason."""
        with self._moving():
            self._rewrite(queued, problem)
            self._move(queued.name, "lost")

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

    def _put(self, queued: QueuedAlert) -> bool:
        if any(self._state.read(f"{_OUTBOX}{state}/{queued.name}") is not None for state in _STATES):
            return False
        return record_files.create(self._state, f"{_OUTBOX}waiting/{queued.name}", queued)

    def _rewrite(self, queued: QueuedAlert, problem: str) -> None:
        changed = queued.model_copy(update={"problem": problem})
        record_files.replace(self._state, f"{_OUTBOX}waiting/{queued.name}", changed)

    def _move(self, name: str, state: QueueState) -> None:
        self._state.move(f"{_OUTBOX}waiting/{name}", f"{_OUTBOX}{state}/{name}")

    def _texts(self, state: QueueState | Literal["told"]) -> list[tuple[str, str]]:
        texts = self._state.texts(f"{_OUTBOX}{state}/")
        return [(name, text) for name, text in texts.items() if name.endswith(".json")]

    def _parsed(self, name: str, text: str, kind: type[record_files.Kind]) -> record_files.Kind:
        return record_files.parse(text, self._state.where(name), kind, "an alert")

    def _moving(self) -> AbstractContextManager[None]:
        return self._state.lock(f"{_OUTBOX}moving")


def endpoint_digest(url: str) -> str:
    """Return the digest by which an endpoint is known: 12 hexadecimal digits."""
    return hashlib.sha256(url.encode()).hexdigest()[:12]
