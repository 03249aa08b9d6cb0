"""Alerts on their way: one file per alert and endpoint, from before the first try until somebody took it.

Below the outbox: `waiting/`, `sent/` (what an endpoint took, so that nobody sends it again), `lost/` (what none would
take, with the reason); an alert moves by one rename, and a crash leaves it where it was. `told/` has the newest alert
of each name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict

from monitoring import record_files
from monitoring.alert import Alert
from monitoring.record_files import RecordError

Place = Literal["waiting", "sent", "lost"]
PLACES: Final[tuple[Place, ...]] = ("waiting", "sent", "lost")


class Letter(BaseModel):
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
        """Of its file."""
        return f"{self.alert.id}-{self.endpoint}.json"


class Outbox:
    """The letters of a spec.

    Args:
        folder: `Book.outbox`; it is made when the first alert comes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, alert: Alert, urls: Sequence[str], now: datetime) -> int:
        """Keep an alert for every endpoint that has not got it; return for how many.

        Putting it again changes nothing, whoever does it and whether it was sent, waits or was lost.
        """
        letters = [Letter(alert=alert, endpoint=endpoint_of(url), since=now) for url in urls]
        if not letters:
            return 0
        with self._moving():
            new = sum(self._put(letter) for letter in letters)
            # After the letters: a crash in between only means that the same news is brought again.
            record_files.replace(self.folder / "told" / f"{alert.name}.json", alert)
            return new

    def told(self) -> dict[str, Alert]:
        """Return the newest alert of each name that people were told, or will be.

        Raises:
            RecordError: A file is torn or was edited.
        """
        alerts = (record_files.read(path, Alert, "an alert") for path in (self.folder / "told").glob("*.json"))
        return {alert.name: alert for alert in alerts}

    def waiting(self) -> tuple[Letter, ...]:
        """Return what is on its way, oldest first. A file that nobody can read goes to `lost/` and hides no other."""
        found = []
        for path in sorted((self.folder / "waiting").glob("*.json")):
            try:
                found.append(record_files.read(path, Letter, "an alert"))
            except RecordError:
                with self._moving():
                    self._move(path.name, "lost")
        return tuple(sorted(found, key=lambda one: (one.since, one.name)))

    def count(self, place: Place) -> int:
        """Return how many letters are in a place."""
        return sum(1 for _ in (self.folder / place).glob("*.json"))

    def sent(self, letter: Letter) -> None:
        """Note that its endpoint took it."""
        with self._moving():
            self._move(letter.name, "sent")

    def delayed(self, letter: Letter, problem: str) -> None:
        """Note why its endpoint did not take it; it stays."""
        if problem != letter.problem:
            with self._moving():
                self._rewrite(letter, problem)

    def lost(self, letter: Letter, problem: str) -> None:
        """Give it up, and keep it with the reason."""
        with self._moving():
            self._rewrite(letter, problem)
            self._move(letter.name, "lost")

    @contextmanager
    def delivering(self, seconds: float) -> Iterator[bool]:
        """Be the only process that delivers; give False when another one still does after so many seconds."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / ".delivering.lock")  # the system frees it when its process dies
        try:
            lock.acquire(timeout=seconds)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def _put(self, letter: Letter) -> bool:
        if any((self.folder / place / letter.name).exists() for place in PLACES):
            return False
        return record_files.create(self.folder / "waiting" / letter.name, letter)

    def _rewrite(self, letter: Letter, problem: str) -> None:
        record_files.replace(self.folder / "waiting" / letter.name, letter.model_copy(update={"problem": problem}))

    def _move(self, name: str, place: Place) -> None:
        (self.folder / place).mkdir(exist_ok=True)
        (self.folder / "waiting" / name).replace(self.folder / place / name)

    @contextmanager
    def _moving(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / ".moving.lock"):
            yield


def endpoint_of(url: str) -> str:
    """Return the digest by which an endpoint is known: 12 hexadecimal digits."""
    return hashlib.sha256(url.encode()).hexdigest()[:12]
