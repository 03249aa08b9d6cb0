"""Convert blocks of the log into rows of the raw table: typed, with times, numbers and the label."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from shortlist.contracts import Columns, DataError
from shortlist.data.reading.clock import check_timezone, event_days, row_times
from shortlist.data.reading.layout import FileLayout, RowBlock
from shortlist.data.reading.sources import InputFile
from shortlist.data.reading.typed_rows import TypedRows, broken_rows
from shortlist.data.rules.failures import RowFailure, find_failures, split_failures
from shortlist.data.rules.row_rules import build_column_checks, find_broken_checks
from shortlist.spec.data import Column, Data, EventClock, FileSource, LogFiles, RowClock
from shortlist.spec.log_shape import Positive
from shortlist.storage.positive_rows import is_positive

_INT8 = (-128, 127)


def log_layout(data: Data, source: LogFiles, extra: tuple[Column, ...] = ()) -> FileLayout:
    """Return the declared layout of the log's files.

    Args:
        data: The spec's data section.
        source: Files of the log; also given for a generated log.
        extra: Columns to read beside the declared ones.

    Raises:
        DataError: The label or the impression has an unsupported type, or the timezone does not exist.
    """
    if data.positive is None:
        _check_role_type(data, "label", data.label, ("integer", "number"))
    _check_role_type(data, "impression", data.impression, ("integer",))
    clock = data.clock if isinstance(data.clock, EventClock) else None
    if clock is not None:
        check_timezone(clock)
    label = data.by_name[data.label]
    if data.positive is None:
        label = label.model_copy(update={"type": "integer"})
    columns = [label if column.name == data.label else column for column in data.columns]
    # A generated log may have more columns than the declared ones.
    undeclared = data.rules.undeclared_columns if isinstance(data.source, LogFiles) else "ignore"
    keys = (data.user, data.item, data.request, *(table.key for table in data.side_tables))
    return FileLayout(
        "the log",
        (*columns, *extra),
        clock,
        not isinstance(source, FileSource) or source.header,
        source.null_values,
        undeclared,
        data.explode,
        source.delimiter if isinstance(source, FileSource) else None,
        frozenset(key for key in keys if key is not None),
        frozenset(name for name in (data.label, data.impression) if name is not None),
    )


class LogRows:
    """Converts blocks of the log, in file order, into rows of the raw table.

    Args:
        data: The spec's data section.
        layout: Declared layout of the files.
        total_rows: Rows of the log; used only where the clock is the order of the rows.
    """

    def __init__(self, data: Data, layout: FileLayout, total_rows: int) -> None:
        self._data = data
        self._typed = TypedRows(layout)
        self._label_checks = build_column_checks([data.by_name[data.label]])
        self._total = total_rows
        self._newest: datetime | None = None
        self.rows = 0
        """Rows converted so far, including rejected ones."""

    def convert_block(self, file: InputFile, block: RowBlock) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return a block's rows, and the rejected ones as quarantine rows; raises like `TypedRows.convert_block`."""
        typed, failures = self._typed.convert_block(file, block)
        rows = self._add_times(typed.with_columns(pl.col(Columns.ROWS) + self.rows))
        if self._data.positive is not None:
            failures += find_broken_checks(rows, self._label_checks)
            rows = rows.with_columns(_derive_label(self._data.label, self._data.positive))
        label = rows[self._data.label]
        failures += find_failures("label_is_binary", ~label.is_between(*_INT8), self._data.label, label, "0 or 1")
        if self._data.rules.sorted:
            failures += self._find_order_failures(rows[Columns.TIME])
        good_rows, rejected_rows = split_failures(rows, failures)
        self.rows += block.rows
        return self._select_columns(good_rows), pl.concat([broken_rows(file, block), rejected_rows])

    def _add_times(self, rows: pl.DataFrame) -> pl.DataFrame:
        clock = self._data.clock
        if isinstance(clock, RowClock):
            return rows.hstack(row_times(rows[Columns.ROWS], self._total, clock))
        return rows.with_columns(event_days(rows[Columns.TIME], clock))

    def _find_order_failures(self, times: pl.Series) -> list[RowFailure]:
        """Find rows that are earlier than a previous one; checked here, because splitting into days loses the order."""
        latest_before = times.cum_max().shift(1).fill_null(strategy="forward")
        newest = pl.select(pl.max_horizontal(latest_before, pl.lit(self._newest, times.dtype))).to_series()
        failures = find_failures(
            "time_order", times < newest, Columns.TIME, times, "no earlier time than in a row before"
        )
        latest_times = [moment for moment in (self._newest, times.max()) if isinstance(moment, datetime)]
        self._newest = max(latest_times, default=None)
        return failures

    def _select_columns(self, rows: pl.DataFrame) -> pl.DataFrame:
        roles = {Columns.IMPRESSION: self._data.impression or Columns.ROWS, Columns.LABEL: self._data.label}
        log_columns = [Columns.SOURCE_FILE, Columns.SOURCE_LINE, Columns.TIME, Columns.DAY]
        role_columns = [pl.col(name).alias(role) for role, name in roles.items()]
        declared_columns = [name for name in rows.columns if name not in {*log_columns, *roles.values(), Columns.ROWS}]
        return rows.select(*log_columns, *role_columns, *declared_columns).cast({Columns.LABEL: pl.Int8})


def _derive_label(label: str, positive: Positive) -> pl.Expr:
    """Return the label, 0 or 1, derived from its column's values; null where there is no value."""
    return is_positive(pl.col(label), positive).cast(pl.Int64()).alias(label)


def _check_role_type(data: Data, role: str, name: str | None, types: tuple[str, ...]) -> None:
    if name is not None and data.by_name[name].type not in types:
        raise DataError(f"data.{role} '{name}' is of type {data.by_name[name].type}; wanted {' or '.join(types)}")
