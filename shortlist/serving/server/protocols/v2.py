"""The KServe V2 protocol over HTTP: JSON, optionally followed by binary tensors."""

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
from shortlist.serving.server.requests.headers import MAX_REQUEST_ID_LENGTH
from shortlist.serving.server.requests.request_errors import BadRequestError, quoted, shorten
from shortlist.serving.server.requests.tensors import (
    ProtocolMessage,
    Tensor,
    TensorHead,
    from_bytes,
    from_values,
    validate_message,
)
from shortlist.serving.server.scoring.predictor import Scores

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
MAX_INPUTS: Final = 1_000


class _InputParameters(ProtocolMessage):
    binary_data_size: Annotated[int, Field(ge=0)] | None = None


class _Input(TensorHead):
    data: list[Any] | None = None
    parameters: _InputParameters | None = None


class _OutputParameters(ProtocolMessage):
    binary_data: bool | None = None


class _Output(ProtocolMessage):
    name: str
    parameters: _OutputParameters | None = None


class _Parameters(ProtocolMessage):
    binary_data_output: bool | None = None


class _Request(ProtocolMessage):
    """JSON object of a request."""

    inputs: Annotated[list[_Input], Field(max_length=MAX_INPUTS, fail_fast=True)]
    outputs: Annotated[list[_Output], Field(max_length=MAX_INPUTS, fail_fast=True)] | None = None
    id: Annotated[str, Field(max_length=MAX_REQUEST_ID_LENGTH)] | None = None
    parameters: _Parameters | None = None


@dataclass(frozen=True)
class InferenceBody:
    """Parsed body of an inference request."""

    id: str
    tensors: Sequence[Tensor]
    binary: bool
    """Whether the response should be binary."""
    outputs: tuple[str, ...] = ()
    """Requested outputs; empty for all."""


def read_body(
    body: bytes | bytearray, header_length: str | None, output_names: Collection[str] = (SCORE,)
) -> InferenceBody:
    """Return the parsed body of a request.

    Args:
        body: JSON, followed by the binary tensors.
        header_length: Header with the length of the JSON; None when the body is JSON alone.
        output_names: Outputs that may be requested.

    Raises:
        BadRequestError: It violates the protocol.
    """
    body_view = memoryview(body)
    end = len(body) if header_length is None else _json_length(header_length, len(body))
    try:
        document = orjson.loads(body_view[:end])
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the body is not valid JSON: {error}") from None
    request = validate_message(_Request, document)
    requested_outputs = tuple(output.name for output in request.outputs or ())
    return InferenceBody(
        request.id or "",
        _tensors(request.inputs, body_view[end:]),
        _wants_binary(request, output_names),
        requested_outputs,
    )


def check_output(name: str, output_names: Collection[str]) -> None:
    """Check that an output exists.

    Raises:
        BadRequestError: It does not.
    """
    if name not in output_names:
        raise BadRequestError(f"no output {shorten(name)}; wanted {quoted(tuple(output_names))}")


def write_answer(head: Mapping[str, Any], scores: Scores, binary: bool) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a response with scores only; see `write_outputs`."""
    return write_outputs(head, [(SCORE, "FP32", scores)], binary)


def write_outputs(
    head: Mapping[str, Any], outputs: Iterable[tuple[str, str, NDArray[Any] | Sequence[str]]], binary: bool
) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a response.

    Args:
        head: Model, version, id and parameters.
        outputs: Name, datatype and one-dimensional values of each output.
        binary: Whether the values follow the JSON in binary form.
    """
    heads: list[tuple[dict[str, Any], NDArray[Any] | Sequence[str]]] = [
        ({"name": name, "datatype": kind, "shape": [len(values)]}, values) for name, kind, values in outputs
    ]
    if not binary:
        output_objects = [{**output, "data": values} for output, values in heads]
        body = orjson.dumps({**head, "outputs": output_objects}, option=orjson.OPT_SERIALIZE_NUMPY)
        return body, {"content-type": "application/json"}
    raw = [encode_raw(values) for _, values in heads]
    output_objects = [
        {**output, "parameters": {"binary_data_size": len(tensor_bytes)}}
        for (output, _), tensor_bytes in zip(heads, raw, strict=True)
    ]
    text = orjson.dumps({**head, "outputs": output_objects})
    headers = {"content-type": "application/octet-stream", HEADER_LENGTH.lower(): str(len(text))}
    return b"".join((text, *raw)), headers


def encode_raw(values: NDArray[Any] | Sequence[str]) -> bytes:
    r"""Return values in binary form: little-endian numbers, or texts preceded by their lengths.

    >>> encode_raw(["ab"])
    b'\x02\x00\x00\x00ab'
    """
    if isinstance(values, np.ndarray):
        return values.tobytes()
    return b"".join(struct.pack("<I", len(text)) + text for text in (value.encode() for value in values))


def _json_length(header: str, max_length: int) -> int:
    # Python refuses to parse numbers with thousands of digits.
    if not (header.isascii() and header.isdecimal() and len(header) <= 18 and int(header) <= max_length):
        raise BadRequestError(
            f"header {HEADER_LENGTH}: got {shorten(header)}; wanted at most {max_length}, the body's bytes"
        )
    return int(header)


def _tensors(inputs: Sequence[_Input], tail: memoryview) -> list[Tensor]:
    tensors = []
    offset = 0
    for input_tensor in inputs:
        size = input_tensor.parameters.binary_data_size if input_tensor.parameters is not None else None
        if size is None:
            if input_tensor.data is None:
                raise BadRequestError(f"input '{input_tensor.name}': wanted a list \"data\"")
            tensors.append(from_values(input_tensor, input_tensor.data))
            continue
        if offset + size > len(tail):
            raise BadRequestError(
                f"input '{input_tensor.name}': got binary_data_size {size}; {len(tail) - offset} bytes are left"
            )
        tensors.append(from_bytes(input_tensor, tail[offset : offset + size]))
        offset += size
    if offset != len(tail):
        raise BadRequestError(f"the body: {len(tail) - offset} bytes after the JSON belong to no input")
    return tensors


def _wants_binary(request: _Request, output_names: Collection[str]) -> bool:
    is_binary = request.parameters is not None and bool(request.parameters.binary_data_output)
    for output in request.outputs or ():
        check_output(output.name, output_names)
        if output.parameters is not None and output.parameters.binary_data is not None:
            is_binary = output.parameters.binary_data
    return is_binary
