"""What open tiles are counted from: impressions as they are answered, and their outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from shortlist.features.keyed import NEWEST_TIMES, NEWEST_VALUES
from shortlist.features.tiles import Tiles

Key = int | str
"""Of a column that is kept as a number only: a float, too."""
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True)
class OpenList:
    """A list of the newest events of a key that goes on with those of the open tiles."""

    view: str
    """The view that holds those of the tiles before."""
    key: str
    """Column of the log."""
    of: str
    """Column of the log whose values are listed; an event without one is left out."""
    most: int
    """Events of the list."""
    positives: bool = False
    """Whether only events with a positive label are listed."""
    numbers: tuple[str, ...] = ()
    """Numeric columns of the log, known before the impression, that are kept with every event."""

    @property
    def features(self) -> tuple[str, ...]:
        """What is kept of every event: as in the view."""
        return (NEWEST_VALUES, NEWEST_TIMES, *(f"newest_{name}" for name in self.numbers))


@dataclass(frozen=True)
class StreamingPlan:
    """What is counted and listed of the open tiles, and from when on."""

    keys: tuple[str, ...]
    """Columns of the log by which is counted."""
    tiles: Tiles
    delay: timedelta
    """An impression counts so long after it happened, wherever it was counted."""
    longest_outcome: timedelta | None = None
    """An outcome later than this after the answer is none; None: there is no limit."""
    clock_skew: timedelta = timedelta()
    """How much earlier than the answer an outcome may be, by another clock, and how much later an impression."""
    lists: tuple[OpenList, ...] = ()
    """What is listed."""
    max_bytes: int = field(default=2**30, compare=False, repr=False)
    """Memory of the lists that a server keeps; see `OpenSessions`."""

    max_count_bytes: int = field(default=2**30, compare=False, repr=False)
    """Memory of the counts, and of requests whose outcomes may come, that a server keeps; see `OpenTiles`."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the log that events are kept with."""
        listed = (name for one in self.lists for name in (one.key, one.of, *one.numbers))
        return tuple(dict.fromkeys((*self.keys, *listed)))

    @property
    def delay_us(self) -> int:
        """The delay in microseconds."""
        return self.delay // _MICROSECOND

    @property
    def clock_skew_us(self) -> int:
        """The clock skew in microseconds."""
        return self.clock_skew // _MICROSECOND

    @property
    def outcome_delay_us(self) -> int:
        """From when on an outcome is known, in microseconds after the impression."""
        return self.tiles.delay // _MICROSECOND


@dataclass(frozen=True)
class Impressions:
    """The rows of one answered request."""

    request: str
    answered: int
    """Microseconds since 1970-01-01 UTC, as all times here."""
    times: Sequence[int]
    """Of each row, or one for all."""
    keys: Mapping[str, Sequence[Key | None]]
    """Of each column, the value of each row, or one for all; a column that is missing is null."""
    rows: int


@dataclass(frozen=True)
class Outcome:
    """What became of a row of a request."""

    request: str
    row: int
    label: int
    time: int


@dataclass
class OpenRequest:
    """A request whose outcomes may still come."""

    impressions: Impressions
    labels: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of each row with an outcome: its time, and the label; of several outcomes the last one counts."""
    settled: set[int] = field(default_factory=set)
    """Times of rows whose labels are counted."""

    def time_of(self, row: int) -> int:
        """Return the time of a row."""
        times = self.impressions.times
        return times[row if len(times) > 1 else 0]

    def rows_at(self, time: int) -> Sequence[int]:
        """Return the rows of a time."""
        times, rows = self.impressions.times, range(self.impressions.rows)
        return rows if len(times) == 1 else [row for row in rows if times[row] == time]

    def values_of(self, key: str, rows: Sequence[int]) -> Sequence[Key | None]:
        """Return the value of a key column in some rows; nothing where the column is missing."""
        values = self.impressions.keys.get(key, ())
        if len(values) == 1:
            return [values[0]] * len(rows)
        return values if len(rows) == len(values) or not values else [values[row] for row in rows]

    def is_positive(self, row: int) -> bool:
        """Whether the outcome of a row that counts is a positive one."""
        return row in self.labels and self.labels[row][1] > 0
