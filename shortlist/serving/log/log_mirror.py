"""A folder with what an object store has of a log: only parts that are not there yet are fetched."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

from shortlist.serving.log.log_keys import day_prefix, mirrored_name
from shortlist.storage.objects import ObjectStore

_AT_ONCE: Final = 8
"""Parts are small: most of the time goes into waiting for the store."""
_DAY: Final = timedelta(days=1)
_MOST_DAYS: Final = 31
"""Days that are asked for one by one; a log that is played back is about moments of years ago."""


def mirror(objects: ObjectStore, key: str, folder: Path, since: date | None = None) -> int:
    """See that a folder has the parts of a log; return how many were fetched.

    Parts never change, and appear whole, here as there: a killed process leaves nothing that looks like a part.

    Args:
        objects: Where the log is.
        key: Of the log; see `log_keys.log_key`.
        folder: Of the mirror; it stays between calls, and nothing is missed when it is deleted.
        since: Only parts written on this day (UTC) or later; None: all there are.

    Raises:
        ShortlistError: The store is unavailable or refuses; what was fetched stays.
    """
    known = {name: key for key, name in _listed(objects, key, since)}
    missing = {name: key for name, key in known.items() if not (folder / name).exists()}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return sum(pool.map(partial(_fetch, objects), missing.values(), (folder / name for name in missing)))


def _listed(objects: ObjectStore, key: str, since: date | None) -> Iterator[tuple[str, str]]:
    """Yield the key and the name in the mirror of every part."""
    for prefix in _prefixes(since):
        for found in objects.keys(f"{key}/{prefix}"):
            part = found.removeprefix(f"{key}/")
            name = mirrored_name(part)
            if name is not None and (since is None or part >= day_prefix(since)):
                yield found, name


def _prefixes(since: date | None) -> list[str]:
    """Return what the keys of wanted parts begin with: a prefix per day, or one for all where days are many."""
    days = 0 if since is None else (datetime.now(UTC).date() - since).days
    if since is None or days > _MOST_DAYS:
        return [""]
    return [day_prefix(since + number * _DAY) for number in range(days + 2)]  # a pod's clock may be ahead of ours


def _fetch(objects: ObjectStore, key: str, to: Path) -> bool:
    content = objects.read(key)
    if content is None:  # it was removed, being old
        return False
    to.parent.mkdir(parents=True, exist_ok=True)
    partial_file = to.with_name(f"{to.name}.partial")
    partial_file.write_bytes(content)
    partial_file.replace(to)
    return True
