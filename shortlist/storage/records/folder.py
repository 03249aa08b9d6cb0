"""Records as files in a folder, for processes of one machine."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from shortlist.storage.artefacts import write_text
from shortlist.storage.records.names import MOST_PARTS, checked, is_name
from shortlist.storage.records.store import LockedError


class FolderRecordStore:
    """A `RecordStore`: a record's name is its path. Other files may lie beside them.

    Args:
        folder: Where they are; it is made when something is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self, name: str, text: str) -> bool:
        """Write a text unless there is one; return True for exactly one of all processes that try at once.

        The file appears whole: it is written under another name, and linked to its own.
        """
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        mine = path.with_name(f".{path.stem}.{os.getpid()}-{secrets.token_hex(4)}")
        try:
            write_text(mine, text)
            try:
                os.link(mine, path)
            except FileExistsError:
                return False
            return True
        finally:
            mine.unlink(missing_ok=True)

    def replace(self, name: str, text: str) -> None:
        """Write a text in place of what is there, if anything is."""
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)

    def read(self, name: str) -> str | None:
        """Return a text; None when there is none. Bytes that are no text become escapes that no JSON has."""
        try:
            return self._path(name).read_bytes().decode(errors="backslashreplace")
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        """See that there is none."""
        self._path(name).unlink(missing_ok=True)

    def move(self, name: str, to: str) -> None:
        """Give a text another name, in place of what is there; nothing happens when there is none."""
        source, target = self._path(name), self._path(to)
        if source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            source.replace(target)

    def names(self, prefix: str) -> list[str]:
        """Return the names that begin with a prefix such as `decisions/`, sorted."""
        inside = prefix.rpartition("/")[0]
        top = self.folder / inside if inside else self.folder
        depth = MOST_PARTS - (inside.count("/") + 1 if inside else 0)
        below = (path.relative_to(self.folder).as_posix() for path in _files(top, depth))
        return sorted(name for name in below if name.startswith(prefix) and is_name(name))

    def texts(self, prefix: str) -> dict[str, str]:
        """Return all texts whose names begin with a prefix, by name, sorted."""
        found = ((name, self.read(name)) for name in self.names(prefix))
        return {name: text for name, text in found if text is not None}  # another process may remove one meanwhile

    def written(self, name: str) -> datetime | None:
        """Return when a text was written last, by this machine's clock; None when there is none."""
        try:
            return datetime.fromtimestamp(self._path(name).stat().st_mtime, UTC)
        except FileNotFoundError:
            return None

    @contextmanager
    def lock(self, name: str, seconds: float | None = None) -> Iterator[None]:
        """Hold a lock while the block runs; the system frees that of a process that dies.

        Args:
            name: Of the lock: `a/b` is the file `a/.b.lock`.
            seconds: How long to wait for another holder; None: for ever.

        Raises:
            LockedError: It was held all the time.
        """
        lock = self._lock(name)
        try:
            lock.acquire(timeout=-1 if seconds is None else seconds, poll_interval=0.05)
        except Timeout:
            raise LockedError(f"{lock.lock_file}: held by another process") from None
        try:
            yield
        finally:
            lock.release()

    def is_locked(self, name: str) -> bool:
        """Whether somebody holds it now."""
        try:
            with self.lock(name, seconds=0):
                return False
        except LockedError:
            return True

    def where(self, name: str) -> str:
        """Return what to call a record in a message to a person: its path."""
        return str(self._path(name))

    def _path(self, name: str) -> Path:
        return self.folder / checked(name)

    def _lock(self, name: str) -> FileLock:
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path.with_name(f".{path.name}.lock"))


def _files(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the files below a folder, hidden ones left out, so many levels deep."""
    try:
        entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):  # another process may remove a folder meanwhile
        return
    for entry in entries:
        if not entry.is_dir():
            yield Path(entry.path)
        elif depth > 1:
            yield from _files(Path(entry.path), depth - 1)
