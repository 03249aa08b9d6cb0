"""Comparison of the training table with Feast's historical and online answers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from typing import Protocol

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from shortlist.contracts import Columns, DataError, ShortlistError
from shortlist.features.feast.store import FeastStore
from shortlist.features.stored_views.view_index import StoredView, ViewIndex


class ViewLookup(Protocol):
    """Looks a view up as the training table does."""

    def __call__(self, view: str, keys: pl.DataFrame, day: date) -> pl.DataFrame:
        """Return a view's features for the rows of one day.

        Args:
            view: Name of the view.
            keys: The view's key columns, one value per row (tags are exploded), none null; where values change within
                days, the rows' `event_time` too.
            day: The day of the rows; only earlier days count or, with `event_time`, what was known at that time.

        Returns:
            The view's features by their own names, one row per key, in order.
        """
        ...


class FeatureSkewReport(BaseModel):
    """Numbers of compared and of differing answers."""

    model_config = ConfigDict(frozen=True)

    rows_checked: int = Field(ge=0)
    """Rows of the feature table."""
    keys_checked: int = Field(ge=0)
    """Compared answers: a row looks up every view, a tags column once per value."""
    historical_mismatches: int = Field(ge=0)
    """Answers of the sample that differ from Feast's historical ones."""
    online_mismatches: int = Field(ge=0)
    """Answers of the newest rows that differ from what serving reads (online store, or snapshot of a large view)."""
    row_count_ok: bool
    """Whether Feast answered every row once."""
    columns: dict[str, int]
    """Differing values of every `<view>:<feature>`."""


def check_skew(store: FeastStore, sample: pl.DataFrame, newest: pl.DataFrame, look_up: ViewLookup) -> FeatureSkewReport:
    """Compare the table's lookups with Feast's historical answers, and the newest with what serving reads.

    Values are equal when they are identical; two nulls are equal. Online values hold at the moment up to which they
    were materialised, so the newest rows' keys are looked up for that day: materialise to the start of the newest day
    first, so that the comparison is with the training table itself.

    Args:
        store: Applied, and materialised to the start of the newest day or later.
        sample: Rows of the log: `day`, `event_time`, and the columns that are keys; a side table's as it was looked up.
        newest: Rows of the log's newest day, likewise.
        look_up: Looks values up as the training table does.

    Raises:
        ShortlistError: An online view was never materialised, or the rows lack a key.
    """
    tally = _Tally(store, look_up)
    for view in store.views.views:
        if (key_rows := _distinct_keys(sample, view, store.views)).height:
            tally.historical(view, key_rows)
        if (key_rows := _distinct_keys(newest, view, store.views)).height:
            tally.current(view, key_rows)
    return FeatureSkewReport(
        rows_checked=sample.height + newest.height,
        keys_checked=tally.keys_checked,
        historical_mismatches=tally.historical_mismatches,
        online_mismatches=tally.online_mismatches,
        row_count_ok=tally.row_count_ok,
        columns=tally.columns,
    )


class _Tally:
    """Counts compared and differing answers."""

    def __init__(self, store: FeastStore, look_up: ViewLookup) -> None:
        self._store = store
        self._look_up = look_up
        self._online = {view.name for view in store.online_views}
        self.keys_checked = self.historical_mismatches = self.online_mismatches = 0
        self.row_count_ok = True
        self.columns = {column: 0 for view in store.views.views for column in view.columns}

    def historical(self, view: StoredView, key_rows: pl.DataFrame) -> None:
        """Compare a view's answers at the rows' own times."""
        table = [self._table(view, rows, day) for day, rows in _by_day(key_rows)]
        key_rows = pl.concat([rows for _, rows in _by_day(key_rows)])
        self.historical_mismatches += self._differing(
            view, pl.concat(table), lambda: self._store.historical(key_rows, [view.name])
        )

    def current(self, view: StoredView, key_rows: pl.DataFrame) -> None:
        """Compare a view's answers with what serving reads now."""
        keys = key_rows.select(view.key_names).unique(maintain_order=True)
        if view.name in self._online:
            moment = self._store.valid_until(view.name)
            if moment is None:
                raise ShortlistError(f"view '{view.name}' is not in the online store yet; materialise it first")
            table = self._table_at(view, keys, moment)
            self.online_mismatches += self._differing(view, table, lambda: self._store.online(keys, [view.name]))
        else:
            newest = key_rows[Columns.TIME].max()
            assert isinstance(newest, datetime)
            moment = self._store.views.tiles.known_at(newest)
            table = self._table_at(view, keys, moment)
            self.online_mismatches += self._differing(view, table, lambda: self._snapshot(view, keys, moment))

    def _snapshot(self, view: StoredView, keys: pl.DataFrame, at: datetime) -> pl.DataFrame:
        values = self._store.views.snapshot(view.name, at)
        named = values.rename(dict(zip(view.feature_names, view.columns, strict=True)))
        return keys.join(named, on=view.key_names, how="left", maintain_order="left")

    def _table_at(self, view: StoredView, keys: pl.DataFrame, moment: datetime) -> pl.DataFrame:
        rows = keys.with_columns(pl.lit(moment, pl.Datetime("us", "UTC")).alias(Columns.TIME))
        return self._table(view, rows, self._store.views.day_of(moment))

    def _table(self, view: StoredView, rows: pl.DataFrame, day: date) -> pl.DataFrame:
        timed = not view.static and self._store.views.tiles.within_days
        values = self._look_up(view.name, rows.select(*view.key_names, *([Columns.TIME] if timed else [])), day)
        assert values.height == rows.height, f"the table looked up {values.height} of {rows.height} rows of {view.name}"
        return values.select(
            pl.col(feature.name).cast(feature.polars).alias(f"{view.name}:{feature.name}") for feature in view.features
        )

    def _differing(self, view: StoredView, table: pl.DataFrame, ask: Callable[[], pl.DataFrame]) -> int:
        self.keys_checked += table.height
        try:
            feast = ask().select(view.columns)
        except DataError:  # lost rows cannot be compared one by one: none of them is right
            self.row_count_ok = False
            return table.height
        different = table.select(pl.col(name).ne_missing(feast[name]) for name in view.columns)
        for name, count in different.sum().row(0, named=True).items():
            self.columns[name] += count
        return int(different.select(pl.any_horizontal(pl.all()).sum()).item())


def _distinct_keys(rows: pl.DataFrame, view: StoredView, index: ViewIndex) -> pl.DataFrame:
    """Return the distinct keys that rows look up in a view, with `day` and `event_time`: tags exploded, no nulls."""
    keys = rows.select(*(_key(rows, name, index) for name in view.key_names), Columns.DAY, Columns.TIME)
    for name in view.key_names:
        if isinstance(keys.schema[name], pl.List):
            keys = keys.explode(name)
    typed = keys.with_columns(pl.col(key.name).cast(key.polars) for key in view.keys)
    return typed.drop_nulls(view.key_names).unique(maintain_order=True)


def _key(rows: pl.DataFrame, name: str, index: ViewIndex) -> pl.Expr:
    """Return a key's column in rows: of the log, or of a side table that was looked up, `<table>:<column>`."""
    if name == Columns.GLOBAL_KEY:
        return pl.lit(0, pl.Int64).alias(name)
    looked_up = (f"{view.name}:{name}" for view in index.views if view.static and name in view.feature_names)
    column_in_rows = next((column for column in (name, *looked_up) if column in rows.columns), None)
    if column_in_rows is None:
        raise ShortlistError(f"the rows to compare lack the key '{name}'; look their side tables up first")
    return pl.col(column_in_rows).alias(name)


def _by_day(key_rows: pl.DataFrame) -> list[tuple[date, pl.DataFrame]]:
    return [(day, rows) for (day,), rows in key_rows.group_by(Columns.DAY, maintain_order=True)]
