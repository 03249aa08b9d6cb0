"""Encodes requests of the V2 inference protocol: JSON, JSON followed by binary tensors, or protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import orjson

from shortlist.contracts import ShortlistError

Array = npt.NDArray[Any]
WireProtocol = Literal["http", "json", "grpc"]
"""`http`: binary tensors over HTTP; `json`: everything as JSON over HTTP."""

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
"""Header with the length of the JSON before binary tensors."""

_DATATYPES: Final = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint32": "UINT32",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float32": "FP32",
    "float64": "FP64",
    "object": "BYTES",
}


class UnsupportedInputError(ShortlistError):
    """The protocol does not support an input."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """An encoded request without id and user, which can be sent repeatedly."""

    body: bytes
    headers: Mapping[str, str]
    """HTTP headers; empty for gRPC."""
    rows: int
    """Number of rows: the length of the longest input."""


def prepare(inputs: Mapping[str, Array], protocol: WireProtocol, model: str, output: str = "score") -> PreparedRequest:
    """Return an encoded request.

    Args:
        inputs: Array per input; an array of objects holds texts.
        protocol: Protocol to send it with.
        model: Name of the model; only gRPC contains it in the body.
        output: The requested output.

    Raises:
        UnsupportedInputError: The protocol does not support the type of an array.
    """
    rows = max((len(values) for values in inputs.values()), default=0)
    match protocol:
        case "grpc":
            return PreparedRequest(_protobuf(inputs, model, output), {}, rows)
        case "json":
            tensors = [
                {**_tensor_head(name, values), "data": _to_json_values(values)} for name, values in inputs.items()
            ]
            body = orjson.dumps({"inputs": tensors, "outputs": [{"name": output}]}, option=orjson.OPT_SERIALIZE_NUMPY)
            return PreparedRequest(body, {"Content-Type": "application/json"}, rows)
        case "http":
            return _binary(inputs, output, rows)


def _binary(inputs: Mapping[str, Array], output: str, rows: int) -> PreparedRequest:
    raw_tensors = [_raw(values) for values in inputs.values()]
    tensors = [
        {**_tensor_head(name, values), "parameters": {"binary_data_size": len(tensor_bytes)}}
        for (name, values), tensor_bytes in zip(inputs.items(), raw_tensors, strict=True)
    ]
    output_head = {"name": output, "parameters": {"binary_data": True}}
    header = orjson.dumps({"inputs": tensors, "outputs": [output_head]})
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(header))}
    return PreparedRequest(b"".join((header, *raw_tensors)), headers, rows)


def _protobuf(inputs: Mapping[str, Array], model: str, output: str) -> bytes:
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name=model)
    request.outputs.add(name=output)
    for name, values in inputs.items():
        request.inputs.add(**_tensor_head(name, values))
        request.raw_input_contents.append(_raw(values))
    body: bytes = request.SerializeToString()
    return body


def _tensor_head(name: str, values: Array) -> dict[str, Any]:
    datatype = _DATATYPES.get(values.dtype.name)
    if datatype is None:
        raise UnsupportedInputError(
            f"input '{name}': an array of {values.dtype} cannot be sent; wanted one of {', '.join(_DATATYPES)}"
        )
    return {"name": name, "shape": list(values.shape), "datatype": datatype}


def _raw(values: Array) -> bytes:
    if values.dtype != object:
        return np.ascontiguousarray(values).tobytes()
    texts = [str(value).encode() for value in values.ravel()]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def _to_json_values(values: Array) -> Any:
    """Return values that orjson can write; NaN becomes null."""
    flat = values.ravel()
    return flat.tolist() if values.dtype == object else np.ascontiguousarray(flat)
