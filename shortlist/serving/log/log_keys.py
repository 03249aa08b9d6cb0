"""Keys of the parts of a log in an object store."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final, Literal

LogKind = Literal["predictions", "outcomes"]

_KEY: Final = re.compile(r"(\d{4}-\d\d-\d\d)/([^/]+)/(part-[^/]+\.parquet)")


def log_key(spec: str, kind: LogKind) -> str:
    """Return the key prefix of a spec's log.

    >>> log_key("demo", "predictions")
    'logs/demo/predictions'
    """
    return f"logs/{spec}/{kind}"


def part_key(path: Path, folder: Path, writer: str) -> str:
    """Return the key of a part below the log's prefix: day of writing, writer and process, file name.

    The day comes first, so that the newest days can be listed alone. It is the file's modification day, which stays the
    same when the part is shipped again.

    Args:
        path: Path of the part.
        folder: Folder of the log on this machine.
        writer: Name of the pod or machine, as process ids of two machines may be equal.
    """
    day = datetime.fromtimestamp(path.stat().st_mtime, UTC).date()
    names = (writer, *path.relative_to(folder).parent.parts)
    return f"{day}/{re.sub(r'[^A-Za-z0-9._=-]', '-', '-'.join(names)).lstrip('.=-')}/{path.name}"


def mirrored_name(key: str) -> str | None:
    """Return the relative path of a part in a mirror; None for a key that is not a part's.

    >>> mirrored_name("2026-11-21/pod-v3-17-1/part-000001.parquet")
    '2026-11-21.pod-v3-17-1/part-000001.parquet'
    """
    match = _KEY.fullmatch(key)
    return None if match is None else f"{match[1]}.{match[2]}/{match[3]}"


def day_prefix(day: date) -> str:
    """Return the key prefix of a day's parts, below the log's prefix."""
    return f"{day}/"
