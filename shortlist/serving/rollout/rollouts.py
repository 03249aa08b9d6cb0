"""The rollouts of a spec: one folder each, one controller at a time."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout
from pydantic import ValidationError

from shortlist.artefacts import IntegrityError, read_json, write_json
from shortlist.contracts import ShortlistError
from shortlist.serving.rollout.record import RolloutRecord

STATE: Final = "state.json"
_STAMP: Final = "%Y%m%d-%H%M%S"


class RolloutError(ShortlistError):
    """A rollout cannot begin, or could not be brought to its end."""


class Rollouts:
    """What was rolled out, newest last, and the lock that only one controller holds.

    Args:
        folder: `Places.rollouts`; specs may share it.
        spec: Name of the spec.
    """

    def __init__(self, folder: Path, spec: str) -> None:
        self.folder = folder
        self.spec = spec
        self._id = re.compile(rf"\d{{8}}-\d{{6}}-{re.escape(spec)}-[0-9a-f]{{4}}")

    def folder_of(self, rollout: str) -> Path:
        """Return the folder of a rollout."""
        return self.folder / rollout

    def ids(self) -> list[str]:
        """Return the ids of all rollouts that began, oldest first."""
        return sorted(
            path.parent.name for path in self.folder.glob(f"*/{STATE}") if self._id.fullmatch(path.parent.name)
        )

    def new_id(self) -> str:
        """Return an id after all others: a moment, the spec and four random digits.

        A clock that was set back would put the new one before the old ones; then it gets the next second after them.
        """
        moment = datetime.now(UTC).replace(tzinfo=None)
        known = self.ids()
        if known:
            last = datetime.strptime(known[-1][:15], _STAMP)
            moment = max(moment, last + timedelta(seconds=1))
        return f"{moment:{_STAMP}}-{self.spec}-{secrets.token_hex(2)}"

    def save(self, record: RolloutRecord) -> None:
        """Write a rollout's state, whole or not at all."""
        folder = self.folder_of(record.id)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / STATE, record.model_dump(mode="json"))

    def read(self, rollout: str) -> RolloutRecord:
        """Return a rollout.

        Raises:
            RolloutError: There is none of that id.
            IntegrityError: Its file is not what was written.
        """
        path = self.folder_of(rollout) / STATE
        if not path.exists():
            raise RolloutError(f"{path}: there is no rollout '{rollout}'; the newest is {(self.ids() or ['none'])[-1]}")
        try:
            return RolloutRecord.model_validate(read_json(path))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise IntegrityError(
                f"{path}: not a rollout's state ({where}: {first['msg']}). It was written by another version or edited;"
                " move its folder away and run again."
            ) from None

    def latest(self) -> RolloutRecord | None:
        """Return the newest rollout, running or over; None before the first."""
        ids = self.ids()
        return self.read(ids[-1]) if ids else None

    def unfinished(self) -> RolloutRecord | None:
        """Return the rollout that has not come to its end, if any; a new one never begins before the last is over."""
        latest = self.latest()
        return latest if latest is not None and not latest.state.final else None

    def newest_first(self) -> Iterator[RolloutRecord]:
        """Return all rollouts, the newest first."""
        return (self.read(rollout) for rollout in reversed(self.ids()))

    @contextmanager
    def held(self, seconds: float = 0.0) -> Iterator[None]:
        """Be the only controller; the system frees the lock of one that dies.

        Args:
            seconds: How long to wait for another controller to end.

        Raises:
            RolloutError: Another controller is at work.
        """
        lock = self._lock()
        try:
            lock.acquire(timeout=seconds, poll_interval=0.1)
        except Timeout:
            raise RolloutError(self._refusal()) from None
        try:
            yield
        finally:
            lock.release()

    def is_held(self) -> bool:
        """Whether a controller is at work now."""
        lock = self._lock()
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return True
        lock.release()
        return False

    def _lock(self) -> FileLock:
        self.folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self.folder / f".{self.spec}.lock")

    def _refusal(self) -> str:
        running = self.unfinished()
        if running is None:
            return f"{self.folder}: another rollout is just beginning or ending; try again in a moment"
        state = running.state
        return (
            f"rollout {running.id} of version {state.candidate} is under way ({state.phase.value}, {state.percent} % of"
            " the users). Wait for it, or look with make canary-status; make promote and make rollback end it at once."
        )
