"""Encodes looked-up rows as the tensors of a signature; the reference for the server's faster encoder."""

from __future__ import annotations

from typing import cast

import numpy as np
import polars as pl

from shortlist.contracts import Columns
from shortlist.features.values.columns import DeclaredColumns
from shortlist.features.values.hashing import codes_of
from shortlist.features.values.vectors import matrix
from shortlist.serving.export.signature import (
    CODES,
    NO_CODE,
    NULL_IN_LIST,
    NUMBERS,
    SECOND_OF_DAY,
    WEEKDAY,
    ListInput,
    Signature,
)


def encode(rows: pl.DataFrame, signature: Signature, declared: DeclaredColumns) -> dict[str, np.ndarray]:
    """Return the tensors that an exported model reads, by name.

    Args:
        rows: Rows from `Transformer.look_up`.
        signature: Signature of the model.
        declared: The declared columns, with the log's timezone.

    Raises:
        DataError: A vector is not as wide as the model's.
    """
    tensors: dict[str, np.ndarray] = {}
    if signature.numbers:
        clock = _clock(rows, declared.timezone)
        numbers = [clock[place] if place in clock else _numbers(rows[place]) for place in signature.numbers]
        tensors[NUMBERS] = np.column_stack(numbers)
    if signature.codes:
        tensors[CODES] = np.column_stack([_codes(rows[place]) for place in signature.codes])
    for tags in signature.lists:
        tensors[tags.tensor] = _list(rows[tags.place], tags)
    for vector in signature.vectors:
        tensors[vector.tensor] = matrix(rows[vector.place], vector.width)
    return tensors


def pad_lists(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return lists as one INT64 matrix, at least one column wide, padded with NO_CODE.

    >>> pad_lists(np.array([7, 8, 9]), np.array([1, 0, 2])).tolist() == [[7, NO_CODE], [NO_CODE, NO_CODE], [8, 9]]
    True

    Args:
        values: The codes of all rows, one row after another.
        lengths: Number of codes per row.
    """
    columns = np.arange(max(1, int(lengths.max(initial=0))))
    matrix_RL = np.full((len(lengths), len(columns)), NO_CODE)  # noqa: N806 - R rows, L longest
    matrix_RL[columns < lengths[:, None]] = values
    return matrix_RL


def _clock(rows: pl.DataFrame, timezone: str) -> dict[str, np.ndarray]:
    local = pl.col(Columns.TIME).dt.convert_time_zone(timezone).dt
    second = local.hour().cast(pl.Float64) * 3600 + local.minute() * 60.0 + local.second() + local.microsecond() / 1e6
    clock = rows.select(second.alias(SECOND_OF_DAY), (local.weekday() - 1).cast(pl.Float64).alias(WEEKDAY))
    return {name: clock[name].to_numpy() for name in clock.columns}


def _numbers(values: pl.Series) -> np.ndarray:
    if values.dtype.is_temporal():
        values = values.cast(pl.Int32 if values.dtype == pl.Date else pl.Int64)
    return values.cast(pl.Float64).fill_null(float("nan")).to_numpy()


def _codes(values: pl.Series) -> np.ndarray:
    return codes_of(values).fill_null(NO_CODE).to_numpy()


def _list(lists: pl.Series, tags: ListInput) -> np.ndarray:
    if tags.longest is not None:
        lists = lists.list.head(tags.longest)
    values = codes_of(lists.explode(empty_as_null=False, keep_nulls=False)).fill_null(NULL_IN_LIST)
    lengths = cast(np.ndarray, lists.list.len().fill_null(0).to_numpy())
    return pad_lists(values.to_numpy(), lengths)
