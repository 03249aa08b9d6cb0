"""Ingest side tables, with one row per user or item, and compute their vector columns."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import polars as pl

from shortlist.contracts import Columns, DataError
from shortlist.data.reading.blocks import read_blocks
from shortlist.data.reading.layout import FileLayout
from shortlist.data.reading.sources import embedding_model, side_files
from shortlist.data.reading.typed_rows import TypedRows, broken_rows
from shortlist.data.rules.failures import split_failures
from shortlist.data.rules.quarantine import ParquetFileWriter, QuarantineWriter
from shortlist.data.side_tables.text_model import model_files
from shortlist.data.side_tables.text_vectors import BLOCK_ROWS, TextVectors
from shortlist.spec.data import Data, SideTable


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
        table: The declared side table.
        data: The spec's data section, for the key's type in the log and the rule on undeclared columns.
        location: Path of the files: the data path of the run, or that of a generated log.
        models: Data path of the run, with the models of computed columns.
        path: Parquet file to write.
        rejected: Writer of the rejected rows.
        rows_per_block: Rows in memory at once.

    Returns:
        raw_rows (including rejected ones) and rejected_rows.

    Raises:
        DataError: The files are missing or unreadable, hold no rows, or are not as declared in the spec; or a model
            returns no vectors.
    """
    _check_key_type(table, data)
    layout = side_layout(table, data)
    typed, rows, rejected_before = TypedRows(layout), 0, rejected.rows
    writer: ParquetFileWriter | None = None
    with ExitStack() as stack:
        computed_columns = ComputedColumns(table, models, stack)
        block_rows = computed_columns.max_rows(rows_per_block)
        for file, block in read_blocks(side_files(table, location), layout, block_rows):
            good_rows, bad_rows = split_failures(*typed.convert_block(file, block))
            good_rows = computed_columns.add_to(good_rows.drop(Columns.ROWS))
            writer = writer or stack.enter_context(ParquetFileWriter(path, good_rows.schema))
            writer.append(good_rows)
            rejected.append(broken_rows(file, block).vstack(bad_rows))
            rows += block.rows
    if not rows:
        raise DataError(f"{layout.table}: its files hold no rows")
    return {"raw_rows": rows, "rejected_rows": rejected.rows - rejected_before}


def side_layout(table: SideTable, data: Data) -> FileLayout:
    """Return the declared layout of a side table's files."""
    return FileLayout(
        f"side table '{table.name}'",
        table.file_columns,
        None,
        table.header,
        table.null_values,
        data.rules.undeclared_columns,
        delimiter=table.delimiter,
        keys=frozenset((table.key,)),
        required=frozenset((table.key,)),
    )


class ComputedColumns:
    """Columns of a side table that are in no file: vectors of texts, computed by models.

    Args:
        table: The declared side table.
        location: Data path of the run, with the models.
        stack: Exit stack that closes the models.

    Raises:
        DataError: A model is missing.
    """

    def __init__(self, table: SideTable, location: Path, stack: ExitStack) -> None:
        self._table = table
        self._computed: dict[str, tuple[str, TextVectors]] = {}
        for column in table.columns:
            if column.embedding is not None:
                vectors = TextVectors(embedding_model(column, location), column.embedding.batch_rows)
                self._computed[column.name] = column.embedding.text, stack.enter_context(vectors)

    def max_rows(self, rows_per_block: int) -> int:
        """Return the number of rows in memory at once, fewer with vectors."""
        return min(rows_per_block, BLOCK_ROWS) if self._computed else rows_per_block

    def add_to(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return rows with their computed columns.

        Raises:
            DataError: A model does not run, or returns no vectors.
        """
        keys = rows[self._table.key]
        vectors = (
            text_vectors.compute(rows[text], keys).alias(name) for name, (text, text_vectors) in self._computed.items()
        )
        return rows.with_columns(vectors)


def find_model_files(data: Data, location: Path) -> list[Path]:
    """Return the files of all models that compute columns.

    Raises:
        DataError: A file is missing.
    """
    columns = [column for table in data.side_tables for column in table.columns if column.embedding is not None]
    return [file for column in columns for file in model_files(embedding_model(column, location))]


def _check_key_type(table: SideTable, data: Data) -> None:
    key_column = next(column for column in table.columns if column.name == table.key)
    log_column = data.by_name[table.key]
    if key_column.type != log_column.type or key_column.type not in ("integer", "string", "hex"):
        raise DataError(
            f"side table '{table.name}': its key '{table.key}' is of type {key_column.type} there and"
            f" {log_column.type} in the log; wanted the same type, integer, string or hex, in both"
        )
