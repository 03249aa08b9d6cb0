"""Side tables, one row per user or item, brought to their declared types."""

from __future__ import annotations

from pathlib import Path

from shortlist.contracts import Columns, DataError
from shortlist.data.failures import split_failures
from shortlist.data.layout import Layout
from shortlist.data.quarantine import ParquetFileWriter, QuarantineWriter
from shortlist.data.reading import read_blocks
from shortlist.data.sources import side_files
from shortlist.data.typed_rows import TypedRows, broken_rows
from shortlist.spec.data import Data, SideTable

SIDE_FOLDER = "side"
"""Folder of the side tables in a raw or valid log."""


def side_path(folder: Path, table: SideTable) -> Path:
    """Return where a side table lies in a raw or valid log."""
    return folder / SIDE_FOLDER / f"{table.name}.parquet"


def ingest_side_table(
    table: SideTable, data: Data, location: Path, path: Path, rejected: QuarantineWriter, rows_per_block: int
) -> dict[str, int]:
    """Write a side table with its declared types; rows that do not parse are rejected.

    Args:
        table: What is declared.
        data: The spec's data section, for the key's type in the log and the rule on undeclared columns.
        location: The data path given to the run.
        path: Parquet file to write.
        rejected: Takes the rejected rows.
        rows_per_block: Rows held at once.

    Returns:
        raw_rows (rejected ones included) and rejected_rows.

    Raises:
        DataError: The files are missing or unreadable, hold no rows, or are not what the spec declares.
    """
    _check_key_type(table, data)
    layout = side_layout(table, data)
    typed, rows, rejected_before = TypedRows(layout), 0, rejected.rows
    writer: ParquetFileWriter | None = None
    try:
        for file, block in read_blocks(side_files(table, location), layout, rows_per_block):
            good, bad = split_failures(*typed.take(file, block))
            good = good.drop(Columns.ROWS)
            writer = writer or ParquetFileWriter(path, good.schema)
            writer.append(good)
            rejected.append(broken_rows(file, block).vstack(bad))
            rows += block.rows
    finally:
        if writer is not None:
            writer.close()
    if not rows:
        raise DataError(f"{layout.table}: its files hold no rows")
    return {"raw_rows": rows, "rejected_rows": rejected.rows - rejected_before}


def side_layout(table: SideTable, data: Data) -> Layout:
    """Return what the spec says about the files of a side table."""
    return Layout(
        f"side table '{table.name}'",
        table.columns,
        None,
        table.header,
        table.null_values,
        data.rules.undeclared_columns,
    )


def _check_key_type(table: SideTable, data: Data) -> None:
    own = next(column for column in table.columns if column.name == table.key)
    log = data.by_name[table.key]
    if own.type != log.type or own.type not in ("integer", "string", "hex"):
        raise DataError(
            f"side table '{table.name}': its key '{table.key}' is of type {own.type} there and {log.type} in the log;"
            " wanted the same type, integer, string or hex, in both"
        )
