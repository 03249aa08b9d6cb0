"""The rollouts of a spec: a few records each, one controller at a time."""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from pydantic import BaseModel, ValidationError

from shortlist.contracts import ShortlistError
from shortlist.rollout.operator_commands import ORDER, OperatorCommand
from shortlist.rollout.page import PAGE, write_page
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.verdict import EVIDENCE, Verdict
from shortlist.storage.artefacts import IntegrityError, write_text
from shortlist.storage.objects import ObjectStore, open_object_store
from shortlist.storage.records.folder import FolderRecordStore
from shortlist.storage.records.opening import open_record_store
from shortlist.storage.records.store import LockedError, RecordStore
from shortlist.storage.storage_config import StorageConfig

STATE: Final = "state.json"
FAULTS: Final = "faults.log"
"""Tracebacks of what should not have happened."""
_STAMP: Final = "%Y%m%d-%H%M%S"


def _now() -> datetime:
    return datetime.now(UTC)


def _four_digits() -> str:
    return secrets.token_hex(2)


class RolloutError(ShortlistError):
    """A rollout cannot begin, or could not be brought to its end."""


class Rollouts:
    """What was rolled out, newest last, and the lock that only one controller holds.

    Args:
        folder: `Places.rollouts`; specs may share it.
        spec: Name of the spec.
        state: Where the records are; files in the folder by default.
        objects: Where pages are put for those who see another disk; None: nowhere.
        now: The time of day, in UTC; for people, and in the ids of rollouts.
        digits: Gives the random digits of an id.
    """

    def __init__(
        self,
        folder: Path,
        spec: str,
        state: RecordStore | None = None,
        objects: ObjectStore | None = None,
        now: Callable[[], datetime] = _now,
        digits: Callable[[], str] = _four_digits,
    ) -> None:
        self.folder = folder
        self.spec = spec
        self._state = FolderRecordStore(folder) if state is None else state
        self._objects = objects
        self.now, self._digits = now, digits
        self._id = re.compile(rf"\d{{8}}-\d{{6}}-{re.escape(spec)}-[0-9a-f]{{4}}")

    def folder_of(self, rollout: str) -> Path:
        """Return the folder of a rollout on this machine: candidate's files, pages, tracebacks."""
        return self.folder / rollout

    def where(self, rollout: str, name: str = STATE) -> str:
        """Return what to call a record of a rollout in a message to a person."""
        return self._state.where(f"{rollout}/{name}")

    def page(self, rollout: str, name: str) -> str:
        """Return where people find a file that `publish` put there."""
        if self._objects is not None:
            return self._objects.url(f"rollouts/{rollout}/{name}")
        return str(self.folder_of(rollout) / name)

    def ids(self) -> list[str]:
        """Return the ids of all rollouts that began, oldest first."""
        found = (name.partition("/") for name in self._state.names(""))
        return sorted(rollout for rollout, _, name in found if name == STATE and self._id.fullmatch(rollout))

    def new_id(self) -> str:
        """Return an id after all others: a moment, the spec and four random digits.

        A clock that was set back would put the new one before the old ones; then it gets the next second after them.
        """
        moment = self.now().replace(tzinfo=None)
        known = self.ids()
        if known:
            last = datetime.strptime(known[-1][:15], _STAMP)
            moment = max(moment, last + timedelta(seconds=1))
        return f"{moment:{_STAMP}}-{self.spec}-{self._digits()}"

    def save(self, record: RolloutRecord) -> None:
        """Write a rollout's state, whole or not at all."""
        self._make_folder(record.id)
        self._state.replace(f"{record.id}/{STATE}", _text(record))

    def conclude(self, rollout: str, verdict: Verdict) -> None:
        """Write how a rollout ended."""
        self._state.replace(f"{rollout}/{EVIDENCE}", _text(verdict))

    def verdict(self, rollout: str) -> Verdict | None:
        """Return how a rollout ended; None before."""
        text = self._state.read(f"{rollout}/{EVIDENCE}")
        return None if text is None else Verdict.model_validate_json(text)

    def order(self, rollout: str, order: OperatorCommand) -> None:
        """Leave an order for the controller of a rollout, in place of an earlier one."""
        self._state.replace(f"{rollout}/{ORDER}", order.model_dump_json() + "\n")

    def ordered(self, rollout: str) -> OperatorCommand | None:
        """Return the order for a rollout, if there is one; one that nobody can read counts as none."""
        with suppress(ValidationError):
            text = self._state.read(f"{rollout}/{ORDER}")
            return None if text is None else OperatorCommand.model_validate_json(text)
        return None

    def write_page(self, record: RolloutRecord) -> None:
        """Write the page of a rollout, and put it where those who see another disk find it."""
        write_page(record, self.folder_of(record.id) / PAGE)
        self.publish(record.id, PAGE)

    def note_fault(self, rollout: str, text: str) -> None:
        """Keep a traceback of what should not have happened, beside a rollout's state."""
        path = self.folder_of(rollout) / FAULTS
        earlier = path.read_text(encoding="utf-8") if path.exists() else ""
        path.parent.mkdir(parents=True, exist_ok=True)  # the controller that began it may have been elsewhere
        write_text(path, f"{earlier}{text}\n")
        with suppress(ShortlistError):  # the object store may be what is at fault
            self.publish(rollout, FAULTS)

    def files_of(self, rollout: str) -> Path:
        """Return the folder for a rollout's files that have to be fetched; it need not be there."""
        return self.folder_of(rollout) / "files"

    def temporary_folder(self) -> AbstractContextManager[str]:
        """Return a folder for files to be fetched before there is a rollout; it vanishes after the block."""
        return TemporaryDirectory()

    def remove_files(self, rollout: str) -> None:
        """See that a rollout's fetched files are gone."""
        shutil.rmtree(self.files_of(rollout), ignore_errors=True)

    def _make_folder(self, rollout: str) -> None:
        self.folder_of(rollout).mkdir(parents=True, exist_ok=True)

    def publish(self, rollout: str, name: str) -> None:
        """Put a file of a rollout's folder where those who see another disk find it."""
        if self._objects is not None:
            self._objects.put_file(self.folder_of(rollout) / name, f"rollouts/{rollout}/{name}")

    def read(self, rollout: str) -> RolloutRecord:
        """Return a rollout.

        Raises:
            RolloutError: There is none of that id.
            IntegrityError: Its file is not what was written.
        """
        where = self._state.where(f"{rollout}/{STATE}")
        text = self._state.read(f"{rollout}/{STATE}")
        if text is None:
            newest = (self.ids() or ["none"])[-1]
            raise RolloutError(f"{where}: there is no rollout '{rollout}'; the newest is {newest}")
        try:
            return RolloutRecord.model_validate(json.loads(text))
        except ValidationError as error:
            first = error.errors()[0]
            why = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
        except ValueError as error:
            why = f"no JSON: {error}"
        raise IntegrityError(
            f"{where}: not a rollout's state ({why}). It was written by another version or edited;"
            " move its folder away and run again."
        )

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
        """Be the only controller; the system, or the server, frees the lock of one that dies.

        Args:
            seconds: How long to wait for another controller to end.

        Raises:
            RolloutError: Another controller is at work.
        """
        with ExitStack() as stack:  # a write in the block may fail in the same way, and means something else
            try:
                stack.enter_context(self._state.lock(self.spec, seconds))
            except LockedError:
                raise RolloutError(self._refusal()) from None
            yield

    def is_held(self) -> bool:
        """Whether a controller is at work now."""
        return self._state.is_locked(self.spec)

    def _refusal(self) -> str:
        running = self.unfinished()
        if running is None:
            return f"{self.folder}: another rollout is just beginning or ending; try again in a moment"
        state = running.state
        return (
            f"rollout {running.id} of version {state.candidate} is under way ({state.phase.value}, {state.percent} % of"
            " the users). Wait for it, or follow it with make canary-status; make promote and make rollback end it at"
            " once."
        )


def open_rollouts(stores: str, name: str) -> Rollouts:
    """Return the rollouts of a spec.

    Args:
        stores: Where MLflow and Feast keep theirs, as the graph's `stores` parameter says it.
        name: Of the spec.

    Raises:
        ShortlistError: The stores keep no records.
    """
    known = StorageConfig.parse(stores)
    objects = open_object_store(known) if known.objects else None
    return Rollouts(known.runs.resolve() / "rollouts", name, open_record_store(known, "rollouts", name), objects)


def _text(record: BaseModel) -> str:
    return record.model_dump_json(indent=2) + "\n"  # a number that is none becomes null: people may read on
