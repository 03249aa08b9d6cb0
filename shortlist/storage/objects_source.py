"""The user's own files in an object store: what is there, and a copy of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from shortlist.contracts import DataError
from shortlist.storage.objects import ObjectStore

_REMOTE: Final = re.compile(r"(s3|gs)://[^/]+(/.*)?")


@dataclass(frozen=True)
class RemoteFile:
    """A file as a listing says it."""

    name: str
    """Path below the listed address; the file's own name where the address is a file's."""
    size: int
    """Bytes."""
    tag: str
    """What the store changes whenever the content does (its ETag)."""


def is_remote(location: str) -> bool:
    """Return whether a data location is an address in an object store.

    Raises:
        DataError: It is an address, but of nothing that can be read.

    >>> is_remote("s3://logs/2026"), is_remote("data/log.csv")
    (True, False)
    """
    if "://" not in location:
        return False
    if _REMOTE.fullmatch(location) is None:
        raise DataError(f"{location}: got an address of another kind; wanted s3://bucket/folder or gs://bucket/folder")
    return True


class SourceFiles(ObjectStore):
    """The files below an address that the user gave as data; nothing is ever written there.

    Args:
        url: `s3://bucket/folder`, or the address of one file.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        bucket, _, self._folder = self._path.partition("/")
        self._client = ObjectStore(f"{self._scheme}://{bucket}")._client

    def listing(self) -> list[RemoteFile]:
        """Return the files in name order; names that begin with `.` or `_` are passed over, as on a disk.

        Raises:
            DataError: There are none.
            ShortlistError: The store is unavailable or refuses, or its bucket is gone.
        """
        with self._explained():
            object_files = [file for files in self._client.list(self._folder or None) for file in files]
            if not object_files and self._folder:
                with suppress(FileNotFoundError):
                    object_files = [self._client.head(self._folder)]
        files = []
        for file in object_files:
            name = file["path"].removeprefix(self._folder).strip("/") or PurePosixPath(self._folder).name
            path = PurePosixPath(name)
            is_hidden = any(part.startswith((".", "_")) for part in path.parts)
            is_folder = not file["size"] and not path.suffix  # an empty object in a folder's place, as consoles make it
            if not is_hidden and not is_folder:
                files.append(RemoteFile(name, file["size"], str(file["e_tag"] or "").strip('"')))
        if not files:
            raise DataError(f"{self.root}: no file is there (names that begin with '.' or '_' are passed over)")
        return sorted(files, key=lambda file: file.name)

    def fetch(self, to: Path, needed: Callable[[Path], Collection[Path]] | None = None) -> Path:
        """Copy files into a folder; return what a spec takes as data location: the folder, or the only file.

        Args:
            to: The folder.
            needed: Returns, of what `fetch` returns, the files to copy; of the others only name and size are right.
                None: all are copied.

        Raises:
            DataError: There are none, or they changed meanwhile.
            ShortlistError: The store is unavailable or refuses, or its bucket is gone.
        """
        files = self.listing()
        is_single = len(files) == 1 and PurePosixPath(self._folder).name == files[0].name
        location = to / files[0].name if is_single else to
        for file in files:
            (to / file.name).parent.mkdir(parents=True, exist_ok=True)
            with (to / file.name).open("wb") as empty:
                empty.truncate(file.size)  # takes no room on the disk
        needed_files = None if needed is None else set(needed(location))
        for file in files:
            if needed_files is None or to / file.name in needed_files:
                with self._explained():
                    key = self._folder if is_single else f"{self._folder}/{file.name}".lstrip("/")
                    self._download(key, to / file.name)
        if self.listing() != files:
            raise DataError(f"{self.root}: the files changed while they were read; write a day once, then run again")
        return location

    def _reason(self, error: Exception, text: str) -> str:
        return super()._reason(error, text).replace("correct runtime.objects.url", "correct DATA")
