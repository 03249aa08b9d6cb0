"""Rows of a log as records of an append-only stream, and rows of any earlier schema in the declared one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from shortlist.contracts import ShortlistError
from shortlist.serving.log.logs import RECEIVED, REQUIRED_COLUMNS

DAY: Final = "day"
"""Day (UTC) at which a row was received; the table is partitioned by it."""
STREAM: Final = "stream"
"""Id of the stream that a row was appended to."""
OFFSET: Final = "offset"
"""End of the row's record in its stream."""
LINE: Final = "line"
"""Number of the row in its record, from 0."""
PLACE_COLUMNS: Final = {DAY: pa.date32(), STREAM: pa.string(), OFFSET: pa.int64(), LINE: pa.int32()}
"""Columns of a log's table before those of its schema; stream, offset and line together name one row."""


class LogRowsError(ShortlistError):
    """Rows of a log that cannot be read, or hold a column of another type."""


def encode_rows(rows: pa.Table) -> bytes:
    """Return the record of some rows: an Arrow stream, with their schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def decode_rows(record: bytes) -> pa.Table:
    """Return the rows of a record.

    Raises:
        LogRowsError: It holds no rows.
    """
    try:
        with pa.ipc.open_stream(record) as stream:
            return stream.read_all()
    except (pa.ArrowException, OSError) as error:
        raise LogRowsError(f"got a record that is no Arrow stream ({first_line(error)})") from None


def placed_rows(rows: pa.Table, stream: str, end: int) -> pa.Table:
    """Return the rows of a record with the columns that name their place.

    Args:
        rows: Rows as they were appended.
        stream: Id of the stream.
        end: End of the record.
    """
    now = pa.scalar(datetime.now(UTC), pa.timestamp("us", "UTC"))
    received = next((rows[name] for name in (RECEIVED, "time") if name in rows.column_names), None)
    days = pa.repeat(now, rows.num_rows) if received is None else pc.fill_null(received.cast(now.type), now)
    places = {
        DAY: days.cast(pa.date32()),
        STREAM: pa.repeat(stream, rows.num_rows),
        OFFSET: pa.repeat(pa.scalar(end, pa.int64()), rows.num_rows),
        LINE: pa.array(range(rows.num_rows), pa.int32()),
    }
    return pa.table({**places, **{name: rows[name] for name in rows.column_names}})


def stored_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the types of the table that they are stored in; columns that the table lacks come last.

    Args:
        rows: Rows of one record.
        schema: Schema of the table, or of the rows before.

    Raises:
        LogRowsError: A column has another type.
    """
    columns = {}
    for field in schema:
        if field.name in rows.column_names:
            _check_type(field.name, rows.schema.field(field.name).type, field.type)
            columns[field.name] = _cast(field.name, rows[field.name], field.type)
        else:
            columns[field.name] = pa.nulls(rows.num_rows, field.type)
    columns |= {name: rows[name] for name in rows.column_names if name not in columns}
    return pa.table(columns)


def declared_rows(rows: pa.Table | pa.RecordBatch, schema: pa.Schema, columns: Sequence[str]) -> pl.DataFrame:
    """Return columns of rows that were written by any version of a spec, and of Shortlist.

    A column that was not written is null; one that is not declared any more is left out.

    Args:
        rows: The rows as they were written.
        schema: Declared schema of the log; a column of type null is returned as it was written.
        columns: Columns of the schema that are wanted.

    Raises:
        LogRowsError: A column without which rows mean nothing is missing, or a column has another type.
    """
    for name in REQUIRED_COLUMNS & set(schema.names) - set(rows.schema.names):
        raise LogRowsError(f"got no column '{name}' ({', '.join(rows.schema.names)})")
    fields = [schema.field(name) for name in columns]
    for field in fields:
        if field.name in rows.schema.names:
            _check_type(field.name, rows.schema.field(field.name).type, field.type)
    present = [field.name for field in fields if field.name in rows.schema.names]
    frame = pl.from_arrow(rows.select(present))
    assert isinstance(frame, pl.DataFrame)
    wanted = polars_schema(pa.schema(fields))
    missing = [pl.repeat(None, rows.num_rows, dtype=wanted[name], eager=True).alias(name) for name in wanted
               if name not in present]  # fmt: skip
    typed = pl.Schema({name: kind for name, kind in wanted.items() if kind != pl.Null})
    return frame.with_columns(missing).select(wanted.names()).cast(typed)


@cache
def polars_schema(schema: pa.Schema) -> pl.Schema:
    """Return a schema of Arrow as one of Polars."""
    empty = pl.from_arrow(schema.empty_table())
    assert isinstance(empty, pl.DataFrame)
    return empty.schema


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; its type where there is none."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def concat_rows(tables: Iterable[pa.Table]) -> pa.Table:
    """Return the rows of tables whose columns may differ; a column that one lacks is null there."""
    return pa.concat_tables(tables, promote_options="default")


def _cast(name: str, values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    try:
        return values.cast(kind)
    except pa.ArrowException as error:
        raise LogRowsError(f"column '{name}': {first_line(error)}") from None


def _check_type(name: str, got: pa.DataType, wanted: pa.DataType) -> None:
    if not _fits(got, wanted):
        raise LogRowsError(f"column '{name}': got {got}; wanted {wanted}")


def _fits(got: Any, wanted: Any) -> bool:
    if got == wanted or pa.types.is_null(got) or pa.types.is_null(wanted):
        return True
    if _is_list(got) and _is_list(wanted):
        return _fits(got.value_type, wanted.value_type)
    if pa.types.is_timestamp(got) and pa.types.is_timestamp(wanted):
        return got.tz is not None
    is_text = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view
    if any(check(got) for check in is_text) and any(check(wanted) for check in is_text):
        return True
    if pa.types.is_integer(wanted):
        return bool(pa.types.is_integer(got) or pa.types.is_boolean(got))
    return bool(pa.types.is_floating(wanted) and pa.types.is_floating(got))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
