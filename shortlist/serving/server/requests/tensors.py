"""Tensors as clients send them, before they are matched with the declared columns."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shortlist.contracts import did_you_mean
from shortlist.serving.export.signature import NO_CODE
from shortlist.serving.server.requests.request_errors import BadRequestError, shorten

Datatype = Literal[
    "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP16", "FP32", "FP64", "BYTES"
]

INTEGERS: Final = frozenset(("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"))
FLOATS: Final = frozenset(("FP16", "FP32", "FP64"))
BYTES: Final = "BYTES"

_DTYPES: Final[dict[str, str]] = {
    "BOOL": "?", "INT8": "<i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "UINT8": "<u1", "UINT16": "<u2",
    "UINT32": "<u4", "UINT64": "<u8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """One input tensor of a request, flat: numbers as INT64 (null: NO_CODE) or FP64 (null: NaN), texts as sent."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: NDArray[Any] | list[str | None]


class ProtocolMessage(BaseModel):
    """A part of a request with strictly typed fields; unknown fields are ignored, as the protocol demands."""

    model_config = ConfigDict(strict=True, frozen=True)


class TensorHead(ProtocolMessage):
    """Name, datatype and shape of a tensor."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    datatype: Datatype
    shape: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1, max_length=8, fail_fast=True)]


Part = TypeVar("Part", bound=ProtocolMessage)


def validate_message(kind: type[Part], received: object, location: str = "") -> Part:
    """Return the validated part of a request.

    Args:
        kind: Class of the part.
        received: Value that the client sent.
        location: Path of the part in the request; empty for the whole request.

    Raises:
        BadRequestError: The first thing that is wrong.
    """
    try:
        return kind.model_validate(received)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        # A misspelt key first: what else is wrong may follow from it.
        first = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
        path = ".".join(part for part in (location, *map(str, first["loc"])) if part) or "the body"
        if first["type"] == "missing":
            raise BadRequestError(f"{path}: is missing") from None
        if first["type"] == "extra_forbidden":
            suggestion = did_you_mean(str(first["loc"][-1]), kind.model_fields)
            keys = ", ".join(kind.model_fields)
            raise BadRequestError(f"{path}: unknown key{suggestion}; wanted {keys}") from None
        raise BadRequestError(f"{path}: got {shorten(first['input'])}; {_expectation(first)}") from None


def _expectation(error: Mapping[str, Any]) -> str:
    message = error["msg"]
    if error["type"] == "model_type":
        return "wanted an object"
    expected = message.removeprefix("Input should be ")
    return f"wanted {expected}" if expected != message else message[0].lower() + message[1:]


def from_bytes(head: TensorHead, raw: bytes | memoryview) -> Tensor:
    """Return a tensor from its binary form: little-endian numbers, or texts preceded by their lengths.

    Raises:
        BadRequestError: The bytes do not match datatype and shape.
    """
    count = math.prod(head.shape)
    if head.datatype == BYTES:
        texts = list(_texts(head.name, raw))
        if len(texts) != count:
            raise _count_error(head, len(texts))
        return _tensor(head, texts)
    dtype = np.dtype(_DTYPES[head.datatype])
    if len(raw) != count * dtype.itemsize:
        raise BadRequestError(
            f"input '{head.name}': got {len(raw)} bytes; its shape {head.shape} of {head.datatype} says"
            f" {count * dtype.itemsize}"
        )
    return _tensor(head, _to_wide_numbers(np.frombuffer(raw, dtype)))


def from_values(head: TensorHead, values: Sequence[Any]) -> Tensor:
    """Return a tensor from Python values, flat or nested as its shape says, None for null.

    Raises:
        BadRequestError: The values do not match datatype and shape.
    """
    flat: Sequence[Any] = values
    for _ in head.shape[1:]:  # deeper than the shape says, a list is a wrong value
        if not any(isinstance(value, list) for value in flat):
            break
        if not all(isinstance(value, list) for value in flat):
            raise BadRequestError(f"input '{head.name}': got lists among values; wanted either, as its shape says")
        flat = list(chain.from_iterable(flat))
    if len(flat) != math.prod(head.shape):
        raise _count_error(head, len(flat))
    if head.datatype == BYTES:
        return _tensor(head, [_text(head.name, value) for value in flat])
    return _tensor(head, _numbers(head.name, head.datatype, flat))


def _tensor(head: TensorHead, data: NDArray[Any] | list[str | None]) -> Tensor:
    return Tensor(head.name, head.datatype, tuple(head.shape), data)


def _count_error(head: TensorHead, count: int) -> BadRequestError:
    return BadRequestError(
        f"input '{head.name}': got {count} values; its shape {head.shape} says {math.prod(head.shape)}"
    )


def _to_wide_numbers(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind == "f":
        return values.astype(np.float64)
    # 64-bit identifiers keep their bits; see `hex` columns.
    return values.view(np.int64).copy() if values.dtype == np.uint64 else values.astype(np.int64)


def _numbers(name: str, datatype: str, values: Sequence[Any]) -> NDArray[Any]:
    is_integer = datatype in INTEGERS
    if None in values:
        null = NO_CODE if is_integer else math.nan
        values = [null if value is None else value for value in values]
    value_types = set(map(type, values))
    if not value_types <= ({int, bool} if is_integer else {int, float, bool}):
        invalid_value = next(
            value for value in values if type(value) not in (int, bool, float) or (is_integer and type(value) is float)
        )
        raise BadRequestError(
            f"input '{name}': got {shorten(invalid_value)} in a tensor of {datatype}; wanted a number of that type"
        )
    try:
        if not is_integer:
            return np.array(values, np.float64)
        return (
            np.array(values, np.uint64).view(np.int64)
            if datatype == "UINT64" and min(values, default=0) >= 0
            else (np.array(values, np.int64))
        )
    except OverflowError:
        raise BadRequestError(f"input '{name}': a value does not fit into {datatype}") from None


def _texts(name: str, raw: bytes | memoryview) -> Iterator[str | None]:
    raw, offset = bytes(raw), 0
    while offset < len(raw):
        if offset + 4 > len(raw):
            raise BadRequestError(f"input '{name}': its bytes end within the length of a text")
        (length,) = struct.unpack_from("<I", raw, offset)
        offset += 4
        if offset + length > len(raw):
            raise BadRequestError(f"input '{name}': its bytes end within a text of {length} bytes")
        yield _text(name, raw[offset : offset + length])
        offset += length


def _text(name: str, value: object) -> str | None:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise BadRequestError(f"input '{name}': got bytes that are not UTF-8 text") from None
    if value is not None and not isinstance(value, str):
        raise BadRequestError(f"input '{name}': got {shorten(value)} in a tensor of BYTES; wanted text")
    return value
