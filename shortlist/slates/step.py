"""The release step of a run, and the digest of the lists of items in a release."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from shortlist.contracts import ShortlistError
from shortlist.data.reading.remote_input import fetch_input
from shortlist.slates.release import write_release
from shortlist.spec.data import Data
from shortlist.spec.filters import Filters
from shortlist.spec.ordering import Ordering
from shortlist.storage.artefacts import sha256
from shortlist.storage.objects_source import SourceFiles, is_remote

RELEASE: Final = "release"
"""Folder of the release, inside the step's artefact."""


def build_release(
    sources: Path, data: Data, filters: Filters, ordering: Ordering, valid_log: Path, location: str, out: Path
) -> int:
    """Write the release; return the number of items that can be recommended.

    Args:
        sources: Folder of the fitted sources.
        data: The spec's section.
        filters: The spec's section.
        ordering: The spec's section.
        valid_log: Folder of the validated log.
        location: Location of the user's files; empty for a generated log.
        out: Folder to write.

    Raises:
        ShortlistError: A list cannot be read, or contradicts the ordering.
    """
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as open_files:
        files = None
        if any(rule.file for rule in filters.rules):
            files = _folder(open_files.enter_context(fetch_input(location)))
        return write_release(sources, data, filters, ordering, valid_log, files, out / RELEASE)


def lists_digest(filters: Filters | None, location: Path | str) -> str:
    """Return a digest of the files that filters read; empty where there are none, 16 hexadecimal digits else.

    Raises:
        ShortlistError: A file is missing, or the object store is not reachable.
    """
    names = sorted({rule.file for rule in filters.rules if rule.file}) if filters is not None else []
    if not names:
        return ""
    if isinstance(location, str) and is_remote(location):
        tag_by_name = {file.name: file.tag for file in SourceFiles(location).listing()}
        digests = [f"{name}\0{tag_by_name.get(name, '')}\0" for name in names]
    else:
        digests = [f"{name}\0{_digest_list_file(_folder(Path(location)) / name)}\0" for name in names]
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:16]


def _digest_list_file(path: Path) -> str:
    if not path.is_file():
        raise ShortlistError(f"filters: {path}: no such file; wanted a text file with one item a line")
    return sha256(path)


def _folder(location: Path) -> Path:
    return location if location.is_dir() else location.parent
