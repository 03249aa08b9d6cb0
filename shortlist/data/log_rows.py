"""Rows of the log: typed, timed, numbered, in the columns that every later stage reads."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import polars as pl

from shortlist.contracts import Columns, DataError
from shortlist.data.clock import check_timezone, event_days, row_times
from shortlist.data.failures import Failure, failure, split_failures
from shortlist.data.layout import Block, Layout
from shortlist.data.rules import broken_checks, column_checks
from shortlist.data.sources import InputFile
from shortlist.data.typed_rows import TypedRows, broken_rows
from shortlist.spec.data import Column, Data, EventClock, FileSource, RowClock
from shortlist.spec.log_shape import Positive
from shortlist.storage.positive_rows import is_positive

_INT8 = (-128, 127)


def log_layout(data: Data, source: FileSource, extra: tuple[Column, ...] = ()) -> Layout:
    """Return what the spec says about the files of the log.

    Args:
        data: The spec's data section.
        source: Where the files lie, for a generated log too.
        extra: Columns to read beside the declared ones.

    Raises:
        DataError: The label or the impression has a type that cannot be one, or the timezone does not exist.
    """
    if data.positive is None:
        _check_no_role(data, "label", data.label, ("integer", "number"))
    _check_no_role(data, "impression", data.impression, ("integer",))
    clock = data.clock if isinstance(data.clock, EventClock) else None
    if clock is not None:
        check_timezone(clock)
    label = data.by_name[data.label]
    if data.positive is None:
        label = label.model_copy(update={"type": "integer"})
    columns = [label if column.name == data.label else column for column in data.columns]
    # What a generated log has beyond the declared columns is nobody's mistake.
    undeclared = data.rules.undeclared_columns if isinstance(data.source, FileSource) else "ignore"
    return Layout("the log", (*columns, *extra), clock, source.header, source.null_values, undeclared, data.explode)


class LogRows:
    """Turns the blocks of the log, in file order, into rows of the raw table.

    Args:
        data: The spec's data section.
        layout: What it says about the files.
        total_rows: Of the log; used only where the rows' order is the clock.
        first_row: Number of the first row, counted from 0.
        widths: See `TypedRows`.
    """

    def __init__(
        self, data: Data, layout: Layout, total_rows: int, first_row: int = 0, widths: Mapping[str, int] | None = None
    ) -> None:
        self._data = data
        self._first = first_row
        self._typed = TypedRows(layout, widths)
        self._label_checks = column_checks([data.by_name[data.label]])
        self._total = total_rows
        self._newest: datetime | None = None
        self.rows = 0
        """Rows taken so far, rejected ones included."""

    def take(self, file: InputFile, block: Block) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return a block's rows, and those rejected as quarantine rows; raises as `TypedRows.take` does."""
        typed, failures = self._typed.take(file, block)
        rows = self._timed(typed.with_columns(pl.col(Columns.ROWS) + self._first + self.rows))
        if self._data.positive is not None:
            failures += broken_checks(rows, self._label_checks)
            rows = rows.with_columns(_derived(self._data.label, self._data.positive))
        label = rows[self._data.label]
        failures += failure("label_is_binary", ~label.is_between(*_INT8), self._data.label, label, "0 or 1")
        if self._data.rules.sorted:
            failures += self._order_failure(rows[Columns.TIME])
        good, bad = split_failures(rows, failures)
        self.rows += block.rows
        return self._named(good), pl.concat([broken_rows(file, block), bad])

    def _timed(self, rows: pl.DataFrame) -> pl.DataFrame:
        clock = self._data.clock
        if isinstance(clock, RowClock):
            return rows.hstack(row_times(rows[Columns.ROWS], self._total, clock))
        return rows.with_columns(event_days(rows[Columns.TIME], clock))

    def _order_failure(self, times: pl.Series) -> list[Failure]:
        """Only here rows still stand as in the files: once they are cut into days, their order is lost."""
        before = times.cum_max().shift(1).fill_null(strategy="forward")
        newest = pl.select(pl.max_horizontal(before, pl.lit(self._newest, times.dtype))).to_series()
        found = failure("time_order", times < newest, Columns.TIME, times, "no earlier time than in a row before")
        latest = [moment for moment in (self._newest, times.max()) if isinstance(moment, datetime)]
        self._newest = max(latest, default=None)
        return found

    def _named(self, rows: pl.DataFrame) -> pl.DataFrame:
        roles = {Columns.IMPRESSION: self._data.impression or Columns.ROWS, Columns.LABEL: self._data.label}
        own = [Columns.SOURCE_FILE, Columns.SOURCE_LINE, Columns.TIME, Columns.DAY]
        named = [pl.col(name).alias(role) for role, name in roles.items()]
        others = [name for name in rows.columns if name not in {*own, *roles.values(), Columns.ROWS}]
        return rows.select(*own, *named, *others).cast({Columns.LABEL: pl.Int8})


def _derived(label: str, positive: Positive) -> pl.Expr:
    """Return the label, 0 or 1, of the values of its column; null where there is none."""
    return is_positive(pl.col(label), positive).cast(pl.Int64()).alias(label)


def _check_no_role(data: Data, role: str, name: str | None, wanted: tuple[str, ...]) -> None:
    if name is not None and data.by_name[name].type not in wanted:
        raise DataError(f"data.{role} '{name}' is of type {data.by_name[name].type}; wanted {' or '.join(wanted)}")
