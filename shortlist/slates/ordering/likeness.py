"""Likeness of two candidates, between 0 and 1, by a column."""

from __future__ import annotations

import numpy as np
import polars as pl

from shortlist.slates.ordering.base import Likeness, value_codes


def likeness_by(column: pl.Series) -> Likeness:
    """Return the likeness measure for a column's type; all are positive semidefinite, as DPPs require.

    Args:
        column: A vector (`pl.Array`): `(1 + cosine) / 2`. A list of tags: common tags as a share of all tags of both
            (Jaccard). Anything else: 1 for equal values.
    """
    if isinstance(column.dtype, pl.List) and column.dtype.inner.is_float():
        if (vectors := _as_matrix(column)) is not None:
            return _Cosine(vectors, np.ones(len(column), np.bool_))
        width = column.list.len().max()
        if isinstance(width, int) and width:
            return _cosine(column.list.to_array(width))
        return _Equality(pl.Series([None] * len(column), dtype=pl.Int8()))  # there is no vector
    if isinstance(column.dtype, pl.Array):
        return _cosine(column)
    if isinstance(column.dtype, pl.List):
        return _Jaccard(column)
    return _Equality(column)


def intra_list_diversity(column: pl.Series) -> float:
    """Return the mean of 1 - likeness over the pairs of a list's items; NaN for fewer than two.

    Args:
        column: A value per item of the list; see `likeness_by`.

    >>> intra_list_diversity(pl.Series(["x", "x", "y"]))
    0.6666666666666667
    """
    count = len(column)
    if count < 2:
        return float("nan")
    likeness = likeness_by(column)
    total_likeness = sum(float(likeness.similarities(row).sum()) - 1.0 for row in range(count))
    return 1.0 - total_likeness / (count * (count - 1))


def _as_matrix(column: pl.Series) -> np.ndarray | None:
    """Return lists of equal length without nulls as a matrix; None for others. Polars' conversion waits for threads."""
    if not len(column) or column.null_count():
        return None
    lists = column.to_arrow()
    lengths, values = np.diff(lists.offsets.to_numpy()), lists.flatten()
    if values.null_count or not lengths[0] or (lengths != lengths[0]).any():
        return None
    vectors: np.ndarray = values.to_numpy().reshape(len(column), lengths[0]).astype(np.float32, copy=False)
    return vectors


def _cosine(column: pl.Series) -> _Cosine:
    assert isinstance(column.dtype, pl.Array)
    has_vector = column.is_not_null().to_numpy()
    vectors = np.zeros((len(column), column.dtype.size), np.float32)
    vectors[has_vector] = column.drop_nulls().to_numpy()
    return _Cosine(vectors, has_vector)


class _Cosine:
    def __init__(self, vectors: np.ndarray, has_vector: np.ndarray) -> None:
        lengths = np.linalg.norm(vectors, axis=1)
        self._is_unknown = ~(has_vector & np.isfinite(lengths) & (lengths > 0))
        lengths[self._is_unknown] = 1.0
        self._unit = vectors / lengths[:, None]
        self._unit[self._is_unknown] = 0.0

    def similarities(self, row: int) -> np.ndarray:
        if self._is_unknown[row]:
            alike = np.zeros(len(self._unit))
        else:
            alike = (1.0 + self._unit @ self._unit[row]).astype(np.float64) / 2.0
            alike[self._is_unknown] = 0.0
        alike[row] = 1.0
        return alike.clip(0.0, 1.0, out=alike)


class _Jaccard:
    def __init__(self, column: pl.Series) -> None:
        # By a dictionary, as `value_codes` does; a code of its own for null, which is no tag.
        code_by_tag: dict[object, int] = {None: 0}
        tags = column.to_list()
        codes = [code_by_tag.setdefault(tag, len(code_by_tag)) for row_tags in tags for tag in row_tags or ()]
        rows = np.repeat(np.arange(len(tags)), [len(row_tags or ()) for row_tags in tags])
        has_code = np.zeros((len(code_by_tag), len(tags)), np.bool_)
        has_code[codes, rows] = True
        self._has_tag = has_code[1:]  # shape (tags, candidates)
        self._sizes = self._has_tag.sum(axis=0)

    def similarities(self, row: int) -> np.ndarray:
        # Counted, not multiplied: on a busy machine BLAS reported an invalid value in one of some 10 000 products.
        common = self._has_tag[self._has_tag[:, row]].sum(axis=0, dtype=np.float64)
        alike: np.ndarray = common / np.maximum(self._sizes + self._sizes[row] - common, 1.0)
        alike[row] = 1.0
        return alike


class _Equality:
    def __init__(self, column: pl.Series) -> None:
        self._codes = value_codes(column)

    def similarities(self, row: int) -> np.ndarray:
        alike: np.ndarray = ((self._codes == self._codes[row]) & (self._codes > 0)).astype(np.float64)
        alike[row] = 1.0
        return alike
