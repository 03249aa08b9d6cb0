"""The KServe V2 protocol over HTTP: its JSON, and its binary tensors behind the JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from shortlist.serving.export.signature import SCORE
from shortlist.serving.online.failures import BadRequestError
from shortlist.serving.online.predictor import Scores
from shortlist.serving.online.tensors import Tensor, check_head, from_bytes, from_values

HEADER_LENGTH: Final = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Body:
    """What the body of a request says."""

    id: str
    tensors: Sequence[Tensor]
    binary: bool
    """Whether the scores are wanted in binary form."""


def read_body(body: bytes, header_length: str | None) -> Body:
    """Return what the body of a request says.

    Args:
        body: JSON, and behind it the binary tensors.
        header_length: The header that says how long the JSON is; None: all of it.

    Raises:
        BadRequestError: It is not what the protocol asks for.
    """
    end = len(body)
    if header_length is not None:
        if not header_length.isdecimal() or int(header_length) > len(body):
            raise BadRequestError(
                f"header {HEADER_LENGTH}: got '{header_length}'; wanted at most {len(body)}, the body's bytes"
            )
        end = int(header_length)
    try:
        said = orjson.loads(body[:end])
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the body is no JSON: {error}") from None
    if not isinstance(said, dict) or not isinstance(said.get("inputs"), list):
        raise BadRequestError('the body: wanted a JSON object with a list "inputs"')
    tensors = _tensors(said["inputs"], memoryview(body)[end:])
    return Body(_id(said), tensors, _wants_binary(said))


def write_answer(head: Mapping[str, Any], scores: Scores, binary: bool) -> tuple[bytes, dict[str, str]]:
    """Return the body of an answer, and its headers.

    Args:
        head: Model, version, id and parameters.
        scores: FP32.
        binary: Whether they go behind the JSON.
    """
    output: dict[str, Any] = {"name": SCORE, "datatype": "FP32", "shape": [len(scores)]}
    if not binary:
        body = orjson.dumps({**head, "outputs": [{**output, "data": scores}]}, option=orjson.OPT_SERIALIZE_NUMPY)
        return body, {"content-type": "application/json"}
    output["parameters"] = {"binary_data_size": scores.nbytes}
    text = orjson.dumps({**head, "outputs": [output]})
    headers = {"content-type": "application/octet-stream", HEADER_LENGTH.lower(): str(len(text))}
    return text + scores.tobytes(), headers


def _tensors(inputs: Sequence[Any], tail: memoryview) -> list[Tensor]:
    tensors = []
    place = 0
    for each in inputs:
        if not isinstance(each, dict) or not isinstance(each.get("shape"), list):
            raise BadRequestError("inputs: wanted objects with name, datatype, shape and data")
        name, datatype, shape = check_head(each.get("name"), each.get("datatype"), each["shape"])
        size = _parameters(each).get("binary_data_size")
        if size is None:
            values = each.get("data")
            if not isinstance(values, list):
                raise BadRequestError(f"input '{name}': wanted a list \"data\"")
            tensors.append(from_values(name, datatype, shape, values))
            continue
        if not isinstance(size, int) or size < 0 or place + size > len(tail):
            raise BadRequestError(f"input '{name}': got binary_data_size {size!r}; {len(tail) - place} bytes are left")
        tensors.append(from_bytes(name, datatype, shape, tail[place : place + size]))
        place += size
    if place != len(tail):
        raise BadRequestError(f"the body: {len(tail) - place} bytes behind the JSON belong to no input")
    return tensors


def _wants_binary(said: Mapping[str, Any]) -> bool:
    wanted = bool(_parameters(said).get("binary_data_output", False))
    outputs = said.get("outputs") or []
    if not isinstance(outputs, list):
        raise BadRequestError("outputs: wanted a list")
    for output in outputs:
        name = output.get("name") if isinstance(output, dict) else output
        if name != SCORE:
            raise BadRequestError(f"no output {name!r}; wanted '{SCORE}'")
        wanted = bool(_parameters(output).get("binary_data", wanted))
    return wanted


def _parameters(said: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = said.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise BadRequestError("parameters: wanted an object")
    return parameters


def _id(said: Mapping[str, Any]) -> str:
    name = said.get("id") or ""
    if not isinstance(name, str):
        raise BadRequestError(f"id: got {name!r}; wanted text")
    return name
