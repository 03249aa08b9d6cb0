"""Vector columns as matrices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shortlist.contracts import DataError

Matrix = NDArray[np.float32]


def width_of(vectors: pl.Series) -> int:
    """Return the width of the vectors in a column; 0 when there is none.

    Raises:
        DataError: They differ in width.
    """
    return common_width(vectors.name, widths_in(vectors))


def widths_in(vectors: pl.Series) -> list[int]:
    """Return the different widths of the vectors in a column, smallest first."""
    if isinstance(vectors.dtype, pl.Array):
        return [vectors.dtype.size]
    return [int(width) for width in vectors.drop_nulls().list.len().unique().sort()]


def common_width(name: str, widths: Iterable[int]) -> int:
    """Return the common width of the vectors of a column; 0 when there is none.

    Args:
        name: Name of the column.
        widths: Widths of its vectors, in any order.

    Raises:
        DataError: They differ.
    """
    distinct_widths = sorted(set(widths))
    if len(distinct_widths) > 1:
        raise DataError(
            f"vector column '{name}': vectors of {distinct_widths[0]} and of {distinct_widths[-1]} numbers; wanted one"
            " length"
        )
    return distinct_widths[0] if distinct_widths else 0


def matrix(vectors: pl.Series, width: int) -> Matrix:
    """Return a column's vectors, shape (rows, width); zeros where one is null.

    Raises:
        DataError: A vector has another width.
    """
    column_width = width_of(vectors)
    if column_width not in (0, width):
        raise DataError(
            f"vector column '{vectors.name}': {column_width} numbers per row; the fitted features have {width}"
        )
    is_known = vectors.is_not_null().to_numpy()
    flat = vectors.drop_nulls().cast(pl.List(pl.Float32)).explode(empty_as_null=False).fill_null(0.0)
    rows = np.zeros((len(vectors), width), dtype=np.float32)
    rows[is_known] = flat.to_numpy().reshape(-1, width)
    return rows


def normalised(vectors_RW: Matrix) -> Matrix:  # noqa: N803 - R rows, W width
    """Return vectors of length 1; zero vectors stay zero."""
    length_R1 = np.sqrt(np.square(vectors_RW).sum(axis=1, keepdims=True))  # noqa: N806
    return cast(Matrix, vectors_RW / np.where(length_R1 > 0, length_R1, 1))


def vector_series(name: str, vectors: Matrix) -> pl.Series:
    """Return a matrix as a column of type Array(Float32, width)."""
    return pl.Series(name, vectors, dtype=pl.Array(pl.Float32, vectors.shape[1]))
