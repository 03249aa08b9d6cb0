"""Reading a stream from an offset, while it is being written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from shortlist.storage.append_log.segments import Damage, FramedRecord, LogSegment, iter_frames, segments

_MAX_DAMAGES: Final = 100
_CLOCK_TICK_NS: Final = 50_000_000
"""A folder that changed less than this before it was listed may have changed again without another time."""


class StreamReader:
    """Reads the records of a stream once, in their order.

    Args:
        folder: Folder of the stream; it need not exist.
        offset: Where to begin: 0, or the `end` of a record.
    """

    def __init__(self, folder: Path, offset: int = 0) -> None:
        self.folder = folder
        self.offset = offset
        """Records before it were read."""
        self.damages: list[Damage] = []
        """Bytes that are no record and were left out, at most the first 100."""
        self.missed: tuple[int, int] | None = None
        """Offsets between which records may have been removed before they were read; None where none were."""
        self._newest: LogSegment | None = None
        self._listed_change = 0

    def read_new(self) -> Iterator[FramedRecord]:
        """Yield new records; one that is being written comes the next time.

        `offset` moves behind a record when the next one is asked for: a record is read when it was used. However many
        segments there are, they are listed only when one was made or removed.
        """
        changed_at = self._changed_at()
        if self._newest is not None and changed_at == self._listed_change:
            with suppress(FileNotFoundError):  # the listing says so
                yield from self._read_segment(self._newest)
                return
        is_certain = time.time_ns() - changed_at > _CLOCK_TICK_NS
        self._newest, self._listed_change = None, changed_at if is_certain else 0
        stream_segments = segments(self.folder)
        for number, segment in enumerate(stream_segments):
            is_last = number == len(stream_segments) - 1
            if not is_last and stream_segments[number + 1].first <= self.offset:
                continue
            if segment.first > self.offset:
                if number == 0:
                    self._note_missed(segment.first)
                self.offset = segment.first
            try:
                yield from self._read_segment(segment)
                self._newest = segment if is_last else None
            except FileNotFoundError:  # it was removed, because it is old
                if not is_last:
                    self._note_missed(stream_segments[number + 1].first)

    def _changed_at(self) -> int:
        """Return when a segment was last made or removed, in nanoseconds since 1970; 0 for no folder."""
        try:
            return self.folder.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def _note_missed(self, end: int) -> None:
        self.missed = (self.offset if self.missed is None else self.missed[0], end)

    def _read_segment(self, segment: LogSegment) -> Iterator[FramedRecord]:
        begin = max(0, self.offset - segment.first)
        if segment.path.stat().st_size <= begin:  # followers ask many times a second
            return
        with segment.path.open("rb") as file:
            file.seek(begin)
            content = file.read()
        for record, position, end in iter_frames(content):
            if record is None:
                if len(self.damages) < _MAX_DAMAGES:
                    self.damages.append(Damage(segment.path, begin + position, end - position))
            else:
                yield FramedRecord(record, segment.first + begin + end)
            self.offset = segment.first + begin + end
