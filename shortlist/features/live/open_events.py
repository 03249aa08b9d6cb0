"""The events that open tiles are counted from: answered impressions, and their outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from typing import Final

import polars as pl

from shortlist.features.counts.keyed import NEWEST_TIMES, NEWEST_VALUES
from shortlist.features.counts.tiles import Tiles

Key = int | str
"""Value of a key column; also a float, for a column that is kept as a number only."""
CountedKey = tuple[str, ...]
"""Columns of the log by whose values together impressions are counted."""
_SEPARATOR: Final = "\x1f"
"""Between the values of several columns: a character of ASCII that texts do not use."""
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

    keys: tuple[CountedKey, ...]
    """The keys by which impressions are counted."""
    tiles: Tiles
    delay: timedelta
    """Time after an impression from which it counts, on every server."""
    longest_outcome: timedelta | None = None
    """Longest time after the answer at which an outcome counts; None: no limit."""
    clock_skew: timedelta = timedelta()
    """How much later than the answer an impression may be, by another clock; it then counts at the answer."""
    lists: tuple[OpenList, ...] = ()
    """Lists of events."""
    user: str | None = None
    """Column of the log with the user."""
    item: str | None = None
    """Column of the log with the item."""
    max_share: float = 1.0
    """Largest share of the rows of a tile, and of those of a value, from one contributor; 1: any. See `OpenShares`."""
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
        return tuple(dict.fromkeys((*chain.from_iterable(self.keys), *list_columns)))

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
    sender: str = ""
    """Another sender's request with the same id is another one, for clients choose ids."""
    contributors: Sequence[str | None] = field(default_factory=list)
    """Who contributed each row, or all; see `OpenShares`. Nobody: a server that vouches for users without names."""
    uncounted: Sequence[int] = field(default_factory=list)
    """Rows that do not count, being beyond the share of who contributed them."""


@dataclass(frozen=True)
class RowOutcome:
    """The outcome of a row of a request."""

    request: str
    row: int | None
    """None: the first row of the item; the server that received the outcome did not know the answer."""
    label: int
    time: int
    item: Key | None = None


@dataclass
class OpenRequest:
    """A request whose outcomes may still come."""

    impressions: AnsweredRequest
    labels: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Time and label of each row with an outcome; the last of several outcomes counts."""
    settled: set[int] = field(default_factory=set)
    """Times of rows whose labels are counted."""
    bytes: int = field(default=0, compare=False)
    """Approximate memory."""

    def __post_init__(self) -> None:
        """Keep which rows do not count."""
        self._uncounted = frozenset(self.impressions.uncounted)

    def time_of(self, row: int) -> int:
        """Return the time of a row."""
        times = self.impressions.times
        return times[row if len(times) > 1 else 0]

    def rows_at(self, time: int) -> Sequence[int]:
        """Return the rows of a time that count."""
        times, rows = self.impressions.times, range(self.impressions.rows)
        if len(times) == 1 and not self._uncounted:
            return rows
        return [row for row in rows if self.counts(row) and times[row if len(times) > 1 else 0] == time]

    def counts(self, row: int) -> bool:
        """Whether a row counts."""
        return row not in self._uncounted

    def key_values(self, key: CountedKey, rows: Sequence[int]) -> Sequence[Key | None]:
        """Return the value of a counted key in some rows; nothing where a column is missing."""
        return join_key_values([self.values_of(column, rows) for column in key])

    def values_of(self, key: str, rows: Sequence[int]) -> Sequence[Key | None]:
        """Return the value of a key column in some rows; nothing where the column is missing."""
        values = self.impressions.keys.get(key, ())
        if len(values) == 1:
            return [values[0]] * len(rows)
        return values if len(rows) == len(values) or not values else [values[row] for row in rows]

    def row_of(self, column: str | None, value: Key | None) -> int | None:
        """Return the first row with a value of a column; None where there is none, or the column is missing."""
        values = [] if column is None else list(self.values_of(column, range(self.impressions.rows)))
        return values.index(value) if value is not None and value in values else None

    def is_positive(self, row: int) -> bool:
        """Whether the outcome of a row that counts is a positive one."""
        return row in self.labels and self.labels[row][1] > 0


def key_name(key: CountedKey) -> str:
    """Return the name of a counted key."""
    return "__".join(key)


def join_key_values(columns: Sequence[Sequence[Key | None]]) -> Sequence[Key | None]:
    """Return the values of a counted key, given those of its columns: of one column as they are, else as one text.

    >>> join_key_values([[1, None], ["drama", "drama"]])[1] is None
    True
    """
    if len(columns) == 1:
        return columns[0]
    return [
        None if None in values else _SEPARATOR.join(map(_as_text, values))
        for values in zip(*_as_long(columns), strict=True)
    ]


def _as_text(value: Key | None) -> str:
    return str(int(value) if isinstance(value, float) else value)


def joined_keys(rows: pl.DataFrame, key: CountedKey) -> pl.Series:
    """Return the values of a counted key of rows, as `join_key_values` does."""
    if len(key) == 1:
        return rows[key[0]]
    joined = pl.concat_str([pl.col(name).cast(pl.String) for name in key], separator=_SEPARATOR)
    return rows.select(joined).to_series()


def _as_long(columns: Sequence[Sequence[Key | None]]) -> list[Sequence[Key | None]]:
    """Return columns that are each of one row, of all rows, or missing, as columns of all rows."""
    length = 0 if not all(columns) else max(map(len, columns))
    return [list(column) * length if len(column) == 1 else column[:length] for column in columns]
