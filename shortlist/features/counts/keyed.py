"""Statistics of earlier days per value of a key: the declaration of what is kept of a key."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from shortlist.contracts import Columns
from shortlist.features.counts.tiles import TILE

LAST_TIME = "last_time"
LAST_IMPRESSION = "last_impression"
NEWEST_VALUES = "newest_values"
NEWEST_TIMES = "newest_times"


@dataclass(frozen=True, order=True)
class Total:
    """A measure summed over all days before a moment, over the last few of them, or over the last tiles."""

    measure: str
    window_days: int = 0
    """0: all days."""
    window: timedelta = timedelta()
    """Length of the last tiles, in place of days; 0: none."""

    @property
    def name(self) -> str:
        """Name of its column in a view."""
        if self.window:
            minutes = self.window // timedelta(minutes=1)
            return f"{self.measure}_{minutes}m" if minutes % 60 else f"{self.measure}_{minutes // 60}h"
        return f"{self.measure}_{self.window_days}d" if self.window_days else self.measure


ROWS = Total(Columns.ROWS)


@dataclass(frozen=True, order=True)
class NewestEvents:
    """The newest events of a key, as lists: the newest event first."""

    column: str
    """Column of the log whose values are listed; an event without one is left out."""
    max_events: int
    """Most events of a list."""
    numbers: tuple[str, ...] = ()
    """Numeric columns of the log that are listed with it."""
    positives: bool = False
    """Whether only events with a positive label are kept."""

    @property
    def name(self) -> str:
        """Name that distinguishes it from other lists of the same key."""
        number_suffix = "".join(f"_{name}" for name in self.numbers)
        return f"newest_{self.max_events}_{'positive_' if self.positives else ''}{self.column}{number_suffix}"

    @property
    def features(self) -> tuple[str, ...]:
        """Columns of the view: values, times in microseconds since 1970-01-01 UTC, then the numbers, `most` wide."""
        return (NEWEST_VALUES, NEWEST_TIMES, *(f"newest_{name}" for name in self.numbers))


@dataclass(frozen=True)
class KeyedView:
    """Statistics of each value of a key at the start of a day or of a tile."""

    keys: tuple[str, ...]
    tags: tuple[str, ...] = ()
    """The keys that hold several values per row."""
    totals: tuple[Total, ...] = (ROWS,)
    last_value_columns: tuple[str, ...] = ()
    """Columns whose value at the key's last impression is kept."""
    timed: bool = False
    """Whether the time of the key's last impression is kept."""
    histories: tuple[str, ...] = ()
    """Lists of items, of the user's side table, in which the key is counted."""
    looked_up: bool = True
    """False when only a vocabulary needs the counts."""
    by_tile: bool = False
    """Whether it is counted per tile of a day instead of per day."""
    newest: NewestEvents | None = None
    """The lists of the view, which then has no other columns."""

    @property
    def name(self) -> str:
        """Name of the view and of its statistics."""
        key_part = "all_rows" if self.keys == (Columns.GLOBAL_KEY,) else "by_" + "__".join(self.keys)
        return key_part if self.newest is None else f"{self.newest.name}_{key_part}"

    @property
    def ordered(self) -> bool:
        """Whether the order of events in time matters."""
        return self.timed or self.newest is not None

    @property
    def counted_by(self) -> tuple[str, ...]:
        """Columns that identify a row of a day's statistics."""
        return (*self.keys, TILE) if self.by_tile else self.keys

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the measures that are counted per day, `rows` first."""
        return tuple(dict.fromkeys(total.measure for total in self.totals))

    @property
    def features(self) -> tuple[str, ...]:
        """Columns of the view besides its keys and its time."""
        if self.newest is not None:
            return self.newest.features
        times = (LAST_TIME,) if self.timed else ()
        lasts = tuple(f"last_{name}" for name in self.last_value_columns)
        return (*(total.name for total in self.totals), *times, *lasts, *(f"count_{name}" for name in self.histories))

    def merge(self, other_view: KeyedView) -> KeyedView:
        """Return one view that holds what this one and another of the same key hold."""
        return KeyedView(
            keys=self.keys,
            tags=self.tags,
            totals=tuple(dict.fromkeys((*self.totals, *other_view.totals))),
            last_value_columns=tuple(dict.fromkeys((*self.last_value_columns, *other_view.last_value_columns))),
            timed=self.timed or other_view.timed,
            histories=tuple(dict.fromkeys((*self.histories, *other_view.histories))),
            looked_up=self.looked_up or other_view.looked_up,
            by_tile=self.by_tile or other_view.by_tile,
            newest=self.newest,
        )


def with_rows(*totals: Total) -> tuple[Total, ...]:
    """Return totals with the number of rows before them, each once."""
    return tuple(dict.fromkeys((ROWS, *totals)))
