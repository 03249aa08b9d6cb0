"""The KServe V2 protocol over HTTP: its JSON, and its binary tensors behind the JSON."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import Field

from shortlist.serving.export.signature import SCORE
from shortlist.serving.server.predictor import Scores
from shortlist.serving.server.request_errors import BadRequestError, quoted, shown
from shortlist.serving.server.tensors import Head, Message, Tensor, checked, from_bytes, from_values

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
MOST_INPUTS: Final = 1_000
LONGEST_ID: Final = 256


class _InputParameters(Message):
    binary_data_size: Annotated[int, Field(ge=0)] | None = None


class _Input(Head):
    data: list[Any] | None = None
    parameters: _InputParameters | None = None


class _OutputParameters(Message):
    binary_data: bool | None = None


class _Output(Message):
    name: str
    parameters: _OutputParameters | None = None


class _Parameters(Message):
    binary_data_output: bool | None = None


class _Request(Message):
    """The JSON of a request."""

    inputs: Annotated[list[_Input], Field(max_length=MOST_INPUTS, fail_fast=True)]
    outputs: Annotated[list[_Output], Field(max_length=MOST_INPUTS, fail_fast=True)] | None = None
    id: Annotated[str, Field(max_length=LONGEST_ID)] | None = None
    parameters: _Parameters | None = None


@dataclass(frozen=True)
class Body:
    """What the body of a request says."""

    id: str
    tensors: Sequence[Tensor]
    binary: bool
    """Whether the scores are wanted in binary form."""
    outputs: tuple[str, ...] = ()
    """Which outputs are wanted; none named: all."""


def read_body(body: bytes | bytearray, header_length: str | None, known: Collection[str] = (SCORE,)) -> Body:
    """Return what the body of a request says.

    Args:
        body: JSON, and behind it the binary tensors.
        header_length: The header that says how long the JSON is; None: all of it.
        known: Outputs that may be asked for.

    Raises:
        BadRequestError: It is not what the protocol asks for.
    """
    whole = memoryview(body)
    end = len(body) if header_length is None else _json_length(header_length, len(body))
    try:
        said = orjson.loads(whole[:end])
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the body is no JSON: {error}") from None
    request = checked(_Request, said)
    wanted = tuple(output.name for output in request.outputs or ())
    return Body(request.id or "", _tensors(request.inputs, whole[end:]), _wants_binary(request, known), wanted)


def check_output(name: str, known: Collection[str]) -> None:
    """Refuse an output that there is not.

    Raises:
        BadRequestError: It is not among the known ones.
    """
    if name not in known:
        raise BadRequestError(f"no output {shown(name)}; wanted {quoted(tuple(known))}")


def write_answer(head: Mapping[str, Any], scores: Scores, binary: bool) -> tuple[bytes, dict[str, str]]:
    """Return the body of an answer that has scores alone, and its headers; see `write_outputs`."""
    return write_outputs(head, [(SCORE, "FP32", scores)], binary)


def write_outputs(
    head: Mapping[str, Any], outputs: Iterable[tuple[str, str, NDArray[Any] | Sequence[str]]], binary: bool
) -> tuple[bytes, dict[str, str]]:
    """Return the body of an answer, and its headers.

    Args:
        head: Model, version, id and parameters.
        outputs: Name, datatype and values of each; of one dimension.
        binary: Whether the values go behind the JSON.
    """
    heads: list[tuple[dict[str, Any], NDArray[Any] | Sequence[str]]] = [
        ({"name": name, "datatype": kind, "shape": [len(values)]}, values) for name, kind, values in outputs
    ]
    if not binary:
        told = [{**output, "data": values} for output, values in heads]
        body = orjson.dumps({**head, "outputs": told}, option=orjson.OPT_SERIALIZE_NUMPY)
        return body, {"content-type": "application/json"}
    raw = [raw_of(values) for _, values in heads]
    told = [
        {**output, "parameters": {"binary_data_size": len(one)}} for (output, _), one in zip(heads, raw, strict=True)
    ]
    text = orjson.dumps({**head, "outputs": told})
    headers = {"content-type": "application/octet-stream", HEADER_LENGTH.lower(): str(len(text))}
    return b"".join((text, *raw)), headers


def raw_of(values: NDArray[Any] | Sequence[str]) -> bytes:
    r"""Return values in the binary form: little-endian numbers, or texts with their length before them.

    >>> raw_of(["ab"])
    b'\x02\x00\x00\x00ab'
    """
    if isinstance(values, np.ndarray):
        return values.tobytes()
    return b"".join(struct.pack("<I", len(text)) + text for text in (value.encode() for value in values))


def _json_length(header: str, longest: int) -> int:
    # Python refuses to read numbers of thousands of digits.
    if not (header.isascii() and header.isdecimal() and len(header) <= 18 and int(header) <= longest):
        raise BadRequestError(
            f"header {HEADER_LENGTH}: got {shown(header)}; wanted at most {longest}, the body's bytes"
        )
    return int(header)


def _tensors(inputs: Sequence[_Input], tail: memoryview) -> list[Tensor]:
    tensors = []
    place = 0
    for each in inputs:
        size = each.parameters.binary_data_size if each.parameters is not None else None
        if size is None:
            if each.data is None:
                raise BadRequestError(f"input '{each.name}': wanted a list \"data\"")
            tensors.append(from_values(each, each.data))
            continue
        if place + size > len(tail):
            raise BadRequestError(
                f"input '{each.name}': got binary_data_size {size}; {len(tail) - place} bytes are left"
            )
        tensors.append(from_bytes(each, tail[place : place + size]))
        place += size
    if place != len(tail):
        raise BadRequestError(f"the body: {len(tail) - place} bytes behind the JSON belong to no input")
    return tensors


def _wants_binary(request: _Request, known: Collection[str]) -> bool:
    wanted = request.parameters is not None and bool(request.parameters.binary_data_output)
    for output in request.outputs or ():
        check_output(output.name, known)
        if output.parameters is not None and output.parameters.binary_data is not None:
            wanted = output.parameters.binary_data
    return wanted
