"""Lists of events that are joined when rows are looked up, in the table and in a server by the same rule.

A stored list is what the statistics hold, after the events of the open tiles where a sequence is `live`. A list in the
row itself, which a client sent, replaces it. Columns of listed items are looked up in their side table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from shortlist.features.counts.keyed import NEWEST_TIMES, NEWEST_VALUES
from shortlist.features.counts.newest_events import wide_lists
from shortlist.features.live.open_events import OpenList
from shortlist.features.live.open_lists import open_list_column
from shortlist.features.values.lists import map_values

Answer = Callable[[str, pl.DataFrame], pl.DataFrame]
"""answer(view, keys) returns the columns of a view for each row of keys."""


@dataclass(frozen=True)
class ItemColumn:
    """A column of the listed item's side table."""

    table: str
    key: str
    """Key column of the side table."""
    name: str
    is_number: bool
    """Whether its values are numbers; otherwise they get ids, of several values the first one."""

    @property
    def place(self) -> str:
        """Name under which looked-up rows hold the column of their own item."""
        return f"{self.table}:{self.name}"

    @property
    def feature(self) -> str:
        """Name of the list of its values."""
        return f"item_{self.name}"


@dataclass(frozen=True)
class JoinedList:
    """A list of events, newest first, with the columns of every event."""

    view: str
    """The view that holds the events of complete tiles."""
    column: str
    """Column of the log whose values are listed."""
    max_events: int
    """Most events of the list."""
    open_list: OpenList | None = None
    """The events of the open tiles."""
    sent: str = ""
    """Column of the log that holds a list which replaces the stored one."""
    sent_times: str = ""
    """Column of the log that holds the times of its events, in microseconds since 1970-01-01 UTC."""
    numbers: tuple[str, ...] = ()
    """Columns of the log that every event has."""
    items: tuple[ItemColumn, ...] = ()
    """Columns that are looked up by the listed value."""

    def row_column(self, feature: str) -> str:
        """Return the name under which looked-up rows hold a list or a vector."""
        parts = ("live" if self.open_list else "joined", *self.sent_columns, self.view)
        return f"{'_'.join(parts)}:{feature}"

    def stored_column(self, feature: str) -> str:
        """Return the name under which looked-up rows hold the list of the statistics."""
        return f"{self.view}:{feature}"

    def open_column(self, feature: str) -> str | None:
        """Return the name under which rows hold the list of the open tiles; None where there is none."""
        is_kept = self.open_list is not None and feature in self.open_list.features
        return open_list_column(self.open_list, feature) if self.open_list is not None and is_kept else None

    @property
    def lists(self) -> tuple[str, ...]:
        """Names of the lists that are read as codes."""
        return (
            NEWEST_VALUES,
            NEWEST_TIMES,
            *(item_column.feature for item_column in self.items if not item_column.is_number),
        )

    @property
    def vectors(self) -> tuple[str, ...]:
        """Names of the lists that are read as vectors, `max_events` wide."""
        logged = (f"newest_{name}" for name in self.numbers)
        return (*logged, *(item_column.feature for item_column in self.items if item_column.is_number))

    @property
    def sent_columns(self) -> tuple[str, ...]:
        """Columns of the log that a client may send."""
        return tuple(filter(None, (self.sent, self.sent_times)))


def with_joined_lists(rows: pl.DataFrame, joined: Sequence[JoinedList], answer: Answer) -> pl.DataFrame:
    """Return looked-up rows with the lists; rows without those of the open tiles have none.

    Args:
        rows: Rows with the values of the views.
        joined: The lists.
        answer: Looks up the side tables of listed items.
    """
    for joined_list in joined:
        lists = (
            _events(joined_list, feature, rows).alias(joined_list.row_column(feature))
            for feature in joined_list.lists[:2]
        )
        numbers = (
            _numbers(joined_list, name, rows).alias(joined_list.row_column(f"newest_{name}"))
            for name in joined_list.numbers
        )
        rows = rows.with_columns(*lists, *numbers)
        rows = rows.with_columns(_item_lists(joined_list, rows[joined_list.row_column(NEWEST_VALUES)], answer))
    return rows


def _is_sent(joined_list: JoinedList) -> pl.Expr:
    return pl.col(joined_list.sent).list.len().fill_null(0) > 0


def _parts(joined_list: JoinedList, feature: str, rows: pl.DataFrame) -> list[pl.Expr]:
    """Return the lists of the open tiles and of the statistics, as far as rows have them."""
    names = (joined_list.open_column(feature), joined_list.stored_column(feature))
    return [pl.col(name).fill_null([]) for name in names if name is not None and name in rows.columns]


def _events(joined_list: JoinedList, feature: str, rows: pl.DataFrame) -> pl.Expr:
    stored = pl.concat_list(_parts(joined_list, feature, rows)).list.head(joined_list.max_events)
    if not joined_list.sent:
        return stored
    values, times = pl.col(joined_list.sent), pl.col(joined_list.sent_times or joined_list.sent)
    if feature == NEWEST_VALUES:
        sent_events = values.list.head(joined_list.max_events)
    elif not joined_list.sent_times:
        sent_events = pl.lit([], dtype=pl.List(pl.Int64))
    else:  # times are ignored unless there is one for each value
        match = times.list.len() == values.list.len()
        no_events = pl.lit([], dtype=pl.List(pl.Int64))
        sent_events = pl.when(match).then(times.list.head(joined_list.max_events)).otherwise(no_events)
    return pl.when(_is_sent(joined_list)).then(sent_events).otherwise(stored)


def _numbers(joined_list: JoinedList, name: str, rows: pl.DataFrame) -> pl.Expr:
    """Return a number of every event, 0 where it is not known yet and behind the last event."""
    feature = f"newest_{name}"
    zeros = pl.lit([0.0] * joined_list.max_events, dtype=pl.List(pl.Float32))
    parts = _parts(joined_list, feature, rows)
    if joined_list.open_list is not None and joined_list.open_column(feature) is None:
        events = open_list_column(joined_list.open_list, NEWEST_VALUES)
        if events in rows.columns:  # numbers known after the impression come with the statistics
            parts.insert(0, pl.lit(0.0, pl.Float32).repeat_by(pl.col(events).list.len().fill_null(0)))
    stored = pl.concat_list([*parts, zeros]).list.head(joined_list.max_events)
    return pl.when(_is_sent(joined_list)).then(zeros).otherwise(stored) if joined_list.sent else stored


def _item_lists(joined_list: JoinedList, values: pl.Series, answer: Answer) -> list[pl.Series]:
    """Return the columns of the listed items from their side tables."""
    columns = []
    flat = values.explode(empty_as_null=False, keep_nulls=False)
    for table, key in dict.fromkeys((item_column.table, item_column.key) for item_column in joined_list.items):
        answers = answer(table, pl.DataFrame([flat.alias(key)]))
        for item_column in joined_list.items:
            if item_column.table == table:
                item_values = answers[item_column.name]
                item_values = item_values.list.first() if isinstance(item_values.dtype, pl.List) else item_values
                lists = map_values(values, lambda _, item_values=item_values: item_values)  # type: ignore[misc]
                lists = wide_lists(lists, joined_list.max_events) if item_column.is_number else lists
                columns.append(lists.alias(joined_list.row_column(item_column.feature)))
    return columns
