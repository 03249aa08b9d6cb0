"""Lists of events that are put together when rows are looked up, in the table and in a server by the same rule.

A stored list is what the statistics hold, after the events of the open tiles where a sequence is `live`. A list that
the row itself brings, which a client sent, replaces it. Columns of listed items are looked up in their side table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from shortlist.features.keyed import NEWEST_TIMES, NEWEST_VALUES
from shortlist.features.lists import map_values
from shortlist.features.newest import wide_lists
from shortlist.features.open_events import OpenList
from shortlist.features.open_lists import open_list

Answer = Callable[[str, pl.DataFrame], pl.DataFrame]
"""answer(view, keys) returns the columns of a view for each row of keys."""


@dataclass(frozen=True)
class ItemColumn:
    """A column of the listed item's side table."""

    table: str
    key: str
    """Of the table."""
    name: str
    is_number: bool
    """Otherwise its values get ids; of several values the first one."""

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
    """A list of events, newest first, with what stands beside every event."""

    view: str
    """The view that holds the events of complete tiles."""
    of: str
    """Column of the log whose values are listed."""
    most: int
    """Events of the list."""
    opened: OpenList | None = None
    """The events of the open tiles."""
    sent: str = ""
    """Column of the log that holds a list which replaces the stored one."""
    sent_times: str = ""
    """Column of the log that holds the times of its events, in microseconds since 1970-01-01 UTC."""
    numbers: tuple[str, ...] = ()
    """Columns of the log that stand beside each event."""
    items: tuple[ItemColumn, ...] = ()
    """Columns that are looked up by the listed value."""

    def place(self, feature: str) -> str:
        """Return the name under which looked-up rows hold a list or a vector."""
        parts = ("live" if self.opened else "joined", *self.sent_columns, self.view)
        return f"{'_'.join(parts)}:{feature}"

    def stored(self, feature: str) -> str:
        """Return the name under which looked-up rows hold what the statistics know."""
        return f"{self.view}:{feature}"

    def open_place(self, feature: str) -> str | None:
        """Return the name under which rows hold what is kept of the open tiles; None where nothing is."""
        kept = self.opened is not None and feature in self.opened.features
        return open_list(self.opened, feature) if self.opened is not None and kept else None

    @property
    def lists(self) -> tuple[str, ...]:
        """What is read as lists of codes."""
        return (NEWEST_VALUES, NEWEST_TIMES, *(one.feature for one in self.items if not one.is_number))

    @property
    def vectors(self) -> tuple[str, ...]:
        """What is read as vectors, `most` wide."""
        logged = (f"newest_{name}" for name in self.numbers)
        return (*logged, *(one.feature for one in self.items if one.is_number))

    @property
    def sent_columns(self) -> tuple[str, ...]:
        """Columns of the log that a client may send."""
        return tuple(filter(None, (self.sent, self.sent_times)))


def with_joined_lists(rows: pl.DataFrame, joined: Sequence[JoinedList], answer: Answer) -> pl.DataFrame:
    """Return looked-up rows with the lists; rows without those of the open tiles have none.

    Args:
        rows: What the views said of them.
        joined: What is put together.
        answer: Answers for the side tables of listed items.
    """
    for wanted in joined:
        lists = (_events(wanted, feature, rows).alias(wanted.place(feature)) for feature in wanted.lists[:2])
        numbers = (_numbers(wanted, name, rows).alias(wanted.place(f"newest_{name}")) for name in wanted.numbers)
        rows = rows.with_columns(*lists, *numbers)
        rows = rows.with_columns(_of_items(wanted, rows[wanted.place(NEWEST_VALUES)], answer))
    return rows


def _is_sent(wanted: JoinedList) -> pl.Expr:
    return pl.col(wanted.sent).list.len().fill_null(0) > 0


def _parts(wanted: JoinedList, feature: str, rows: pl.DataFrame) -> list[pl.Expr]:
    """Return the events of the open tiles and of the statistics, as far as rows have them."""
    names = (wanted.open_place(feature), wanted.stored(feature))
    return [pl.col(name).fill_null([]) for name in names if name is not None and name in rows.columns]


def _events(wanted: JoinedList, feature: str, rows: pl.DataFrame) -> pl.Expr:
    stored = pl.concat_list(_parts(wanted, feature, rows)).list.head(wanted.most)
    if not wanted.sent:
        return stored
    values, times = pl.col(wanted.sent), pl.col(wanted.sent_times or wanted.sent)
    if feature == NEWEST_VALUES:
        own = values.list.head(wanted.most)
    elif not wanted.sent_times:
        own = pl.lit([], dtype=pl.List(pl.Int64))
    else:  # times that do not belong to the values, one to each, say nothing
        own = pl.when(times.list.len() == values.list.len()).then(times.list.head(wanted.most)).otherwise(
            pl.lit([], dtype=pl.List(pl.Int64))
        )  # fmt: skip
    return pl.when(_is_sent(wanted)).then(own).otherwise(stored)


def _numbers(wanted: JoinedList, name: str, rows: pl.DataFrame) -> pl.Expr:
    """Return a number of every event, 0 where it is not known yet and behind the last event."""
    feature = f"newest_{name}"
    zeros = pl.lit([0.0] * wanted.most, dtype=pl.List(pl.Float32))
    parts = _parts(wanted, feature, rows)
    if wanted.opened is not None and wanted.open_place(feature) is None:
        events = open_list(wanted.opened, NEWEST_VALUES)
        if events in rows.columns:  # what is known afterwards comes with the statistics
            parts.insert(0, pl.lit(0.0, pl.Float32).repeat_by(pl.col(events).list.len().fill_null(0)))
    stored = pl.concat_list([*parts, zeros]).list.head(wanted.most)
    return pl.when(_is_sent(wanted)).then(zeros).otherwise(stored) if wanted.sent else stored


def _of_items(wanted: JoinedList, values: pl.Series, answer: Answer) -> list[pl.Series]:
    """Return what the side table says of the listed items."""
    found = []
    flat = values.explode(empty_as_null=False, keep_nulls=False)
    for table, key in dict.fromkeys((one.table, one.key) for one in wanted.items):
        answers = answer(table, pl.DataFrame([flat.alias(key)]))
        for one in wanted.items:
            if one.table == table:
                own = answers[one.name]
                own = own.list.first() if isinstance(own.dtype, pl.List) else own
                lists = map_values(values, lambda _, own=own: own)  # type: ignore[misc]
                lists = wide_lists(lists, wanted.most) if one.is_number else lists
                found.append(lists.alias(wanted.place(one.feature)))
    return found
