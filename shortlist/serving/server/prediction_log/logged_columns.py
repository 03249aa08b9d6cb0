"""Converts the inputs of requests to columns of the prediction log, in the log's thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from sys import getsizeof
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shortlist.serving.export.signature import NO_CODE
from shortlist.serving.server.features.columns import Column
from shortlist.serving.server.requests.tensors import Tensor

SentValues = Sequence[str | None] | Column | Tensor
"""Values of one input: texts, numbers with NaN or NO_CODE for null, or a tensor with several values per row."""

_CHUNK_VALUES: Final = 8_192
"""Approximate number of values converted at once; a response waits meanwhile, as Python runs one thread at a time."""


def to_arrow_column(values: Sequence[Any], field: pa.Field) -> pa.Array | pa.ChunkedArray:
    """Return an Arrow column of the log.

    Args:
        values: Value of every request; for a column of lists its `SentValues`, None where nothing was sent.
        field: Field of the log's schema.
    """
    if not pa.types.is_list(field.type):
        return pa.array(values, field.type)
    return pa.chunked_array([_lists(chunk, field.type.value_type) for chunk in _split_chunks(values)], field.type)


def memory_bytes(values: Iterable[Any]) -> int:
    """Return the approximate memory of the values of a log row, in bytes."""
    return sum(map(_value_bytes, values))


def _value_bytes(value: Any) -> int:
    match value:
        case None:
            return 8
        case np.ndarray():
            return 8 + value.nbytes
        case Tensor():
            return _value_bytes(value.data)
        case list() | tuple():
            return 8 * len(value) + sum(map(getsizeof, value))
        case _:
            return 8 + getsizeof(value)


def _split_chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    start, count = 0, 0
    for stop, request_values in enumerate(values, start=1):
        count += (
            len(request_values.data)
            if isinstance(request_values, Tensor)
            else len(request_values)
            if request_values is not None
            else 0
        )
        if count >= _CHUNK_VALUES:
            yield values[start:stop]
            start, count = stop, 0
    yield values[start:]


def _lists(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return a list of values per request, null where there is None."""
    present = [request_values for request_values in values if request_values is not None]
    lengths = [
        0
        if request_values is None
        else request_values.shape[0]
        if isinstance(request_values, Tensor)
        else len(request_values)
        for request_values in values
    ]
    missing = pa.array([request_values is None for request_values in values], pa.bool_())
    return pa.ListArray.from_arrays(_offsets(np.array(lengths, np.int32)), _flatten(present, kind), mask=missing)


def _flatten(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return the values of all requests, one after another."""
    if pa.types.is_list(kind):
        lists = [_present_values(tensor) for tensor in values]
        lengths = np.concatenate([np.zeros(0, np.int32), *(lengths for lengths, _ in lists)])
        return pa.ListArray.from_arrays(
            _offsets(lengths), _flatten([row_values for _, row_values in lists], kind.value_type)
        )
    if pa.types.is_string(kind):
        return pa.array(list(chain.from_iterable(values)), kind)
    if pa.types.is_floating(kind):
        numbers = np.concatenate([np.zeros(0, kind.to_pandas_dtype()), *values])
        # A score that is NaN is a fault to keep visible; an input that is NaN was null.
        return pa.array(numbers, kind, mask=np.isnan(numbers) if pa.types.is_float64(kind) else None)
    return _integers(np.concatenate([np.zeros(0, np.int64), *values]), kind)


def _integers(codes: NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    missing = codes == NO_CODE
    if pa.types.is_date32(kind):  # clients may send any integer as a day
        missing |= np.abs(codes) > np.iinfo(np.int32).max
        return pa.array(np.where(missing, 0, codes).astype(np.int32), pa.int32(), mask=missing).view(kind)
    return pa.array(codes, pa.int64(), mask=missing).view(kind)


def _present_values(tensor: Tensor) -> tuple[NDArray[np.int32], Any]:
    """Return the number of values per row, and the values, without padding."""
    if isinstance(tensor.data, list):
        is_present = np.array([text is not None for text in tensor.data], np.bool_)
        return _counts(is_present, tensor.shape), [text for text in tensor.data if text is not None]
    is_present = np.asarray(tensor.data != NO_CODE)
    return _counts(is_present, tensor.shape), tensor.data[is_present]


def _counts(is_present: NDArray[np.bool_], shape: tuple[int, ...]) -> NDArray[np.int32]:
    counts: NDArray[np.int32] = is_present.reshape(shape).sum(axis=1, dtype=np.int32)
    return counts


def _offsets(lengths: NDArray[np.int32]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
