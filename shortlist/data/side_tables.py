"""Side tables, one row per user or item, brought to their declared types."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import polars as pl

from shortlist.contracts import Columns, DataError
from shortlist.data.failures import split_failures
from shortlist.data.layout import Layout
from shortlist.data.quarantine import ParquetFileWriter, QuarantineWriter
from shortlist.data.reading import read_blocks
from shortlist.data.sources import embedding_model, side_files
from shortlist.data.text_model import model_files
from shortlist.data.text_vectors import BLOCK_ROWS, TextVectors
from shortlist.data.typed_rows import TypedRows, broken_rows
from shortlist.spec.data import Data, SideTable

SIDE_FOLDER = "side"
"""Folder of the side tables in a raw or valid log."""


def side_path(folder: Path, table: SideTable) -> Path:
    """Return where a side table lies in a raw or valid log."""
    return folder / SIDE_FOLDER / f"{table.name}.parquet"


def ingest_side_table(
    table: SideTable,
    data: Data,
    location: Path,
    models: Path,
    path: Path,
    rejected: QuarantineWriter,
    rows_per_block: int,
) -> dict[str, int]:
    """Write a side table with its declared types and computed columns; rows that do not parse are rejected.

    Args:
        table: What is declared.
        data: The spec's data section, for the key's type in the log and the rule on undeclared columns.
        location: Of the files: the data path given to the run, or that of a generated log.
        models: The data path given to the run, where models of computed columns lie.
        path: Parquet file to write.
        rejected: Takes the rejected rows.
        rows_per_block: Rows held at once.

    Returns:
        raw_rows (rejected ones included) and rejected_rows.

    Raises:
        DataError: The files are missing or unreadable, hold no rows, or are not what the spec declares; or a model
            gives no vectors.
    """
    _check_key_type(table, data)
    layout = side_layout(table, data)
    typed, rows, rejected_before = TypedRows(layout), 0, rejected.rows
    writer: ParquetFileWriter | None = None
    with ExitStack() as stack:
        computed = ComputedColumns(table, models, stack)
        block_rows = computed.most_rows(rows_per_block)
        for file, block in read_blocks(side_files(table, location), layout, block_rows):
            good, bad = split_failures(*typed.take(file, block))
            good = computed.added(good.drop(Columns.ROWS))
            writer = writer or stack.enter_context(ParquetFileWriter(path, good.schema))
            writer.append(good)
            rejected.append(broken_rows(file, block).vstack(bad))
            rows += block.rows
    if not rows:
        raise DataError(f"{layout.table}: its files hold no rows")
    return {"raw_rows": rows, "rejected_rows": rejected.rows - rejected_before}


def side_layout(table: SideTable, data: Data) -> Layout:
    """Return what the spec says about the files of a side table."""
    return Layout(
        f"side table '{table.name}'",
        table.file_columns,
        None,
        table.header,
        table.null_values,
        data.rules.undeclared_columns,
    )


class ComputedColumns:
    """The columns of a side table that are in no file: vectors of texts.

    Args:
        table: What is declared.
        location: The data path given to the run; the models lie there.
        stack: Closes what is opened.

    Raises:
        DataError: A model is not there.
    """

    def __init__(self, table: SideTable, location: Path, stack: ExitStack) -> None:
        self._table = table
        self._computed: dict[str, tuple[str, TextVectors]] = {}
        for column in table.columns:
            if column.embedding is not None:
                vectors = TextVectors(embedding_model(column, location), column.embedding.batch_rows)
                self._computed[column.name] = column.embedding.text, stack.enter_context(vectors)

    def most_rows(self, rows_per_block: int) -> int:
        """Return how many rows are held at once; vectors are wide."""
        return min(rows_per_block, BLOCK_ROWS) if self._computed else rows_per_block

    def added(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return rows with their computed columns.

        Raises:
            DataError: A model does not run, or gives no vectors.
        """
        keys = rows[self._table.key]
        vectors = (of.of(rows[text], keys).alias(name) for name, (text, of) in self._computed.items())
        return rows.with_columns(vectors)


def models_of(data: Data, location: Path) -> list[Path]:
    """Return the files of all models that compute columns.

    Raises:
        DataError: One is not there.
    """
    columns = [column for table in data.side_tables for column in table.columns if column.embedding is not None]
    return [file for column in columns for file in model_files(embedding_model(column, location))]


def _check_key_type(table: SideTable, data: Data) -> None:
    own = next(column for column in table.columns if column.name == table.key)
    log = data.by_name[table.key]
    if own.type != log.type or own.type not in ("integer", "string", "hex"):
        raise DataError(
            f"side table '{table.name}': its key '{table.key}' is of type {own.type} there and {log.type} in the log;"
            " wanted the same type, integer, string or hex, in both"
        )
