"""The event log: rows that were answered, on disk before the answer, for the live counts of all servers of a machine.

It is a folder of append-only streams, one per server; records are JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import orjson

from shortlist.features.live.open_events import AnsweredRequest
from shortlist.storage.append_log.reader import StreamReader
from shortlist.storage.append_log.segments import Damage, remove_segments
from shortlist.storage.append_log.writer import stream_id, streams

_ANY_OFFSET: Final = 2**63


def encode_event(event: AnsweredRequest) -> bytes:
    """Return the record of an event."""
    contributions = event.sender, event.contributors, event.uncounted
    return orjson.dumps((event.request, event.answered, event.times, event.keys, event.rows, *contributions))


def decode_event(record: bytes) -> AnsweredRequest:
    """Return the event of a record."""
    return AnsweredRequest(*orjson.loads(record))


class EventReader:
    """Reads the events of all servers once, those of each in order.

    Args:
        folder: Folder of the event log; it need not exist.
        positions: Offset behind the last event that was read, by stream.
    """

    def __init__(self, folder: Path, positions: Mapping[str, int] | None = None) -> None:
        self._folder = folder
        self._positions: dict[str, int] = dict(positions or {})
        self._readers: dict[str, StreamReader] = {}
        self._errors: dict[str, str] = {}
        self._first_skipped: str | None = None

    @property
    def problem(self) -> str | None:
        """A stream, bytes or an event that cannot be read; None when all can."""
        skipped = () if self._first_skipped is None else (self._first_skipped,)
        return next(iter((*self._errors.values(), *map(str, self._damages()), *skipped)), None)

    @property
    def is_stuck(self) -> bool:
        """Whether a stream cannot be read now."""
        return bool(self._errors)

    @property
    def positions(self) -> Mapping[str, int]:
        """Offset behind the last event that was read, by stream."""
        return self._positions | {name: reader.offset for name, reader in self._readers.items()}

    def read_new(self) -> Iterator[AnsweredRequest]:
        """Yield new events; one that is being written comes the next time."""
        for folder in streams(self._folder):
            try:
                name = stream_id(folder)
                reader = self._readers.setdefault(name, StreamReader(folder, self._positions.get(name, 0)))
                for record in reader.read_new():
                    try:
                        event = decode_event(record.content)
                    except (ValueError, TypeError) as error:
                        place = f"{folder}: the event before byte {record.end}"
                        self._first_skipped = self._first_skipped or f"{place}: {error}; it is left out"
                        continue
                    yield event
                self._errors.pop(folder.name, None)
            except OSError as error:  # the other streams are read, and this one again
                self._errors[folder.name] = f"{folder}: {error}; its events are counted as soon as it can be read"

    def _damages(self) -> list[Damage]:
        return [damage for reader in self._readers.values() for damage in reader.damages if damage.path.exists()]


def remove_old_events(folder: Path, seconds: float) -> int:
    """Remove segments of events last written longer ago than `seconds`; return their number."""
    return sum(remove_segments(stream, _ANY_OFFSET, seconds) for stream in streams(folder))
