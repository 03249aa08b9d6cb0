"""Views whose values do not change with time: side tables, and mean vectors of users' lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path

import polars as pl

from shortlist.contracts import Columns, DataError
from shortlist.features.declared.static_view_plan import StaticView
from shortlist.features.stored_views.views import VALID_FROM_START, ViewSize
from shortlist.features.values.columns import DeclaredColumns
from shortlist.features.values.derived_columns import DerivedColumn
from shortlist.features.values.ranges import write_frames
from shortlist.features.values.vectors import common_width, widths_in
from shortlist.spec.data import Column
from shortlist.storage.tables import DayTable


def write_static(view: StaticView, side: Path, path: Path, declared: DeclaredColumns, rows: int) -> ViewSize:
    """Write the columns of a side table that are read, some rows at a time.

    Args:
        view: The view, which has the name of the side table.
        side: Folder of the side tables.
        path: File to write.
        declared: The declared columns.
        rows: Rows held in memory at once.
    """
    table = pl.scan_parquet(side / f"{view.name}.parquet")
    side_table = next(
        declared_table for declared_table in declared.data.side_tables if declared_table.name == view.name
    )
    derived_names = {column.name for column in view.derived}
    columns = [_storable(declared.column(name)) for name in view.features if name not in derived_names]
    sources = [pl.col(column.source).alias(_source_column(column)) for column in view.derived]
    view_rows = table.select(
        pl.col(side_table.key).alias(*view.keys), static_valid_from(), *columns, *sources
    ).drop_nulls(view.keys)
    count = table.select(pl.len()).collect().item()
    frames = (view_rows.slice(first, rows).collect() for first in range(0, max(count, 1), rows))
    written = write_frames(path, (_with_derived(frame, view) for frame in frames))
    return ViewSize(written, written)


def _with_derived(frame: pl.DataFrame, view: StaticView) -> pl.DataFrame:
    """Return rows of a side table with the derived columns of its view in place of their sources."""
    derived = [column.values(frame[_source_column(column)]) for column in view.derived]
    return frame.with_columns(derived).select(*view.keys, Columns.VALID_FROM, *view.features)


def _source_column(column: DerivedColumn) -> str:
    return f"source of {column.name}"


def static_valid_from() -> pl.Expr:
    """Return the column of the moment from which a static value holds."""
    return pl.lit(VALID_FROM_START, dtype=pl.Datetime("us", "UTC")).alias(Columns.VALID_FROM)


def widths_on(
    days: Iterable[date], read: Iterable[str], log: DayTable, declared: DeclaredColumns
) -> dict[str, list[int]]:
    """Return the different widths of the vectors on some days, for every vector column of the log that is read."""
    files = log.paths(frozenset(days))
    vectors = (name for name in read if declared.column(name).type == "vector" and declared.side_table_of(name) is None)
    return {name: sorted({width for file in files for width in _widths(file, name)}) for name in vectors}


def vector_widths(
    read: Iterable[str], log_widths: Mapping[str, Iterable[int]], side: Path, declared: DeclaredColumns
) -> dict[str, int]:
    """Return the width of every vector column that is read.

    Args:
        read: Columns that are read.
        log_widths: Result of `widths_on` for the days of the log.
        side: Folder of the side tables.
        declared: The declared columns.

    Raises:
        DataError: The vectors of a column differ in width, or there is none.
    """
    widths: dict[str, int] = {}
    for name in read:
        if declared.column(name).type == "vector":
            table = declared.side_table_of(name)
            column_widths = _widths(side / f"{table.name}.parquet", name) if table else log_widths[name]
            widths[name] = common_width(name, column_widths)
            if not widths[name]:
                raise DataError(f"vector column '{name}' holds no vector at all; leave it out of the features")
    return widths


def _widths(file: Path, name: str) -> list[int]:
    return widths_in(pl.read_parquet(file, columns=[name])[name].cast(pl.List(pl.Float32)))


def _storable(column: Column) -> pl.Expr:
    """Return a column in a type that Feast can hold: dates as days since 1970-01-01, no null inside a list."""
    value = pl.col(column.name)
    match column.type:
        case "date":
            return value.cast(pl.Int32).cast(pl.Int64)
        case "integer" | "hex":
            return value.cast(pl.Int64)
        case "number":
            return value.cast(pl.Float64)
        case "tags":
            return value.list.drop_nulls()
        case "vector":
            return value.cast(pl.List(pl.Float32)).list.eval(pl.element().fill_null(0.0))
        case _:
            return value
