"""Converts columns of a log to inputs of a request, in forms that need no parsing."""

from __future__ import annotations

import numpy as np
import polars as pl

from shortlist.contracts import Columns
from shortlist.serving.export.signature import NO_CODE
from shortlist.serving.traffic.requests import Array
from shortlist.spec.data import Column, Data

_TIME = Column(name="moment", type="integer")


def sent_columns(data: Data) -> dict[str, Column]:
    """Return the columns of a valid log that a request may contain: those known before the impression.

    Outcomes, the label, the impression id and the id of the logged request are never sent.
    """
    request_columns = {column.name: column for column in data.columns if column.known == "before"}
    for name in data.names_of_rows:
        request_columns.pop(name or "", None)
    return {Columns.TIME: _TIME, **request_columns}


def as_array(values: pl.Series, declared: Column) -> Array:
    """Return a column as an input of shape (rows,), or (rows, values) for tags and vectors.

    Times are microseconds since 1970-01-01 UTC, dates days since then. Nulls and the padding of tags are NaN in
    numbers, NO_CODE in integers, and "" in texts.

    Args:
        values: The column.
        declared: Its declaration.
    """
    match declared.type:
        case "number":
            return values.cast(pl.Float64).fill_null(np.nan).to_numpy()
        case "vector":
            return np.ascontiguousarray(values.to_numpy(), np.float32)
        case "string":
            return _texts(values)
        case "tags":
            return _matrix(values)
        case _:
            if values.dtype == pl.Date:
                values = values.cast(pl.Int32)
            return values.cast(pl.Int64).fill_null(NO_CODE).to_numpy()


def _texts(values: pl.Series) -> Array:
    return np.array(values.fill_null("").to_list(), dtype=object)


def _matrix(lists: pl.Series) -> Array:
    lengths = lists.list.len().fill_null(0).to_numpy()
    flat = lists.explode(empty_as_null=False, keep_nulls=False)
    values = _texts(flat) if flat.dtype == pl.String else flat.cast(pl.Int64).fill_null(NO_CODE).to_numpy()
    matrix = np.full((lists.len(), max(1, int(lengths.max(initial=0)))), NO_CODE, values.dtype)
    if values.dtype == object:
        matrix[:] = ""
    matrix[np.arange(matrix.shape[1]) < lengths[:, None]] = values
    return matrix
