"""Parquet files and NumPy archives, block by block."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from shortlist.contracts import DataError
from shortlist.data.layout import Block, Layout
from shortlist.data.rows import BROKEN_SCHEMA
from shortlist.data.sources import InputFile


def parquet_fields(file: InputFile) -> list[str]:
    """Return the column names of a Parquet file.

    Raises:
        DataError: It is truncated or not Parquet.
    """
    with _parquet(file) as opened:
        try:
            return list(opened.schema_arrow.names)
        except pa.ArrowException as error:
            raise DataError(f"{file.name}: has columns that cannot be read ({error}). Write it again.") from None


def parquet_rows(file: InputFile) -> int:
    """Return the number of rows of a Parquet file; raises as `parquet_fields` does."""
    with _parquet(file) as opened:
        return int(opened.metadata.num_rows)


def read_parquet(file: InputFile, layout: Layout, rows_per_block: int) -> Iterator[Block]:
    """Give the rows of a Parquet file; raises as `parquet_fields` does."""
    size = file.path.stat().st_size
    done = 0
    with _parquet(file) as opened:
        try:
            kinds = _readable_types(file, opened.schema_arrow, layout)
            for batch in opened.iter_batches(rows_per_block, columns=layout.sources):
                frame = pl.DataFrame(pl.from_arrow(_decoded(batch, kinds)))
                done += frame.height
                yield _block(frame, done, size * done // opened.metadata.num_rows)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{file.name}: broken after {done} rows ({error}). Copy or write the file again.") from None


def npz_fields(file: InputFile) -> list[str]:
    """Return the names of the arrays in a NumPy archive.

    Raises:
        DataError: It is broken, needs pickle, or its arrays differ in their first dimension.
    """
    return list(_arrays(file))


def read_npz(file: InputFile, layout: Layout, rows_per_block: int) -> Iterator[Block]:
    """Give the rows of a NumPy archive: one per index of the first dimension, two-dimensional arrays as vectors.

    An archive is read whole (it is compressed array by array). Raises as `npz_fields` does.
    """
    arrays = {name: array for name, array in _arrays(file).items() if name in layout.sources}
    rows = len(next(iter(arrays.values())))
    size = file.path.stat().st_size
    for start in range(0, rows, rows_per_block):
        end = min(start + rows_per_block, rows)
        frame = pl.DataFrame({name: _column(array[start:end]) for name, array in arrays.items()})
        yield _block(frame, end, size * end // rows)


def _block(frame: pl.DataFrame, rows_before_end: int, position: int) -> Block:
    numbers = pl.int_range(frame.height, eager=True)
    first = rows_before_end - frame.height + 1
    return Block(frame, numbers + first, numbers, frame.height, pl.DataFrame(schema=BROKEN_SCHEMA), position)


def _readable_types(file: InputFile, schema: pa.Schema, layout: Layout) -> dict[str, pa.DataType]:
    """Return the type that each column is read as.

    Raises:
        DataError: A column has a type that no declared type can be made of; names all of them.
    """
    types = {name: _readable_type(schema.field(name).type) for name in layout.sources}
    refused = [f"'{name}' is {schema.field(name).type}" for name, kind in types.items() if kind is None]
    if refused:
        raise DataError(
            f"{file.name}: column {', '.join(refused)}; wanted numbers, texts, booleans, dates, times with a date, or"
            " lists of numbers or texts. Write the columns as one of those, or leave them out of the spec."
        )
    return {name: kind for name, kind in types.items() if kind is not None}


def _readable_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type a column is read as; None when there is none."""
    if pa.types.is_dictionary(kind):
        return _readable_type(kind.value_type) if not pa.types.is_nested(kind.value_type) else None
    if pa.types.is_timestamp(kind) and kind.tz is not None and kind.tz[:1] in "+-":  # Polars knows names alone
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_fixed_size_list(kind) and kind.list_size and _is_plain(kind.value_type):
        return kind
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = kind.value_type
        if pa.types.is_null(inner):
            return pa.list_(pa.string())  # every list is empty
        return kind if _is_plain(inner) else None
    others = (pa.types.is_boolean, pa.types.is_date, pa.types.is_timestamp, pa.types.is_decimal128, pa.types.is_null)
    return kind if _is_plain(kind) or any(is_kind(kind) for is_kind in others) else None


def _is_plain(kind: pa.DataType) -> bool:
    texts = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return bool(texts or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _decoded(batch: pa.RecordBatch, kinds: dict[str, pa.DataType]) -> pa.RecordBatch:
    """Return a batch whose columns have types that Polars reads."""
    if all(batch.schema.field(name).type == kind for name, kind in kinds.items()):
        return batch
    return pa.RecordBatch.from_arrays([batch.column(name).cast(kind) for name, kind in kinds.items()], list(kinds))


def _parquet(file: InputFile) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file.path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{file.name}: truncated or not a Parquet file ({error}). Copy or write it again.") from None


def _arrays(file: InputFile) -> dict[str, npt.NDArray[np.generic]]:
    try:
        with file.path.open("rb") as raw, np.load(raw, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{file.name}: not a NumPy archive of plain arrays ({error}); write it with np.savez") from None
    other = [f"'{name}' is {array.dtype}" for name, array in arrays.items() if array.dtype.kind not in "biufU"]
    if other:
        raise DataError(f"{file.name}: {', '.join(other)}; wanted arrays of numbers, booleans or texts")
    shapes = {name: array.shape for name, array in arrays.items()}
    flat = all(1 <= len(shape) <= 2 and 0 not in shape[1:] for shape in shapes.values())
    if not shapes or not flat or len({shape[0] for shape in shapes.values()}) != 1:
        raise DataError(f"{file.name}: wanted arrays of one or two dimensions with the same first one, got {shapes}")
    return arrays


def _column(array: npt.NDArray[np.generic]) -> pl.Series:
    if array.ndim == 1:
        return pl.Series(array)
    try:
        numbers = array.astype(np.float32)
    except ValueError as error:
        raise DataError(f"a two-dimensional array holds texts that are no numbers ({error})") from None
    return pl.Series(numbers, dtype=pl.Array(pl.Float32, array.shape[1]))
