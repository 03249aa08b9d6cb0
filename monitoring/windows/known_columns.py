"""Columns known before the impression: those of the log, and those that side tables add by key."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl
from polars.exceptions import PolarsError

from shortlist.contracts import Columns, ShortlistError
from shortlist.spec.data import Column, Data, SideTable
from shortlist.storage.side_tables import side_path

WINDOW_COLUMNS: Final = ("request_id", "row", Columns.USER, "version", "track", "score", Columns.LABEL)
"""Columns that every row of a window has; a declared column with one of these names is left out."""

SLATE_SIZE: Final = "slate size"
"""Column with the number of candidates of a row's request, or of rows of its slate; no declared name has a space."""


def log_columns(data: Data) -> dict[str, Column]:
    """Return the log's columns that are known before the impression, by name: no label, no ids of rows, no vectors."""
    left_out = (*data.names_of_rows, *WINDOW_COLUMNS)
    return {column.name: column for column in data.columns if _is_input(column) and column.name not in left_out}


def side_columns(table: SideTable) -> list[str]:
    """Return the columns that a side table adds."""
    return [
        column.name for column in table.columns if _is_input(column) and column.name not in (table.key, *WINDOW_COLUMNS)
    ]


def with_side_columns(rows: pl.DataFrame, data: Data, log: Path) -> pl.DataFrame:
    """Return rows with the columns of the side tables; null for a key that a side table does not have.

    Args:
        rows: Rows with the keys.
        data: The log's declaration.
        log: Folder of the valid log, whose side tables are joined.

    Raises:
        ShortlistError: A side table is missing or has other columns.
    """
    for table in data.side_tables:
        names = side_columns(table)
        if names and table.key in rows.columns:
            rows = rows.join(
                _look_up_keys(rows[table.key], table, names, log), on=table.key, how="left", maintain_order="left"
            )
    return rows


def empty_as_null(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with empty lists, and numbers that are not finite, replaced by null."""
    lists = [name for name, kind in rows.schema.items() if isinstance(kind, pl.List)]
    numbers = [name for name, kind in rows.schema.items() if kind.is_float()]
    return rows.with_columns(
        *(pl.when(pl.col(name).list.len() > 0).then(pl.col(name)).alias(name) for name in lists),
        *(pl.when(pl.col(name).is_finite()).then(pl.col(name)).alias(name) for name in numbers),
    )


def _is_input(column: Column) -> bool:
    return column.known == "before" and column.type != "vector"


def _look_up_keys(keys: pl.Series, table: SideTable, names: list[str], log: Path) -> pl.DataFrame:
    """Return the rows of a side table that have one of the keys."""
    path = side_path(log, table)
    unique_keys = keys.drop_nulls().unique().implode()
    try:
        scan = pl.scan_parquet(path).select(table.key, *names).filter(pl.col(table.key).is_in(unique_keys))
        return scan.collect(engine="streaming").unique(table.key, keep="first")
    except (PolarsError, OSError) as error:
        error_line = str(error).splitlines()[0]
        raise ShortlistError(
            f"{path}: side table '{table.name}' cannot be read ({error_line}); wanted the one of the valid log that the"
            " model was trained on. Run the training again."
        ) from None
