"""Vector columns as matrices."""

from __future__ import annotations

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
    if isinstance(vectors.dtype, pl.Array):
        return vectors.dtype.size
    widths = vectors.drop_nulls().list.len().unique().sort().to_list()
    if len(widths) > 1:
        raise DataError(
            f"vector column '{vectors.name}': vectors of {widths[0]} and of {widths[-1]} numbers; wanted one length"
        )
    return int(widths[0]) if widths else 0


def matrix(vectors: pl.Series, width: int) -> Matrix:
    """Return a column's vectors, shape (rows, width); zeros where one is null.

    Raises:
        DataError: A vector has another width.
    """
    found = width_of(vectors)
    if found not in (0, width):
        raise DataError(f"vector column '{vectors.name}': {found} numbers per row; the fitted features have {width}")
    known = vectors.is_not_null().to_numpy()
    flat = vectors.drop_nulls().cast(pl.List(pl.Float32)).explode(empty_as_null=False).fill_null(0.0)
    rows = np.zeros((len(vectors), width), dtype=np.float32)
    rows[known] = flat.to_numpy().reshape(-1, width)
    return rows


def normalised(vectors_RW: Matrix) -> Matrix:  # noqa: N803 - R rows, W width
    """Return vectors of length 1; zero vectors stay zero."""
    length_R1 = np.sqrt(np.square(vectors_RW).sum(axis=1, keepdims=True))  # noqa: N806
    return cast(Matrix, vectors_RW / np.where(length_R1 > 0, length_R1, 1))


def as_series(name: str, vectors: Matrix) -> pl.Series:
    """Return a matrix as a column of type Array(Float32, width)."""
    return pl.Series(name, vectors, dtype=pl.Array(pl.Float32, vectors.shape[1]))
