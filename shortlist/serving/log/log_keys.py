"""Where the parts of a log are in an object store."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final, Literal

LogKind = Literal["predictions", "outcomes"]

_KEY: Final = re.compile(r"(\d{4}-\d\d-\d\d)/([^/]+)/(part-[^/]+\.parquet)")


def log_key(spec: str, kind: LogKind) -> str:
    """Return the key below which a log of a spec is.

    >>> log_key("demo", "predictions")
    'logs/demo/predictions'
    """
    return f"logs/{spec}/{kind}"


def part_key(path: Path, folder: Path, writer: str) -> str:
    """Return the key of a part below the log's: day of writing, writer and its process, part.

    The day comes first, so that whoever wants the newest days lists no others. It is the file's own, which stays the
    same however often the part is shipped.

    Args:
        path: Of the part.
        folder: Of the log on this machine.
        writer: Name of the pod or machine; processes of two may have the same number.
    """
    day = datetime.fromtimestamp(path.stat().st_mtime, UTC).date()
    names = (writer, *path.relative_to(folder).parent.parts)
    return f"{day}/{re.sub(r'[^A-Za-z0-9._=-]', '-', '-'.join(names)).lstrip('.=-')}/{path.name}"


def mirrored_name(key: str) -> str | None:
    """Return the path of a part in a mirror, such as `parts` finds it; None for a key that is no part's.

    >>> mirrored_name("2026-11-21/pod-v3-17-1/part-000001.parquet")
    '2026-11-21.pod-v3-17-1/part-000001.parquet'
    """
    match = _KEY.fullmatch(key)
    return None if match is None else f"{match[1]}.{match[2]}/{match[3]}"


def day_prefix(day: date) -> str:
    """Return what the keys of a day's parts begin with, below the log's."""
    return f"{day}/"
