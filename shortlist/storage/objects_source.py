"""The user's own files in an object store: what is there, and a copy of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from shortlist.contracts import DataError
from shortlist.storage.objects_bucket import BucketObjectStore

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


class SourceFiles(BucketObjectStore):
    """The files below an address that the user gave as data; nothing is ever written there.

    Args:
        url: `s3://bucket/folder`, or the address of one file.
    """

    def listing(self) -> list[RemoteFile]:
        """Return the files in name order; names that begin with `.` or `_` are passed over, as on a disk.

        Raises:
            DataError: There are none.
            ShortlistError: The store is unavailable or refuses, or its bucket is gone.
        """
        root = self.root.partition("://")[2]
        with self._explained():
            found = self._files.find(root, detail=True)
        files = []
        for path, facts in found.items():
            name = path.removeprefix(root).strip("/") or PurePosixPath(path).name
            hidden = any(part.startswith((".", "_")) for part in PurePosixPath(name).parts)
            if facts.get("type", "file") == "file" and not hidden:
                tag = str(facts.get("ETag") or facts.get("etag") or facts.get("md5Hash") or "").strip('"')
                files.append(RemoteFile(name, int(facts["size"]), tag))
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
        root = self.root.partition("://")[2]
        single = len(files) == 1 and PurePosixPath(root).name == files[0].name
        location = to / files[0].name if single else to
        for file in files:
            (to / file.name).parent.mkdir(parents=True, exist_ok=True)
            with (to / file.name).open("wb") as empty:
                empty.truncate(file.size)  # takes no room on the disk
        wanted = None if needed is None else set(needed(location))
        for file in files:
            if wanted is None or to / file.name in wanted:
                with self._explained():
                    self._files.get_file(root if single else f"{root}/{file.name}", str(to / file.name))
        if self.listing() != files:
            raise DataError(f"{self.root}: the files changed while they were read; write a day once, then run again")
        return location

    def _reason(self, error: Exception, kinds: set[str]) -> str:
        return super()._reason(error, kinds).replace("correct runtime.objects.url", "correct DATA")
