import json
import struct
from typing import Any

import numpy as np
import pytest

from shortlist.serving.server.protocols.v2 import read_body, write_answer
from shortlist.serving.server.requests.request_errors import BadRequestError


def nested(shape: list[int]) -> bytes:
    """Return a request whose values are nested in a thousand lists."""
    flat = body({"name": "a", "datatype": "INT64", "shape": shape, "data": [7]})
    return flat.replace(b"[7]", b"[" * 1_000 + b"7" + b"]" * 1_000)


def body(*inputs: Any, **fields: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **fields}).encode()


ONE_INPUT = {"name": "a", "datatype": "INT64", "shape": [2], "data": [1, 2]}
RAW = {"name": "a", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}


def test_nested_lists_are_read_row_by_row() -> None:
    nested = {"name": "a", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2], [3, None]]}
    (tensor,) = read_body(body(nested), None).tensors
    assert tensor.shape == (2, 2)
    np.testing.assert_array_equal(np.asarray(tensor.data), [1.0, 2.0, 3.0, np.nan])


def test_binary_tensors_lie_behind_the_json_in_the_order_of_the_inputs() -> None:
    texts = {"name": "t", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 9}}
    head = body(RAW, ONE_INPUT | {"name": "b"}, texts, id="mine", outputs=[{"name": "score"}])
    tail = np.array([0.5, np.nan], "<f4").tobytes() + struct.pack("<I", 1) + b"x" + struct.pack("<I", 0)
    read = read_body(head + tail, str(len(head)))
    first, second, third = read.tensors
    np.testing.assert_array_equal(np.asarray(first.data), [0.5, np.nan])
    assert np.asarray(second.data).tolist() == [1, 2]
    assert third.data == ["x", ""]  # what means no value is the declared column's
    assert (read.id, read.binary) == ("mine", False)


@pytest.mark.parametrize(
    ("content", "header", "sentence"),
    [
        (b"{", None, "the body is not valid JSON"),
        (b"[]", None, "the body: got []; wanted an object"),
        (b"{}", None, "inputs: is missing"),
        (body("a"), None, "inputs.0: got 'a'; wanted an object"),
        (body({**ONE_INPUT, "data": 1}), None, "inputs.0.data: got 1; wanted a valid list"),
        (body({"name": "a", "datatype": "INT64", "shape": [1]}), None, "input 'a': wanted a list \"data\""),
        (body({**ONE_INPUT, "shape": 2}), None, "inputs.0.shape: got 2; wanted a valid list"),
        (body({**ONE_INPUT, "shape": [True]}), None, "inputs.0.shape.0: got True; wanted a valid integer"),
        (body({**ONE_INPUT, "shape": [2**31]}), None, "inputs.0.shape.0: got 2147483648; wanted less than"),
        (body({**ONE_INPUT, "datatype": []}), None, "inputs.0.datatype: got []; wanted 'BOOL'"),
        (body({**ONE_INPUT, "datatype": {}}), None, "inputs.0.datatype: got {}; wanted 'BOOL'"),
        (nested([2]), None, "input 'a': got 1 values; its shape [2] says 2"),
        (nested([1]), None, "...]]]] in a tensor of INT64"),
        (body({**ONE_INPUT, "data": [[1], 2]}), None, "input 'a': got [1] in a tensor of INT64"),
        (body({**ONE_INPUT, "data": [[1], 2], "shape": [1, 2]}), None, "input 'a': got lists among values"),
        (body({**ONE_INPUT, "name": "x" * 1_000}), None, "inputs.0.name: got 'xxx"),
        (body(*[ONE_INPUT] * 1_001), None, "list should have at most 1000 items"),
        (body(ONE_INPUT, outputs=[{"name": "probability"}]), None, "no output 'probability'; wanted 'score'"),
        (body(ONE_INPUT, outputs=["score"]), None, "outputs.0: got 'score'; wanted an object"),
        (body(ONE_INPUT, outputs="score"), None, "outputs: got 'score'; wanted a valid list"),
        (
            body(ONE_INPUT, outputs=[{"name": "score", "parameters": {"binary_data": 1}}]),
            None,
            "wanted a valid boolean",
        ),
        (body(ONE_INPUT, parameters=[1]), None, "parameters: got [1]; wanted an object"),
        (body(ONE_INPUT, id=7), None, "id: got 7; wanted a valid string"),
        (body(ONE_INPUT, id="x" * 257), None, "id: got 'xxx"),
        (body({**RAW, "parameters": {"binary_data_size": -1}}), None, "inputs.0.parameters.binary_data_size: got -1"),
        (body({**RAW, "parameters": {"binary_data_size": True}}), None, "got True; wanted a valid integer"),
        (body(RAW), None, "input 'a': got binary_data_size 8; 0 bytes are left"),
        (body(ONE_INPUT), "999999", "got '999999'; wanted at most"),
        (body(ONE_INPUT), "9" * 4_300, "header Inference-Header-Content-Length: got '999"),
        (body(ONE_INPUT), "\u0663", "header Inference-Header-Content-Length: got '\u0663'"),
        (body(ONE_INPUT), "-1", "header Inference-Header-Content-Length: got '-1'"),
        (body(ONE_INPUT) + b"more", str(len(body(ONE_INPUT))), "the body: 4 bytes after the JSON belong to no input"),
        (
            body({**RAW, "shape": [1]}) + b"12345678",
            str(len(body({**RAW, "shape": [1]}))),
            "got 8 bytes; its shape [1]",
        ),
    ],
)
def test_a_wrong_body_is_refused_with_one_sentence(content: bytes, header: str | None, sentence: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        read_body(content, header)
    assert sentence in str(refused.value)
    assert len(str(refused.value)) <= 500


@pytest.mark.parametrize("raw", [b"\x05\0\0", b"\x05\0\0\0ab"])
def test_torn_texts_are_refused(raw: bytes) -> None:
    head = body({"name": "t", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(raw)}})
    with pytest.raises(BadRequestError, match="input 't': its bytes end within"):
        read_body(head + raw, str(len(head)))


@pytest.mark.parametrize(
    ("body_fields", "binary"),
    [
        ({}, False),
        ({"outputs": [{"name": "score"}]}, False),
        ({"outputs": [{"name": "score", "parameters": {"binary_data": True}}]}, True),
        ({"parameters": {"binary_data_output": True}}, True),
        (
            {
                "parameters": {"binary_data_output": True},
                "outputs": [{"name": "score", "parameters": {"binary_data": False}}],
            },
            False,
        ),
    ],
)
def test_scores_have_the_requested_form(body_fields: dict[str, Any], binary: bool) -> None:
    assert read_body(body(ONE_INPUT, **body_fields), None).binary is binary
    scores = np.array([0.25, 0.5], np.float32)
    content, headers = write_answer({"model_name": "m"}, scores, binary)
    length = int(headers.get("inference-header-content-length", len(content)))
    answer = json.loads(content[:length])
    assert answer["model_name"] == "m"
    assert answer["outputs"][0]["shape"] == [2]
    response_scores = np.frombuffer(content[length:], np.float32).tolist() if binary else answer["outputs"][0]["data"]
    assert response_scores == [0.25, 0.5]
