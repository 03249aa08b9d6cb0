"""What requests say, as columns of the prediction log; done by the log's own thread, not while somebody waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from sys import getsizeof
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shortlist.serving.export.signature import NO_CODE
from shortlist.serving.server.columns import Column
from shortlist.serving.server.tensors import Tensor

Sent = Sequence[str | None] | Column | Tensor
"""Values of one input: texts, numbers with NaN or NO_CODE for null; a tensor where every row has several."""

_PIECE: Final = 8_192
"""Values converted at once, about. An answer that is due meanwhile waits for them: Python runs one thread at a time."""


def as_column(values: Sequence[Any], field: pa.Field) -> pa.Array | pa.ChunkedArray:
    """Return a column of the log.

    Args:
        values: Of every request, its value; for a column of lists its `Sent`, None where nothing was.
        field: Of the log's schema.
    """
    if not pa.types.is_list(field.type):
        return pa.array(values, field.type)
    return pa.chunked_array([_lists(piece, field.type.value_type) for piece in _pieces(values)], field.type)


def bytes_of(values: Iterable[Any]) -> int:
    """Return the memory that the values of a row of the log take, about."""
    return sum(map(_bytes_of, values))


def _bytes_of(value: Any) -> int:
    match value:
        case None:
            return 8
        case np.ndarray():
            return 8 + value.nbytes
        case Tensor():
            return _bytes_of(value.data)
        case list() | tuple():
            return 8 * len(value) + sum(map(getsizeof, value))
        case _:
            return 8 + getsizeof(value)


def _pieces(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    start, held = 0, 0
    for stop, one in enumerate(values, start=1):
        held += len(one.data) if isinstance(one, Tensor) else len(one) if one is not None else 0
        if held >= _PIECE:
            yield values[start:stop]
            start, held = stop, 0
    yield values[start:]


def _lists(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return a list of values per request, null where there is None."""
    there = [one for one in values if one is not None]
    lengths = [0 if one is None else one.shape[0] if isinstance(one, Tensor) else len(one) for one in values]
    missing = pa.array([one is None for one in values], pa.bool_())
    return pa.ListArray.from_arrays(_offsets(np.array(lengths, np.int32)), _flat(there, kind), mask=missing)


def _flat(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return the values of all requests, one after another."""
    if pa.types.is_list(kind):
        lists = [_rows_of(one) for one in values]
        lengths = np.concatenate([np.zeros(0, np.int32), *(lengths for lengths, _ in lists)])
        return pa.ListArray.from_arrays(_offsets(lengths), _flat([each for _, each in lists], kind.value_type))
    if pa.types.is_string(kind):
        return pa.array(list(chain.from_iterable(values)), kind)
    if pa.types.is_floating(kind):
        numbers = np.concatenate([np.zeros(0, kind.to_pandas_dtype()), *values])
        # A score that is no number is a fault to be seen; an input that is none was null.
        return pa.array(numbers, kind, mask=np.isnan(numbers) if pa.types.is_float64(kind) else None)
    return _whole(np.concatenate([np.zeros(0, np.int64), *values]), kind)


def _whole(codes: NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    missing = codes == NO_CODE
    if pa.types.is_date32(kind):  # clients may send any number as a day
        missing |= np.abs(codes) > np.iinfo(np.int32).max
        return pa.array(np.where(missing, 0, codes).astype(np.int32), pa.int32(), mask=missing).view(kind)
    return pa.array(codes, pa.int64(), mask=missing).view(kind)


def _rows_of(tensor: Tensor) -> tuple[NDArray[np.int32], Any]:
    """Return how many values each row has, and the values; what pads is none."""
    if isinstance(tensor.data, list):
        there = np.array([one is not None for one in tensor.data], np.bool_)
        return _counts(there, tensor.shape), [one for one in tensor.data if one is not None]
    there = np.asarray(tensor.data != NO_CODE)
    return _counts(there, tensor.shape), tensor.data[there]


def _counts(there: NDArray[np.bool_], shape: tuple[int, ...]) -> NDArray[np.int32]:
    counts: NDArray[np.int32] = there.reshape(shape).sum(axis=1, dtype=np.int32)
    return counts


def _offsets(lengths: NDArray[np.int32]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
