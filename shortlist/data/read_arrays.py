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
        return list(opened.schema_arrow.names)


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
            for batch in opened.iter_batches(rows_per_block, columns=layout.sources):
                frame = pl.DataFrame(pl.from_arrow(batch))
                done += frame.height
                yield _block(frame, done, size * done // opened.metadata.num_rows)
        except OSError as error:
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


def _parquet(file: InputFile) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file.path)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{file.name}: truncated or not a Parquet file ({error}). Copy or write it again.") from None


def _arrays(file: InputFile) -> dict[str, npt.NDArray[np.generic]]:
    try:
        with file.path.open("rb") as raw, np.load(raw, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{file.name}: not a NumPy archive of plain arrays ({error}); write it with np.savez") from None
    shapes = {name: array.shape for name, array in arrays.items()}
    flat = all(1 <= len(shape) <= 2 for shape in shapes.values())
    if not flat or len({shape[0] for shape in shapes.values()}) != 1:
        raise DataError(f"{file.name}: wanted arrays of one or two dimensions with the same first one, got {shapes}")
    return arrays


def _column(array: npt.NDArray[np.generic]) -> pl.Series:
    if array.ndim == 1:
        return pl.Series(array)
    return pl.Series(array.astype(np.float32), dtype=pl.Array(pl.Float32, array.shape[1]))
