"""A request of the V2 inference protocol as bytes: JSON, JSON with binary tensors behind it, or protobuf."""

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
"""Bytes of the JSON in front of binary tensors."""

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
    """A request that the protocol cannot carry."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request without its id and user, ready to be sent any number of times."""

    body: bytes
    headers: Mapping[str, str]
    """Of HTTP; empty for gRPC."""
    rows: int
    """Longest of the inputs."""


def prepare(inputs: Mapping[str, Array], protocol: WireProtocol, model: str, output: str = "score") -> PreparedRequest:
    """Return a request as bytes.

    Args:
        inputs: Array per input; an array of objects holds texts.
        protocol: How it will be sent.
        model: Name of the model; only gRPC carries it in the body.
        output: The output that is asked for.

    Raises:
        RequestError: An array is of a type that the protocol does not know.
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
    """Return what orjson can write; NaN becomes null."""
    flat = values.ravel()
    return flat.tolist() if values.dtype == object else np.ascontiguousarray(flat)
