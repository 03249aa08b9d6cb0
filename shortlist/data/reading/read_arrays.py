"""Read Parquet files and NumPy archives block by block."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from shortlist.contracts import DataError
from shortlist.data.reading.layout import FileLayout, RowBlock
from shortlist.data.reading.sources import InputFile, StoredColumns
from shortlist.data.reading.text.text_rows import BROKEN_SCHEMA


def parquet_fields(file: InputFile) -> list[str]:
    """Return the column names of a Parquet file.

    Raises:
        DataError: The file is truncated or not Parquet.
    """
    if file.stored is not None:
        return list(file.stored.schema.names)
    with _open_parquet(file) as parquet_file:
        try:
            return list(parquet_file.schema_arrow.names)
        except pa.ArrowException as error:
            raise DataError(f"{file.name}: has columns that cannot be read ({error}). Write it again.") from None


def parquet_rows(file: InputFile) -> int:
    """Return the number of rows of a Parquet file; raises like `parquet_fields`."""
    with _open_parquet(file) as parquet_file:
        return int(parquet_file.metadata.num_rows)


def read_parquet(file: InputFile, layout: FileLayout, rows_per_block: int) -> Iterator[RowBlock]:
    """Yield the rows of a Parquet file in blocks; raises like `parquet_fields`."""
    size = file.path.stat().st_size
    rows_read = 0
    with _open_parquet(file) as parquet_file:
        try:
            own_schema = parquet_file.schema_arrow
            kinds = _readable_types(file, own_schema if file.stored is None else file.stored.schema, layout)
            columns = [name for name in layout.sources if name in own_schema.names]
            for own_batch in parquet_file.iter_batches(rows_per_block, columns=columns):
                batch = own_batch if file.stored is None else _table_batch(own_batch, file.stored, layout.sources)
                frame = pl.DataFrame(pl.from_arrow(_cast_batch(batch, kinds)))
                rows_read += frame.height
                yield _to_block(frame, rows_read, size * rows_read // parquet_file.metadata.num_rows)
        except (OSError, pa.ArrowException) as error:
            raise DataError(
                f"{file.name}: broken after {rows_read} rows ({error}). Copy or write the file again."
            ) from None


def npz_fields(file: InputFile) -> list[str]:
    """Return the names of the arrays in a NumPy archive.

    Raises:
        DataError: The archive is broken, needs pickle, or its arrays differ in their first dimension.
    """
    return list(_load_arrays(file))


def read_npz(file: InputFile, layout: FileLayout, rows_per_block: int) -> Iterator[RowBlock]:
    """Yield the rows of a NumPy archive in blocks: one per index of the first dimension, 2-D arrays as vectors.

    The whole archive is read at once, because it is compressed array by array. Raises like `npz_fields`.
    """
    arrays = {name: array for name, array in _load_arrays(file).items() if name in layout.sources}
    rows = len(next(iter(arrays.values())))
    size = file.path.stat().st_size
    for start in range(0, rows, rows_per_block):
        end = min(start + rows_per_block, rows)
        frame = pl.DataFrame({name: _array_to_series(array[start:end]) for name, array in arrays.items()})
        yield _to_block(frame, end, size * end // rows)


def _to_block(frame: pl.DataFrame, rows_before_end: int, position: int) -> RowBlock:
    numbers = pl.int_range(frame.height, eager=True)
    first = rows_before_end - frame.height + 1
    return RowBlock(frame, numbers + first, numbers, frame.height, pl.DataFrame(schema=BROKEN_SCHEMA), position)


def _readable_types(file: InputFile, schema: pa.Schema, layout: FileLayout) -> dict[str, pa.DataType]:
    """Return the type as which each column is read.

    Raises:
        DataError: Columns have types that cannot be converted to any declared type; names all of them.
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
    """Return the type as which a column is read; None when it is not supported."""
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
    is_supported = (
        pa.types.is_boolean,
        pa.types.is_date,
        pa.types.is_timestamp,
        pa.types.is_decimal128,
        pa.types.is_null,
    )
    return kind if _is_plain(kind) or any(is_kind(kind) for is_kind in is_supported) else None


def _is_plain(kind: pa.DataType) -> bool:
    texts = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return bool(texts or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _table_batch(batch: pa.RecordBatch, stored: StoredColumns, names: Sequence[str]) -> pa.RecordBatch:
    """Return a batch of a file with all columns of its table."""
    columns = [
        batch.column(name)
        if name in batch.schema.names
        else pa.repeat(stored.partition[name], batch.num_rows)
        if name in stored.partition
        else pa.nulls(batch.num_rows, stored.schema.field(name).type)
        for name in names
    ]
    return pa.RecordBatch.from_arrays(columns, list(names))


def _cast_batch(batch: pa.RecordBatch, kinds: dict[str, pa.DataType]) -> pa.RecordBatch:
    """Return a batch with its columns cast to types that Polars reads."""
    if all(batch.schema.field(name).type == kind for name, kind in kinds.items()):
        return batch
    return pa.RecordBatch.from_arrays([batch.column(name).cast(kind) for name, kind in kinds.items()], list(kinds))


def _open_parquet(file: InputFile) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file.path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{file.name}: truncated or not a Parquet file ({error}). Copy or write it again.") from None


def _load_arrays(file: InputFile) -> dict[str, npt.NDArray[np.generic]]:
    try:
        with file.path.open("rb") as raw, np.load(raw, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{file.name}: not a NumPy archive of plain arrays ({error}); write it with np.savez") from None
    unsupported = [f"'{name}' is {array.dtype}" for name, array in arrays.items() if array.dtype.kind not in "biufU"]
    if unsupported:
        raise DataError(f"{file.name}: {', '.join(unsupported)}; wanted arrays of numbers, booleans or texts")
    shapes = {name: array.shape for name, array in arrays.items()}
    has_valid_shapes = all(1 <= len(shape) <= 2 and 0 not in shape[1:] for shape in shapes.values())
    if not shapes or not has_valid_shapes or len({shape[0] for shape in shapes.values()}) != 1:
        raise DataError(f"{file.name}: wanted arrays of one or two dimensions with the same first one, got {shapes}")
    return arrays


def _array_to_series(array: npt.NDArray[np.generic]) -> pl.Series:
    if array.ndim == 1:
        return pl.Series(array)
    try:
        numbers = array.astype(np.float32)
    except ValueError as error:
        raise DataError(f"a two-dimensional array holds texts that are no numbers ({error})") from None
    return pl.Series(numbers, dtype=pl.Array(pl.Float32, array.shape[1]))
