"""Tensors as clients send them, before anything is known of the columns they stand for."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shortlist.serving.export.signature import NO_CODE
from shortlist.serving.online.failures import BadRequestError

INTEGERS: Final = frozenset(("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"))
FLOATS: Final = frozenset(("FP16", "FP32", "FP64"))
BYTES: Final = "BYTES"

_DTYPES: Final[dict[str, str]] = {
    "BOOL": "?", "INT8": "<i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "UINT8": "<u1", "UINT16": "<u2",
    "UINT32": "<u4", "UINT64": "<u8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """One input of a request, flat: numbers as INT64 (null: NO_CODE) or FP64 (null: NaN), texts as they are."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: NDArray[Any] | list[str | None]


def check_head(name: object, datatype: object, shape: Sequence[object]) -> tuple[str, str, tuple[int, ...]]:
    """Return name, datatype and shape of a tensor.

    Raises:
        BadRequestError: They are none.
    """
    if not isinstance(name, str) or not name:
        raise BadRequestError(f"inputs: got {name!r} as a name; wanted text")
    if datatype not in _DTYPES and datatype != BYTES:
        raise BadRequestError(
            f"input '{name}': got datatype {datatype!r}; wanted one of {', '.join([*_DTYPES, BYTES])}"
        )
    sizes = tuple(size for size in shape if isinstance(size, int) and not isinstance(size, bool) and size >= 0)
    if len(sizes) != len(shape) or not sizes:
        raise BadRequestError(f"input '{name}': got shape {list(shape)}; wanted sizes, such as [1] or [10]")
    return name, str(datatype), sizes


def from_bytes(name: str, datatype: str, shape: tuple[int, ...], raw: bytes | memoryview) -> Tensor:
    """Return a tensor in the binary form: little-endian numbers, or texts with their length before them.

    Raises:
        BadRequestError: The bytes are not of that datatype and shape.
    """
    count = math.prod(shape)
    if datatype == BYTES:
        texts = list(_texts(name, raw))
        if len(texts) != count:
            raise BadRequestError(f"input '{name}': got {len(texts)} values; its shape {list(shape)} says {count}")
        return Tensor(name, datatype, shape, texts)
    dtype = np.dtype(_DTYPES[datatype])
    if len(raw) != count * dtype.itemsize:
        raise BadRequestError(
            f"input '{name}': got {len(raw)} bytes; its shape {list(shape)} of {datatype} says {count * dtype.itemsize}"
        )
    return Tensor(name, datatype, shape, _plain(np.frombuffer(raw, dtype)))


def from_values(name: str, datatype: str, shape: tuple[int, ...], values: Sequence[Any]) -> Tensor:
    """Return a tensor whose values are Python's, nested or not, None for null.

    Raises:
        BadRequestError: The values are not of that datatype and shape.
    """
    count = math.prod(shape)
    flat = list(_flat(values)) if values and any(isinstance(value, list) for value in values) else list(values)
    if len(flat) != count:
        raise BadRequestError(f"input '{name}': got {len(flat)} values; its shape {list(shape)} says {count}")
    if datatype == BYTES:
        return Tensor(name, datatype, shape, [_text(name, value) for value in flat])
    return Tensor(name, datatype, shape, _numbers(name, datatype, flat))


def _plain(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind == "f":
        return values.astype(np.float64)
    # An identifier of 64 bits keeps its bits; see `hex` columns.
    return values.view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64)


def _numbers(name: str, datatype: str, values: list[Any]) -> NDArray[Any]:
    whole = datatype in INTEGERS
    if None in values:
        null = NO_CODE if whole else math.nan
        values = [null if value is None else value for value in values]
    kinds = set(map(type, values))
    if not kinds <= ({int, bool} if whole else {int, float, bool}):
        wrong = next(
            value for value in values if type(value) not in (int, bool, float) or (whole and type(value) is float)
        )
        raise BadRequestError(f"input '{name}': got {wrong!r} in a tensor of {datatype}; wanted a number of that type")
    try:
        if not whole:
            return np.array(values, np.float64)
        return (
            np.array(values, np.uint64).view(np.int64)
            if datatype == "UINT64" and min(values, default=0) >= 0
            else (np.array(values, np.int64))
        )
    except OverflowError:
        raise BadRequestError(f"input '{name}': a value does not fit into {datatype}") from None


def _texts(name: str, raw: bytes | memoryview) -> Iterator[str | None]:
    raw, place = bytes(raw), 0
    while place < len(raw):
        if place + 4 > len(raw):
            raise BadRequestError(f"input '{name}': its bytes end within the length of a text")
        (length,) = struct.unpack_from("<I", raw, place)
        place += 4
        if place + length > len(raw):
            raise BadRequestError(f"input '{name}': its bytes end within a text of {length} bytes")
        yield _text(name, raw[place : place + length])
        place += length


def _text(name: str, value: object) -> str | None:
    """Return a text, None for an empty one."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise BadRequestError(f"input '{name}': got bytes that are not UTF-8 text") from None
    if value is not None and not isinstance(value, str):
        raise BadRequestError(f"input '{name}': got {value!r} in a tensor of BYTES; wanted text")
    return value or None


def _flat(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list):
            yield from _flat(value)
        else:
            yield value
