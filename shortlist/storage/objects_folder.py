"""Files that outlast a run, in a folder: on one machine, or a disk that many share."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from shortlist.storage.artefacts import IntegrityError, atomic_folder
from shortlist.storage.objects_record import (
    RECORD,
    check_same_files,
    checked_key,
    digests_below,
    files_below,
    read_record,
    write_record,
)


class FolderObjectStore:
    """`ObjectStore` below a folder.

    Args:
        folder: Where they are; it is made when something is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self.root = self._folder.as_uri()

    def put_folder(self, folder: Path, key: str) -> str:
        """Copy a folder to a key that has nothing yet, or the very same; return its address.

        Raises:
            IntegrityError: Something else is there.
            ShortlistError: The disk is full; nothing then looks whole.
        """
        to, digests = self._path(key), digests_below(folder)
        if (to / RECORD).exists():
            check_same_files(read_record((to / RECORD).read_bytes(), self.url(key)), digests, self.url(key))
            return self.url(key)
        with atomic_folder(to) as staging:
            shutil.copytree(folder, staging, dirs_exist_ok=True)
            check_same_files(digests_below(staging), digests, str(folder))  # it may have changed meanwhile
            (staging / RECORD).write_bytes(write_record(digests))
        return self.url(key)

    def fetch_folder(self, key: str, to: Path, part: str = "") -> Path:
        """Copy a folder from a key, whole or not at all, and verify it; return `to`. What is there already stays.

        Args:
            key: Of the folder.
            to: Folder to make.
            part: Only this folder inside it.

        Raises:
            IntegrityError: It is not whole.
        """
        record = self.read(f"{key}/{RECORD}")
        if record is None:
            raise IntegrityError(f"{self.url(key)}: nothing whole is there; the step that writes it did not finish")
        digests = files_below(read_record(record, self.url(key)), part, self.url(key))
        if to.is_dir() and any(to.iterdir()) and digests_below(to) == digests:
            return to
        with atomic_folder(to) as staging:
            source = self._path(key) / part
            shutil.copytree(source, staging, dirs_exist_ok=True, ignore=shutil.ignore_patterns(RECORD))
            check_same_files(digests_below(staging), digests, self.url(key))
        return to

    def put_file(self, file: Path, key: str) -> None:
        """Copy a file to a key, whole or not at all."""
        partial = self._partial(key)
        shutil.copyfile(file, partial)
        partial.replace(self._path(key))

    def read(self, key: str) -> bytes | None:
        """Return a file; None when there is none."""
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, key: str, content: bytes) -> None:
        """Write a file whole, in place of what is there."""
        partial = self._partial(key)
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path(key))

    def create(self, key: str, content: bytes) -> bool:
        """Write a file unless there is one; return True for exactly one of all processes that try at once."""
        partial = self._partial(key)
        try:
            partial.write_bytes(content)
            os.link(partial, self._path(key))
        except FileExistsError:
            return False
        finally:
            partial.unlink(missing_ok=True)
        return True

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with a prefix such as `views/`, sorted."""
        below = self._folder / prefix.rpartition("/")[0]
        found = (path.relative_to(self._folder).as_posix() for path in below.rglob("*") if path.is_file())
        return sorted(key for key in found if key.startswith(prefix) and not key.endswith(".partial"))

    def url(self, key: str) -> str:
        """Return the address of a key."""
        return self._path(key).as_uri()

    def _path(self, key: str) -> Path:
        return self._folder / checked_key(key)

    def _partial(self, key: str) -> Path:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
