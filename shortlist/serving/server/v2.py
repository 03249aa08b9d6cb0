"""The KServe V2 protocol over HTTP: its JSON, and its binary tensors behind the JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Final

import orjson
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


def read_body(body: bytes | bytearray, header_length: str | None, outputs: Sequence[str] = (SCORE,)) -> Body:
    """Return what the body of a request says.

    Args:
        body: JSON, and behind it the binary tensors.
        header_length: The header that says how long the JSON is; None: all of it.
        outputs: What there is to be asked for.

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
    return Body(request.id or "", _tensors(request.inputs, whole[end:]), _wants_binary(request, outputs), wanted)


def write_answer(
    head: Mapping[str, Any], scores: Scores, binary: bool, further: Mapping[str, Scores] = MappingProxyType({})
) -> tuple[bytes, dict[str, str]]:
    """Return the body of an answer, and its headers.

    Args:
        head: Model, version, id and parameters.
        scores: FP32.
        binary: Whether they go behind the JSON.
        further: Scores of further labels, FP32, by the name of their output.
    """
    answered = {SCORE: scores, **further}
    outputs = [
        {"name": name, "datatype": "FP32", "shape": [len(own)],
         **({"parameters": {"binary_data_size": own.nbytes}} if binary else {"data": own})}
        for name, own in answered.items()
    ]  # fmt: skip
    text = orjson.dumps({**head, "outputs": outputs}, option=orjson.OPT_SERIALIZE_NUMPY)
    if not binary:
        return text, {"content-type": "application/json"}
    headers = {"content-type": "application/octet-stream", HEADER_LENGTH.lower(): str(len(text))}
    return b"".join([text, *(own.tobytes() for own in answered.values())]), headers


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


def _wants_binary(request: _Request, outputs: Sequence[str]) -> bool:
    wanted = request.parameters is not None and bool(request.parameters.binary_data_output)
    for output in request.outputs or ():
        if output.name not in outputs:
            raise BadRequestError(f"no output {shown(output.name)}; wanted {quoted(outputs)}")
        if output.parameters is not None and output.parameters.binary_data is not None:
            wanted = output.parameters.binary_data
    return wanted
