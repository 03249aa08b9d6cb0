"""Views whose values hold always: side tables, and mean vectors of users' lists."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from shortlist.config.data import Column
from shortlist.contracts import Columns, DataError
from shortlist.features.columns import Declared
from shortlist.features.ranges import write_frames
from shortlist.features.standing import StaticView
from shortlist.features.vectors import width_of
from shortlist.features.views import ALWAYS, ViewSize
from shortlist.tables import DayTable


def write_static(view: StaticView, side: Path, path: Path, declared: Declared, rows: int) -> ViewSize:
    """Write the columns of a side table that are read, some rows at a time.

    Args:
        view: Its name is the side table's.
        side: Folder of the side tables.
        path: File to write.
        declared: The declared columns.
        rows: Rows held in memory at once.
    """
    table = pl.scan_parquet(side / f"{view.name}.parquet")
    own = next(each for each in declared.data.side_tables if each.name == view.name)
    columns = [_storable(declared.column(name)) for name in view.features]
    wanted = table.select(pl.col(own.key).alias(*view.keys), always(), *columns).drop_nulls(view.keys)
    count = table.select(pl.len()).collect().item()
    written = write_frames(path, (wanted.slice(first, rows).collect() for first in range(0, max(count, 1), rows)))
    return ViewSize(written, written)


def always() -> pl.Expr:
    """Return the column that says from when on a static value holds."""
    return pl.lit(ALWAYS, dtype=pl.Datetime("us", "UTC")).alias(Columns.VALID_FROM)


def vector_widths(read: Iterable[str], log: DayTable, side: Path, declared: Declared) -> dict[str, int]:
    """Return the width of every vector column that is read.

    Raises:
        DataError: The vectors of a column differ in width, or there is none.
    """
    widths: dict[str, int] = {}
    for name in read:
        if declared.column(name).type == "vector":
            table = declared.owner(name)
            files = log.paths() if table is None else [side / f"{table.name}.parquet"]
            widths[name] = width_of(pl.concat(_one_of_each_width(file, name) for file in files))
            if not widths[name]:
                raise DataError(f"vector column '{name}' holds no vector at all; leave it out of the features")
    return widths


def _one_of_each_width(file: Path, name: str) -> pl.Series:
    vectors = pl.read_parquet(file, columns=[name])[name].drop_nulls().cast(pl.List(pl.Float32))
    return vectors.to_frame().unique(pl.col(name).list.len()).to_series()


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
