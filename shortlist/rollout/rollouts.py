"""The records of a spec's rollouts, and the lock that allows one controller at a time."""

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
from shortlist.rollout.page import PAGE, write_page
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.states.operator_commands import COMMAND_FILE, OperatorCommand
from shortlist.rollout.states.phases import Phase
from shortlist.rollout.verdict import EVIDENCE, RolloutVerdict
from shortlist.storage.artefacts import IntegrityError, write_text
from shortlist.storage.objects import ObjectStore, open_object_store
from shortlist.storage.records.folder import FolderRecordStore
from shortlist.storage.records.opening import open_record_store
from shortlist.storage.records.store import LockedError, RecordStore
from shortlist.storage.storage_config import StorageConfig

STATE: Final = "state.json"
FAULTS: Final = "faults.log"
"""Tracebacks of unexpected errors."""
_STAMP: Final = "%Y%m%d-%H%M%S"


def _now() -> datetime:
    return datetime.now(UTC)


def _four_digits() -> str:
    return secrets.token_hex(2)


class RolloutError(ShortlistError):
    """A rollout cannot begin, or could not be finished."""


class Rollouts:
    """Reads and writes the records of a spec's rollouts; holds the lock of its controller.

    Args:
        folder: Folder of the rollouts; specs may share it.
        spec: Name of the spec.
        state: Store of the records; files in the folder by default.
        objects: Object store where pages are published; None: they stay in the folder.
        now: Returns the time in UTC; for people, and for the ids of rollouts.
        digits: Returns the random digits of an id.
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

    def rollout_folder(self, rollout: str) -> Path:
        """Return the folder of a rollout on this machine: the candidate's files, the page, tracebacks."""
        return self.folder / rollout

    def location(self, rollout: str, name: str = STATE) -> str:
        """Return the location of a record of a rollout, for messages."""
        return self._state.where(f"{rollout}/{name}")

    def page(self, rollout: str, name: str) -> str:
        """Return the address of a file that `publish` published."""
        if self._objects is not None:
            return self._objects.url(f"rollouts/{rollout}/{name}")
        return str(self.rollout_folder(rollout) / name)

    def ids(self) -> list[str]:
        """Return the ids of all rollouts, oldest first."""
        name_parts = (name.partition("/") for name in self._state.names(""))
        return sorted(rollout for rollout, _, name in name_parts if name == STATE and self._id.fullmatch(rollout))

    def new_id(self) -> str:
        """Return a new id that sorts after all others: a time, the spec and four random digits.

        If the clock was set back, the time is the second after that of the newest id.
        """
        moment = self.now().replace(tzinfo=None)
        ids_so_far = self.ids()
        if ids_so_far:
            last = datetime.strptime(ids_so_far[-1][:15], _STAMP)
            moment = max(moment, last + timedelta(seconds=1))
        return f"{moment:{_STAMP}}-{self.spec}-{self._digits()}"

    def save(self, record: RolloutRecord) -> None:
        """Write the record of a rollout atomically."""
        self._make_folder(record.id)
        self._state.replace(f"{record.id}/{STATE}", _text(record))

    def write_verdict(self, rollout: str, verdict: RolloutVerdict) -> None:
        """Write the verdict of a rollout."""
        self._state.replace(f"{rollout}/{EVIDENCE}", _text(verdict))

    def verdict(self, rollout: str) -> RolloutVerdict | None:
        """Return the verdict of a rollout; None while it is unfinished."""
        text = self._state.read(f"{rollout}/{EVIDENCE}")
        return None if text is None else RolloutVerdict.model_validate_json(text)

    def send_command(self, rollout: str, send_command: OperatorCommand) -> None:
        """Write a command for the controller of a rollout; replaces an earlier command."""
        self._state.replace(f"{rollout}/{COMMAND_FILE}", send_command.model_dump_json() + "\n")

    def pending_command(self, rollout: str) -> OperatorCommand | None:
        """Return the command for the controller of a rollout; None without one, or when it cannot be parsed."""
        with suppress(ValidationError):
            text = self._state.read(f"{rollout}/{COMMAND_FILE}")
            return None if text is None else OperatorCommand.model_validate_json(text)
        return None

    def write_page(self, record: RolloutRecord) -> None:
        """Write the page of a rollout, and publish it."""
        write_page(record, self.rollout_folder(record.id) / PAGE)
        self.publish(record.id, PAGE)

    def log_fault(self, rollout: str, text: str) -> None:
        """Append the traceback of an unexpected error to the rollout's faults.log."""
        path = self.rollout_folder(rollout) / FAULTS
        logged_text = path.read_text(encoding="utf-8") if path.exists() else ""
        path.parent.mkdir(parents=True, exist_ok=True)  # another machine may have started the rollout
        write_text(path, f"{logged_text}{text}\n")
        with suppress(ShortlistError):  # the object store itself may have caused the error
            self.publish(rollout, FAULTS)

    def fetched_files_folder(self, rollout: str) -> Path:
        """Return the folder for a rollout's fetched files; it need not exist."""
        return self.rollout_folder(rollout) / "files"

    def temporary_folder(self) -> AbstractContextManager[str]:
        """Return a temporary folder for files that are fetched before the rollout begins."""
        return TemporaryDirectory()

    def remove_files(self, rollout: str) -> None:
        """Remove the fetched files of a rollout."""
        shutil.rmtree(self.fetched_files_folder(rollout), ignore_errors=True)

    def _make_folder(self, rollout: str) -> None:
        # The record holds the salt by which users are assigned.
        self.rollout_folder(rollout).mkdir(mode=0o700, parents=True, exist_ok=True)

    def publish(self, rollout: str, name: str) -> None:
        """Copy a file of a rollout's folder to the object store, if there is one."""
        if self._objects is not None:
            self._objects.put_file(self.rollout_folder(rollout) / name, f"rollouts/{rollout}/{name}")

    def read(self, rollout: str) -> RolloutRecord:
        """Return the record of a rollout.

        Raises:
            RolloutError: There is no rollout of that id.
            IntegrityError: Its file cannot be parsed.
        """
        location = self._state.where(f"{rollout}/{STATE}")
        text = self._state.read(f"{rollout}/{STATE}")
        if text is None:
            newest = (self.ids() or ["none"])[-1]
            raise RolloutError(f"{location}: there is no rollout '{rollout}'; the newest is {newest}")
        try:
            return RolloutRecord.model_validate(json.loads(text))
        except ValidationError as error:
            first = error.errors()[0]
            problem = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
        except ValueError as error:
            problem = f"no JSON: {error}"
        raise IntegrityError(
            f"{location}: not a rollout's state ({problem}). It was written by another version or edited;"
            " move its folder away and run again."
        )

    def latest(self) -> RolloutRecord | None:
        """Return the newest rollout, finished or not; None before the first."""
        ids = self.ids()
        return self.read(ids[-1]) if ids else None

    def unfinished(self) -> RolloutRecord | None:
        """Return the unfinished rollout, if any; a new one never begins before the last is over."""
        latest = self.latest()
        return latest if latest is not None and not latest.state.final else None

    def newest_first(self) -> Iterator[RolloutRecord]:
        """Return all rollouts, the newest first."""
        return (self.read(rollout) for rollout in reversed(self.ids()))

    def served_versions(self) -> list[int]:
        """Return the versions that served all users, each once, the last one first; unreadable records are left out."""
        versions: dict[int, None] = {}
        for record in self._readable_newest_first():
            state = record.state
            if state.phase is Phase.PROMOTED:
                versions.setdefault(state.candidate)
            if state.former is not None:
                versions.setdefault(state.former)
        return list(versions)

    def rollback_reason(self, version: int) -> str | None:
        """Return why a version was rolled back or returned from at last; None where it was not, or served since."""
        for record in self._readable_newest_first():
            state = record.state
            if version == state.candidate:
                return state.reason if state.final and state.phase is not Phase.PROMOTED else None
            if version == state.former and state.phase is Phase.PROMOTED:
                return state.reason if record.returning else None
        return None

    def _readable_newest_first(self) -> Iterator[RolloutRecord]:
        for rollout in reversed(self.ids()):
            with suppress(IntegrityError):  # no command may fail because of an old record
                yield self.read(rollout)

    @contextmanager
    def lock(self, seconds: float = 0.0) -> Iterator[None]:
        """Hold the controller's lock inside the block; the lock of a process that dies is released.

        Args:
            seconds: How long to wait for another controller to end.

        Raises:
            RolloutError: Another controller holds the lock.
        """
        with ExitStack() as stack:  # not around the block: a write there may raise the same error
            try:
                stack.enter_context(self._state.lock(self.spec, seconds))
            except LockedError:
                raise RolloutError(self._refusal()) from None
            yield

    def is_locked(self) -> bool:
        """Whether a controller holds the lock."""
        return self._state.is_locked(self.spec)

    def _refusal(self) -> str:
        running = self.unfinished()
        if running is None:
            return f"{self.folder}: another rollout is just beginning or ending; try again in a moment"
        state = running.state
        return (
            f"rollout {running.id} of version {state.candidate} is under way ({state.phase.value}, {state.percent} % of"
            f" the users). Wait for it, or follow it with make canary-status SPEC={self.spec}; make promote"
            f" SPEC={self.spec} and make rollback SPEC={self.spec} end it at once."
        )


def open_rollouts(stores: str, name: str) -> Rollouts:
    """Return the rollouts of a spec.

    Args:
        stores: Storage configuration, as the graph's `stores` parameter has it.
        name: Name of the spec.

    Raises:
        ShortlistError: The storage configuration has no place for records.
    """
    ids_so_far = StorageConfig.parse(stores)
    objects = open_object_store(ids_so_far) if ids_so_far.objects else None
    return Rollouts(
        ids_so_far.runs.resolve() / "rollouts", name, open_record_store(ids_so_far, "rollouts", name), objects
    )


def _text(record: BaseModel) -> str:
    return record.model_dump_json(indent=2) + "\n"  # NaN becomes null, so that every JSON parser can read it
