"""Features of a frame as contiguous arrays of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from shortlist.contracts import DataError
from shortlist.ranking.inputs import TableFeature

_BLOCK_ROWS = 8_192


def check_columns(frame: pl.DataFrame, features: Sequence[TableFeature]) -> None:
    """Refuse a frame that lacks a feature.

    Raises:
        DataError: Names the missing features.
    """
    missing = [feature.name for feature in features if feature.name not in frame.columns]
    if missing:
        raise DataError(f"{len(missing)} of {len(features)} features are missing from the rows: {', '.join(missing)}")


def float_names(features: Sequence[TableFeature]) -> list[str]:
    """Return a name per column of `float_matrix`: a vector gives one per component.

    >>> float_names([TableFeature(name="age", kind="dense"), TableFeature(name="text", kind="vector", width=2)])
    ['age', 'text.0', 'text.1']
    """
    return [
        name
        for feature in features
        for name in ([feature.name] if feature.width is None else [f"{feature.name}.{i}" for i in range(feature.width)])
    ]


def float_matrix(frame: pl.DataFrame, features: Sequence[TableFeature], into: np.ndarray | None = None) -> np.ndarray:
    """Return features as one row-major matrix; ids go in as numbers, vectors as one column per component.

    The unknown id, 0, is NaN like null: where it goes is no matter of its distance to other ids.

    Args:
        frame: Rows of a feature table.
        features: Features of kind dense, id or vector.
        into: The matrix to fill and return; a new one by default.

    Returns:
        Shape (rows, floats), float32; null is NaN.

    Raises:
        DataError: A value is infinite.
    """
    columns = [_floats(frame, feature) for feature in features]
    for feature, column in zip(features, columns, strict=True):
        infinite = np.isinf(column)
        if infinite.any():
            raise infinite_values_error(float_names([feature])[int(np.argmax(infinite.any(axis=0)))])
    width = sum(feature.width or 1 for feature in features)
    matrix = np.empty((frame.height, width), np.float32) if into is None else into
    return _fill_row_major(columns, [0] * len(columns), matrix)


def float_columns(frame: pl.DataFrame, features: Sequence[TableFeature]) -> pa.Table | None:
    """Return features as Arrow columns, null where they are unknown; None where one is a vector.

    Numbers share the frame's memory.

    Raises:
        DataError: A value is infinite.
    """
    if any(feature.width is not None for feature in features):
        return None
    for column in (frame[feature.name] for feature in features):
        if column.dtype.is_float() and column.is_infinite().any():
            raise infinite_values_error(column.name)
    return frame.select(number_of(feature) for feature in features).to_arrow()


def number_of(feature: TableFeature) -> pl.Expr:
    """Return a feature without a width as a number: null where it is unknown."""
    value = pl.col(feature.name)
    return pl.when(value != 0).then(value).alias(feature.name) if feature.kind == "id" else value


def fused_rows(
    frame: pl.DataFrame,
    features: Sequence[TableFeature],
    offsets: Sequence[int],
    into: np.ndarray | None = None,
) -> np.ndarray:
    """Return the ids of several features, each plus its offset in a fused table.

    Args:
        frame: Rows of a feature table.
        features: Features of kind id.
        offsets: First row of each one's table in the fused one.
        into: The matrix to fill and return; a new one by default.

    Returns:
        Shape (rows, features), int32, row-major.

    Raises:
        DataError: An id is null or outside its feature's table.
    """
    for feature in features:
        _check_ids(frame[feature.name], feature)
    ids = [frame[feature.name].to_numpy()[:, None] for feature in features]
    return _fill_row_major(ids, offsets, np.empty((frame.height, len(features)), np.int32) if into is None else into)


def fused_lists(frame: pl.DataFrame, feature: TableFeature, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of a multi-valued feature; a null list counts as an empty one.

    Returns:
        All ids plus the offset, int32, row after row; and where each row's ids begin, int64, shape (rows + 1,).

    Raises:
        DataError: An id is null or outside the feature's table.
    """
    lists = frame[feature.name]
    values = lists.explode(empty_as_null=False, keep_nulls=False)
    _check_ids(values, feature)
    lengths = lists.list.len().fill_null(0).to_numpy()
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    return (values.cast(pl.Int32) + offset).to_numpy(writable=True), starts


def infinite_values_error(name: str) -> DataError:
    """Return the error for a feature with infinite values."""
    return DataError(f"feature '{name}' holds infinite values; clip or fill the column it comes from")


def null_ids_error(feature: TableFeature, count: int) -> DataError:
    """Return the error for a feature with null ids."""
    return DataError(f"feature '{feature.name}' holds {count} null ids; unknown values have the id 0")


def unknown_id_error(feature: TableFeature, largest: int) -> DataError:
    """Return the error for an id outside its feature's table."""
    return DataError(
        f"feature '{feature.name}' holds the id {largest}; the model knows ids below {feature.size}."
        " The features grew after it was trained: train again."
    )


def vector_type_error(feature: TableFeature, dtype: object) -> DataError:
    """Return the error for a vector of another width or type."""
    return DataError(f"feature '{feature.name}' is of type {dtype}; wanted Array(Float32, {feature.width})")


def _floats(frame: pl.DataFrame, feature: TableFeature) -> np.ndarray:
    """Return a feature's floats, shape (rows, width); null is NaN."""
    column = frame[feature.name]
    if feature.width is None:
        # Polars turns null into NaN ten times as fast as `to_numpy` does.
        numbers = frame.select(number_of(feature).cast(pl.Float32).fill_null(float("nan"))).to_series()
        return numbers.to_numpy()[:, None]
    if column.dtype != pl.Array(pl.Float32, feature.width):
        raise vector_type_error(feature, column.dtype)
    return column.to_numpy()


def _fill_row_major(columns: Sequence[np.ndarray], offsets: Sequence[int], matrix: np.ndarray) -> np.ndarray:
    """Fill a row-major matrix from columns of shape (rows, width), each plus its offset; return it.

    Some thousand rows at a time, so that a block stays in the cache while all columns are written. That is three times
    as fast as column after column, or as Polars' own `to_numpy` (26 columns x 1 M rows: 33 ms, not 97).
    """
    for first in range(0, len(matrix), _BLOCK_ROWS):
        block = matrix[first : first + _BLOCK_ROWS]
        first_column = 0
        for column, offset in zip(columns, offsets, strict=True):
            column_block = column[first : first + _BLOCK_ROWS]
            width = column_block.shape[1]
            np.add(
                column_block,
                offset,
                out=block[:, first_column : first_column + width],
                casting="unsafe",
                dtype=matrix.dtype,
            )
            first_column += width
    return matrix


def _check_ids(ids: pl.Series, feature: TableFeature) -> None:
    if ids.null_count():
        raise null_ids_error(feature, ids.null_count())
    largest = ids.max()
    if isinstance(largest, int) and largest >= (feature.size or 0):
        raise unknown_id_error(feature, largest)
