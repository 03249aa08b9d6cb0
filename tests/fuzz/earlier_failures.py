"""Requests that a server once failed, minimised."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Final

from tritonclient.grpc import service_pb2

from tests.fuzz.requests import SERVICE, GRPCRequest, HTTPRequest, post_bytes, valid_request, valid_slate_request
from tests.fuzz.world import INFER, RECOMMEND, RECOMMEND_INFER

_ZEROS: Final = "0" * 5_000


def _with(**changes: Any) -> HTTPRequest:
    return HTTPRequest(post_bytes(json.dumps({**valid_request(), **changes}).encode()), framed=True)


def _with_input(**changes: Any) -> HTTPRequest:
    request = valid_request()
    request["inputs"][0] |= changes
    return HTTPRequest(post_bytes(json.dumps(request).encode()), framed=True)


def _nested(shape: list[int]) -> HTTPRequest:
    text = json.dumps({"inputs": [{"name": "position", "datatype": "INT64", "shape": shape, "data": [7]}]})
    return HTTPRequest(post_bytes(text.replace("[7]", "[" * 1_000 + "7" + "]" * 1_000).encode()), framed=True)


def _length(text: str) -> HTTPRequest:
    body = json.dumps(valid_request()).encode()
    return HTTPRequest(post_bytes(body, f"Inference-Header-Content-Length: {text}"), framed=True)


def _slate(*inputs: dict[str, Any]) -> HTTPRequest:
    """Return a request for a slate with further inputs."""
    slate = valid_slate_request()
    slate["inputs"] += inputs
    return HTTPRequest(post_bytes(json.dumps(slate).encode(), path=RECOMMEND_INFER), framed=True)


def _binary(*inputs: tuple[str, str, list[int], bytes], path: str = INFER) -> HTTPRequest:
    """Return a request whose inputs (name, datatype, shape, bytes) are all in the binary form."""
    headers = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(raw)}}
        for name, datatype, shape, raw in inputs
    ]
    head, tail = json.dumps({"inputs": headers}).encode(), b"".join(raw for *_, raw in inputs)
    return HTTPRequest(post_bytes(head + tail, f"Inference-Header-Content-Length: {len(head)}", path=path), framed=True)


def _texts(text: bytes, count: int) -> bytes:
    return (struct.pack("<I", len(text)) + text) * count


def _raw(*lines: str, body: bytes = b"", framed: bool = False) -> HTTPRequest:
    return HTTPRequest("\r\n".join((*lines, "", "")).encode("latin-1") + body, framed)


_TAGS: Final = b"".join(_texts(b"%d" % number, 1) for number in range(900))

HTTP_FAILURES: Final[Mapping[str, tuple[HTTPRequest, ...]]] = {
    "json": (
        _with(outputs=["score"]), _with(outputs=[[]]), _with(outputs=[{"name": "score", "parameters": [1]}]),
        _with(parameters=7), _with(id={}), _with(inputs=[7]), _with(inputs=[{"parameters": 7}]),
        _with_input(datatype=[]), _with_input(datatype={}), _with_input(name=[]), _with_input(shape=[2**70]),
        _with_input(shape=[[2]]), _with_input(data=[[[1]], "a"]), _with_input(name="x" * 2_000_000),
        _nested([1]), _nested([1, 1]), _nested([2, 1]),
        HTTPRequest(post_bytes(json.dumps(valid_request()).encode(), zeros=_ZEROS), framed=True),
    ),
    "binary": (
        _length("9" * 4_300), _length("\xb2"), _length("-0"), _length(""), _length(_ZEROS + "94"),
        # Wide tags of one row that stands for many.
        _binary(("item_id", "BYTES", [10_000], _texts(b"i", 10_000)), ("places", "INT8", [1, 900_000], bytes(900_000))),
        _binary(("item_id", "BYTES", [1_000], _texts(b"item 0", 1_000)), ("words", "BYTES", [1, 900], _TAGS)),
        # A text that JSON escapes sixfold.
        _binary(("item_id", "BYTES", [1_000], _texts(b"\1" * 1_000, 1_000))),
    ),
    "recommend-json": (
        _slate({"name": "places", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}),
        _slate({"name": "recent_items", "datatype": "BYTES", "shape": [1], "data": ["x" * 20_000]}),
        _slate({"name": "words", "datatype": "BYTES", "shape": [1, 3], "data": ["a", "", None]}),
        _slate({"name": "made", "datatype": "INT64", "shape": [1], "data": [2**62]}),
        _slate({"name": "user_id", "datatype": "INT64", "shape": [1], "data": [None]}),
    ),
    "recommend-binary": (
        _binary(("k", "UINT64", [1], b"\xff" * 8), path=RECOMMEND_INFER),
        _binary(("k", "INT64", [1], b"\3" + bytes(7)), ("places", "INT8", [1, 2], b"\1\2"), path=RECOMMEND_INFER),
        _binary(
            ("k", "INT64", [1], b"\3" + bytes(7)), ("query", "FP32", [1, 2], b"\xff" * 8), path=RECOMMEND_INFER
        ),
    ),
    "raw": (
        _raw("POST " + INFER + " HTTP/1.1", "Host: here", "Transfer-Encoding: odd", body=b"hello"),
        _raw("POST " + INFER + " HTTP/1.1", "Host: here", "Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
        _raw("GET /nowhere HTTP/1.1", "Host: [", framed=True),
        _raw("POST " + INFER + " HTTP/1.1", "Host: here", f"Content-Length: {'9' * 30}", body=b"hello"),
        _raw("POST " + INFER + " HTTP/1.1", "Host: h", "Connection: upgrade", "Upgrade: websocket", body=b"hello"),
    ),
}  # fmt: skip
_SLATE_MESSAGE: Final = service_pb2.ModelInferRequest(
    model_name=RECOMMEND,
    inputs=[
        {"name": "k", "datatype": "INT64", "shape": [1]}, {"name": "places", "datatype": "INT8", "shape": [1, 2]}
    ],
    raw_input_contents=[b"\3" + bytes(7), b"\1\2"],
).SerializeToString()  # fmt: skip
_MESSAGES: Final = (
    GRPCRequest(f"{SERVICE}/ModelInfer", b"\xff"),
    GRPCRequest(f"{SERVICE}/ModelReady", b"\x0a\x05ab"),
    GRPCRequest(f"{SERVICE}/ModelInfer", b"\x0a\x02\xff\xfe"),  # a text that is not UTF-8
    GRPCRequest(f"{SERVICE}/Nothing", b""),
    GRPCRequest("/other.Service/ModelInfer", b""),
    GRPCRequest(
        f"{SERVICE}/ModelInfer",
        service_pb2.ModelInferRequest(model_name="\u6f22" * 5_000).SerializeToString(),
        (("x-shortlist-track", "a b"),),
    ),
)
GRPC_FAILURES: Final = {"grpc": _MESSAGES, "recommend-grpc": (GRPCRequest(f"{SERVICE}/ModelInfer", _SLATE_MESSAGE),)}
