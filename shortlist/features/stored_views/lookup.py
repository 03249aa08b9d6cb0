"""Look-up of views: the newest values of a key before a day, or before a row's own time."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import Final, Protocol

import polars as pl

from shortlist.contracts import Columns
from shortlist.features.counts.keyed import LAST_TIME, KeyedView
from shortlist.features.counts.tiles import DAY_LENGTH, start_of
from shortlist.features.declared.plan import PlannedView
from shortlist.features.values.columns import DeclaredColumns
from shortlist.features.values.lists import ROW, one_row_per_tag
from shortlist.system.execution import count_cpu_operation
from shortlist.system.query_engine import Engine, collect

_BATCH_ROWS: Final = 250_000
_MAX_HELD_KEYS: Final = 100_000
"""Most keys of a view that is held in memory; larger views are searched on disk for some parts of a table together."""
_KEY_NUMBER: Final = ":asked"


def is_large_view(keys: int) -> bool:
    """Return whether a view of so many keys is too large to be held in memory."""
    return keys > _MAX_HELD_KEYS


class ViewAnswers(Protocol):
    """Answers keys of a view."""

    def answer(self, keys: pl.DataFrame, day: date) -> pl.DataFrame:
        """Return the features for each row of keys, in order; see `ViewFile.answer`."""


class ViewFile:
    """The values of one view, read a bounded number of rows at a time."""

    def __init__(self, path: Path, view: PlannedView, keys: int, timezone: str, engine: Engine) -> None:
        self.view = view
        self._path = path
        self._timezone = timezone
        self._engine = engine
        moments = pl.scan_parquet(path).group_by(Columns.VALID_FROM).agg(pl.len().alias(Columns.ROWS))
        self._moments = moments.sort(Columns.VALID_FROM).collect(engine="streaming")
        self._is_small = not is_large_view(keys)
        self._rows_read = 0
        self._newest = self._rows(0, 0)

    def answer(self, keys: pl.DataFrame, day: date) -> pl.DataFrame:
        """Return the features for each row of keys, in order; null where unknown.

        Args:
            keys: The view's keys. With their `event_time` they are answered as of that time, otherwise as of the start
                of the day.
            day: The day of the rows.
        """
        rows = self._row_count_at(start_of(day, self._timezone))
        values = self._search(keys, rows) if self.is_searched else self._read_up_to(rows)
        if Columns.TIME in keys.columns:
            return self._as_of_time(keys, values, rows, self._row_count_at(start_of(day + DAY_LENGTH, self._timezone)))
        return _join_values(keys, values, self.view, self._engine)

    @property
    def is_searched(self) -> bool:
        """Whether the whole view is searched on disk for the keys of every part of a table."""
        return not self._is_small and isinstance(self.view, KeyedView)

    def search(self, keys: pl.DataFrame, day: date) -> SearchedView:
        """Return the values at the start of a day of several parts' keys, so that the view is searched once for all."""
        values = self._search(keys, self._row_count_at(start_of(day, self._timezone)))
        return SearchedView(self.view, values, self._engine)

    def _row_count_at(self, moment: datetime) -> int:
        return int(self._moments.filter(pl.col(Columns.VALID_FROM) <= moment)[Columns.ROWS].sum())

    def _as_of_time(self, keys: pl.DataFrame, values: pl.DataFrame, first: int, last: int) -> pl.DataFrame:
        """Return the features for each row of keys as of its time, given those that hold when the day begins.

        Args:
            keys: The view's keys, and their time.
            values: Values at the start of the day.
            first: Rows of the view until then.
            last: Rows of the view until the end of the day.
        """
        count_cpu_operation("values as of a time")
        distinct_keys = keys.select(self.view.keys).drop_nulls().unique()
        batches = (
            self._rows(first_row, min(_BATCH_ROWS, last - first_row)) for first_row in range(first, last, _BATCH_ROWS)
        )
        changes = [rows.join(distinct_keys, on=self.view.keys, how="semi") for rows in batches]
        values_by_time = pl.concat([values, *changes]).sort(Columns.VALID_FROM)
        numbered_keys = keys.select(*self.view.keys, Columns.TIME).with_row_index(_KEY_NUMBER).sort(Columns.TIME)
        answers = numbered_keys.join_asof(
            values_by_time, left_on=Columns.TIME, right_on=Columns.VALID_FROM, by=self.view.keys, check_sortedness=False
        )
        return answers.sort(_KEY_NUMBER).select(self.view.features)

    def _read_up_to(self, rows: int) -> pl.DataFrame:
        """Return the newest of the first rows of each key, continuing where the last call stopped."""
        if not isinstance(self.view, KeyedView) and self._rows_read < rows:  # each key once
            self._newest = self._rows(0, rows)
            self._rows_read = rows
        if rows < self._rows_read:
            self._newest, self._rows_read = self._rows(0, 0), 0
        while self._rows_read < rows:
            next_rows = self._rows(self._rows_read, min(_BATCH_ROWS, rows - self._rows_read))
            self._newest = self._last_per_key(pl.concat([self._newest, next_rows]).lazy())
            self._rows_read += next_rows.height
        return self._newest

    def _search(self, keys: pl.DataFrame, rows: int) -> pl.DataFrame:
        """Return the newest of the first rows of each wanted key, from the newest rows backwards."""
        missing_keys = keys.select(self.view.keys).drop_nulls().unique()
        found_rows = [self._rows(0, 0)]
        while rows > 0 and missing_keys.height:
            first = max(0, rows - _BATCH_ROWS)
            matching_rows = (
                self._rows(first, rows - first).lazy().join(missing_keys.lazy(), on=self.view.keys, how="semi")
            )
            found_rows.append(self._last_per_key(matching_rows))
            rows = first
            if rows:
                missing_keys = missing_keys.join(found_rows[-1], on=self.view.keys, how="anti")
        return pl.concat(found_rows)

    def _last_per_key(self, rows: pl.LazyFrame) -> pl.DataFrame:
        columns = rows.collect_schema().names()
        newest = rows.sort(Columns.VALID_FROM).group_by(self.view.keys).agg(pl.all().last())
        return collect(newest.select(columns), self._engine)

    def _rows(self, first: int, rows: int) -> pl.DataFrame:
        count_cpu_operation("rows of a view read")
        view_rows = pl.scan_parquet(self._path).select(*self.view.keys, Columns.VALID_FROM, *self.view.features)
        return view_rows.slice(first, rows).collect()


class SearchedView:
    """The values of a view at the start of a day, for the keys of some parts of that day.

    Args:
        view: The view.
        values: Keys and features, each key once.
        engine: Executor of the queries.
    """

    def __init__(self, view: PlannedView, values: pl.DataFrame, engine: Engine) -> None:
        self._view, self._values, self._engine = view, values, engine

    def answer(self, keys: pl.DataFrame, day: date) -> pl.DataFrame:
        """Return the features for each row of keys, in order; null where unknown. See `ViewFile.answer`."""
        return _join_values(keys, self._values, self._view, self._engine)


def _join_values(keys: pl.DataFrame, values: pl.DataFrame, view: PlannedView, engine: Engine) -> pl.DataFrame:
    answers = keys.lazy().join(values.lazy(), on=view.keys, how="left", maintain_order="left")
    return collect(answers.select(view.features), engine)


def lookup_keys(
    rows: pl.DataFrame, view: PlannedView, declared: DeclaredColumns, *, timed: bool = False
) -> pl.DataFrame:
    """Return the keys that rows look up in a view: `ROW` and the key columns, one row per distinct tag.

    Args:
        rows: Rows of the log, with the views that hold their keys looked up before.
        view: The view.
        declared: The declared columns.
        timed: Whether to add the rows' `event_time`: the view's values change within a day.
    """
    all_rows_key = pl.lit(0, dtype=pl.Int64)
    columns = (all_rows_key if name == Columns.GLOBAL_KEY else pl.col(declared.row_column(name)) for name in view.keys)
    named = rows.with_columns(column.alias(name) for name, column in zip(view.keys, columns, strict=True))
    if not isinstance(view, KeyedView):
        return one_row_per_tag(named.select(view.keys), ())
    return one_row_per_tag(named.select(*view.keys, *([Columns.TIME] if timed else [])), view.tags)


def gather_answers(view: PlannedView, keys: pl.DataFrame, answers: pl.DataFrame, rows: int) -> pl.DataFrame:
    """Return a view's values for each row, in columns named `<view>:<feature>`.

    A row with several tags gets the sums over its tags, the newest time, and the value of that time.

    Args:
        view: The view.
        keys: The keys of the rows, as `lookup_keys` returns them.
        answers: The features for each row of `keys`, in order.
        rows: Number of rows.
    """
    names = {name: f"{view.name}:{name}" for name in view.features}
    if not isinstance(view, KeyedView) or not view.tags:
        return answers.select(view.features).rename(names)
    count_cpu_operation("values of several tags together")
    per_tag = pl.concat([keys.select(ROW), answers.select(view.features)], how="horizontal")
    lasts = [f"last_{name}" for name in view.last_value_columns]
    newest = per_tag.sort(LAST_TIME, *lasts) if view.timed else per_tag
    values = (pl.col(name).last() if name in (LAST_TIME, *lasts) else pl.col(name).sum() for name in view.features)
    combined = newest.group_by(ROW).agg(values)
    every_row = pl.select(pl.int_range(rows, dtype=pl.UInt32).alias(ROW))
    return every_row.join(combined, on=ROW, how="left", maintain_order="left").drop(ROW).rename(names)
