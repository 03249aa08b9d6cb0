"""The record that says which files a published folder has: the last thing written, the first thing read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from shortlist.storage.artefacts import IntegrityError, sha256

RECORD: Final = "published.json"
"""Beside a published folder's files: their digests. A folder without it is not whole, whatever else is there."""

_KEY: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=-]*(/[A-Za-z0-9_][A-Za-z0-9._=-]*)*")


def checked_key(key: str) -> str:
    """Return a key; it is ours, never a user's.

    >>> checked_key("views/0123/clicks.parquet")
    'views/0123/clicks.parquet'
    """
    assert _KEY.fullmatch(key), f"not a key: {key!r}"
    return key


def digests_below(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below a folder by relative path, the record left out.

    Raises:
        IntegrityError: There is no such folder, or nothing in it.
    """
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    found = {name: sha256(folder / name) for name in names if name != RECORD}
    if not found:
        raise IntegrityError(f"{folder}: there is nothing to publish; the step that writes it did not finish")
    return found


def write_record(digests: Mapping[str, str]) -> bytes:
    """Return the record of these files."""
    return json.dumps({"sha256": dict(digests)}, indent=1, sort_keys=True).encode()


def read_record(content: bytes, where: str) -> dict[str, str]:
    """Return the files that a record names.

    Raises:
        IntegrityError: It is no record.
    """
    try:
        return {str(checked_key(name)): str(digest) for name, digest in json.loads(content)["sha256"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
        raise IntegrityError(f"{where}: {RECORD} is not one that Shortlist wrote; remove the folder") from None


def files_below(digests: Mapping[str, str], part: str, where: str) -> dict[str, str]:
    """Return the files below a folder inside, by path relative to it; all of them when the name is empty.

    Raises:
        IntegrityError: There are none.
    """
    begin = f"{part}/" if part else ""
    found = {name.removeprefix(begin): digest for name, digest in digests.items() if name.startswith(begin)}
    if not found:
        raise IntegrityError(f"{where}: has no folder '{part}'")
    return found


def check_same_files(found: Mapping[str, str], wanted: Mapping[str, str], where: str) -> None:
    """Refuse a folder whose files are others.

    Raises:
        IntegrityError: Names the first one.
    """
    for name in sorted({*found, *wanted}):
        if found.get(name) == wanted.get(name):
            continue
        what = "missing" if name not in found else "not one of its files" if name not in wanted else "another file"
        raise IntegrityError(f"{where}: '{name}' is {what}; published folders never change")
