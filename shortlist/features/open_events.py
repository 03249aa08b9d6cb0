"""The events that open tiles are counted from: answered impressions, and their outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from shortlist.features.keyed import NEWEST_TIMES, NEWEST_VALUES
from shortlist.features.tiles import Tiles

Key = int | str
"""Value of a key column; also a float, for a column that is kept as a number only."""
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True)
class OpenList:
    """A list of the newest events of a key that includes the open tiles."""

    view: str
    """The view that holds the events of complete tiles."""
    key: str
    """Column of the log."""
    column: str
    """Column of the log whose values are listed; an event without one is left out."""
    max_events: int
    """Most events of the list."""
    positives: bool = False
    """Whether only events with a positive label are listed."""
    numbers: tuple[str, ...] = ()
    """Numeric columns of the log, known before the impression, that are kept with every event."""

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the values that are kept of every event, as in the view."""
        return (NEWEST_VALUES, NEWEST_TIMES, *(f"newest_{name}" for name in self.numbers))


@dataclass(frozen=True)
class StreamingPlan:
    """The keys and lists that are kept of the open tiles, and the delays after which events count."""

    keys: tuple[str, ...]
    """Columns of the log by whose values impressions are counted."""
    tiles: Tiles
    delay: timedelta
    """Time after an impression from which it counts, on every server."""
    longest_outcome: timedelta | None = None
    """Longest time after the answer at which an outcome counts; None: no limit."""
    clock_skew: timedelta = timedelta()
    """How much later than the answer an impression may be, by another clock; it then counts at the answer."""
    lists: tuple[OpenList, ...] = ()
    """Lists of events."""
    max_bytes: int = field(default=2**30, compare=False, repr=False)
    """Memory of the lists that a server keeps; see `OpenSessions`."""

    max_count_bytes: int = field(default=2**30, compare=False, repr=False)
    """Memory of the counts, and of requests whose outcomes may come, that a server keeps; see `OpenTiles`."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the log that are kept of every event."""
        list_columns = (
            name for open_list in self.lists for name in (open_list.key, open_list.column, *open_list.numbers)
        )
        return tuple(dict.fromkeys((*self.keys, *list_columns)))

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
        """Time after an impression from which its outcome is known, in microseconds."""
        return self.tiles.delay // _MICROSECOND


@dataclass(frozen=True)
class AnsweredRequest:
    """The rows of one answered request."""

    request: str
    answered: int
    """Microseconds since 1970-01-01 UTC, as all times here."""
    times: Sequence[int]
    """Time of each row, or one for all."""
    keys: Mapping[str, Sequence[Key | None]]
    """Values of each column, one per row or one for all; a missing column is null."""
    rows: int


@dataclass(frozen=True)
class RowOutcome:
    """The outcome of a row of a request."""

    request: str
    row: int
    label: int
    time: int


@dataclass
class OpenRequest:
    """A request whose outcomes may still come."""

    impressions: AnsweredRequest
    labels: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Time and label of each row with an outcome; the last of several outcomes counts."""
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
