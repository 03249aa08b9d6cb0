"""Strategies for requests to a server with the fuzz world: nearly valid ones, in every form in which they can come."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode
from tritonclient.grpc import service_pb2

from tests.fuzz.changes import JSON_TEXTS, JSON_VALUES, changed_bytes, changed_tree
from tests.fuzz.world import INFER, MODEL, RECOMMEND, RECOMMEND_INFER

SERVICE: Final = "/inference.GRPCInferenceService"
Tree = dict[str, Any]

_LONG_TEXTS: Final = ("x" * 16_384, "x" * 16_385, "\x01" * 16_384, "漢" * 16_384, "\U0001f600" * 5_000)
_TEXTS: Final = st.one_of(st.sampled_from(("home", "", "漢字", "item 0", "item 2", *_LONG_TEXTS)), st.text(max_size=9))
_INTEGERS: Final = st.one_of(st.sampled_from((1, 2, 3)), st.integers(-(2**63), 2**63 - 1))
_DATES: Final = st.one_of(st.dates().map(str), st.text(max_size=9))
_COLUMNS: Final[Mapping[str, tuple[str, st.SearchStrategy[Any]]]] = {
    "user_id": ("INT64", st.none() | _INTEGERS),
    "item_id": ("BYTES", st.integers(0, 11).map("item {}".format)),
    "page": ("BYTES", st.none() | _TEXTS),
    "position": ("INT64", _INTEGERS),
    "code": ("BYTES", st.integers(0, 2**64 - 1).map("{:x}".format) | _TEXTS),
    "price": ("FP64", st.none() | st.floats()),
    "made": ("BYTES", _DATES),
    "event_time": ("INT64", _INTEGERS),
}
_LISTS: Final[Mapping[str, tuple[str, tuple[int, ...], st.SearchStrategy[Any]]]] = {
    "words": ("BYTES", (2, 0, 40, 1_000, 1_001), st.sampled_from(("a", "b", "", None))),
    "places": ("INT64", (3, 0, 40, 1_000, 1_001), st.none() | _INTEGERS),
    "query": ("FP32", (2, 3), st.floats(width=32)),
}
_FORMATS: Final = {"INT64": "q", "FP64": "d", "FP32": "f"}
_ZEROS: Final = "0" * 5_000


class HTTPRequest(NamedTuple):
    """Bytes for one connection."""

    sent: bytes
    """A whole request, or what is none."""
    framed: bool
    """Whether exactly one answer must come."""


class GRPCRequest(NamedTuple):
    """One call."""

    method: str
    message: bytes
    metadata: tuple[tuple[str, str], ...] = ()


def post_bytes(body: bytes, *headers: str, path: str = INFER, zeros: str = "") -> bytes:
    """Return a request; `zeros` stand before its length."""
    length = f"Content-Length: {zeros}{len(body)}"
    head = "\r\n".join((f"POST {path} HTTP/1.1", "Host: here", length, *headers, "", ""))
    return head.encode("latin-1") + body


def valid_request() -> Tree:
    """Return what is answered with two scores."""
    items = {"name": "item_id", "datatype": "BYTES", "shape": [2], "data": ["item 0", "item 2"]}
    return {"inputs": [items, {"name": "position", "datatype": "INT64", "shape": [1], "data": [1]}]}


def valid_slate_request() -> Tree:
    """Return what is answered with a slate of three items."""
    return {"inputs": [{"name": "k", "datatype": "INT64", "shape": [1], "data": [3]}]}


def pack(tensor: Mapping[str, Any]) -> bytes:
    """Return the binary form of a tensor's values."""
    flat = [value for row in tensor["data"] for value in (row if isinstance(row, list) else [row])]
    if tensor["datatype"] == "BYTES":
        texts = [(value or "").encode("utf-8", "surrogatepass") for value in flat]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return struct.pack(f"<{len(flat)}{_FORMATS[tensor['datatype']]}", *(value or 0 for value in flat))


@st.composite
def requests(draw: st.DrawFn, slate: bool) -> Tree:
    """Draw a request that is valid but for its values."""
    rows = 1 if slate else draw(st.sampled_from((1, 2, 5, 0)))
    names = draw(st.lists(st.sampled_from([*_COLUMNS, *_LISTS]), unique=True, max_size=6))
    inputs: list[Tree] = []
    for name in [*names, *({"item_id"} - {*names})]:
        if slate and name == "item_id":
            continue
        count = draw(st.sampled_from((1, rows)))
        if name in _COLUMNS:
            (datatype, values), shape = _COLUMNS[name], [count]
        else:
            datatype, widths, values = _LISTS[name]
            shape = [count, draw(st.sampled_from(widths))]
            # A wide row repeats a few values: what is long is the request, not the choice.
            values = st.lists(values, min_size=1, max_size=3).map(lambda row, width=shape[1]: (row * width)[:width])
        data = draw(st.lists(values, min_size=count, max_size=count))
        inputs.append({"name": name, "datatype": datatype, "shape": shape, "data": data})
    if slate:
        k = draw(st.sampled_from((3, 8, 0, 9, -1)) | _INTEGERS)
        inputs.append({"name": "k", "datatype": "INT64", "shape": [1], "data": [k]})
        recent = draw(st.lists(st.none() | _TEXTS, max_size=40))
        inputs.append({"name": "recent_items", "datatype": "BYTES", "shape": [len(recent)], "data": recent})
    outputs = [{"name": "score", "parameters": {"binary_data": True}}]
    extra = draw(
        st.sampled_from(({}, {"id": "mine", "parameters": {"binary_data_output": True}}, {"outputs": outputs}))
    )
    return {"inputs": draw(st.permutations(inputs)), **extra}


@st.composite
def json_requests(draw: st.DrawFn, slate: bool) -> HTTPRequest:
    """Draw a request as JSON, of which some nodes or bytes are changed."""
    tree = draw(changed_tree(draw(requests(slate)), JSON_VALUES, most=2))
    body = json.dumps(tree).encode()
    if draw(st.booleans()):
        place = draw(st.integers(0, len(body)))
        body = body[:place] + draw(st.sampled_from(JSON_TEXTS)) + body[place:]
    zeros = draw(st.sampled_from(("", "", "", "0" * 30, _ZEROS)))
    path = RECOMMEND_INFER if slate else INFER
    return HTTPRequest(post_bytes(body, *draw(st.lists(_HEADERS, max_size=2)), path=path, zeros=zeros), framed=True)


@st.composite
def binary_requests(draw: st.DrawFn, slate: bool) -> HTTPRequest:
    """Draw a request with some inputs in the binary form, of which nodes, bytes or lengths are changed."""
    tree, tail = draw(requests(slate)), b""
    for tensor in tree["inputs"]:
        if draw(st.booleans()):
            raw = pack(tensor)
            del tensor["data"]
            tensor["parameters"] = {"binary_data_size": len(raw)}
            tail += raw
    head = json.dumps(draw(changed_tree(tree, JSON_VALUES, most=1))).encode()
    tail = draw(changed_bytes(tail))
    lengths = st.sampled_from((str(len(head) + 1), "-0", "-1", "", "\xb2", "9" * 4_300, _ZEROS + "94"))
    length = draw(st.just(str(len(head))) | lengths | st.integers(0, 2**70).map(str))
    path = RECOMMEND_INFER if slate else INFER
    return HTTPRequest(post_bytes(head + tail, f"Inference-Header-Content-Length: {length}", path=path), framed=True)


_NAMES: Final = (
    "X-Shortlist-Track", "X-Shortlist-User", "X-Shortlist-Step", "X-Shortlist-Rollout", "X-Request-Id",
    "Content-Encoding", "Content-Type", "Accept", "Te", "Traceparent",
)  # fmt: skip
_HEADER_TEXTS: Final = (
    "",
    "canary",
    "-1",
    "1" * 5_000,
    "\t",
    "%",
    "identity",
    "gzip",
    _ZEROS + "1",
    "\xff\xfe",
    "\xb2",
)
_HEADERS: Final = st.tuples(
    st.sampled_from(_NAMES),
    st.sampled_from(_HEADER_TEXTS)
    | st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f")),
).map(": ".join)
_LINES: Final = st.sampled_from(
    ("Host: here", "Host: [", "Host: a:b:c", "Host:", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip",
     "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: odd", "Content-Length: 5", "Content-Length: 0",
     "Content-Length: 5, 5", "Content-Length: -1", f"Content-Length: {'9' * 30}", "Expect: 100-continue", "Expect: odd",
     f"Content-Length: {_ZEROS}5", "Connection: close", "Connection: upgrade", "Upgrade: websocket", "Upgrade: h2c",
     "HTTP2-Settings: AA", "Content-Length: x", ": empty", "no colon", " folded: line", "X: \x00", "X: \x7f",
     "Content-Length: 1048577000")
)  # fmt: skip
_PATHS: Final = st.sampled_from(
    (INFER, f"{INFER}?a=b", RECOMMEND_INFER, "/v2", "/v2/health/ready", "/metrics", "*", "//v2", "http://[/v2",
     f"/v2/models/{MODEL}/versions/x/ready", "/v2/models/%00%ff/infer", "/v2/../metrics", "/%", "", "/\xff", "here:80",
     "/v2/models/" + "x" * 3_000 + "/infer")
)  # fmt: skip


@st.composite
def raw_requests(draw: st.DrawFn) -> HTTPRequest:
    """Draw bytes that are a request of HTTP, or nearly."""
    if draw(st.booleans()):
        return HTTPRequest(draw(changed_bytes(post_bytes(json.dumps(valid_request()).encode()))), framed=False)
    method = draw(st.sampled_from(("POST", "GET", "HEAD", "PUT", "OPTIONS", "CONNECT", "PRI", "odd", "G" * 300)))
    version = draw(st.sampled_from(("HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9.9", "HTTP/1.1.1", "")))
    lines = [f"{method} {draw(_PATHS)} {version}", *draw(st.lists(_LINES, max_size=4)), "", ""]
    chunks = (b"5\r\nhello\r\n0\r\n\r\n", b"f" * 18 + b"\r\n", b"-1\r\n", b"5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n")
    sent = "\r\n".join(lines).encode("latin-1") + draw(st.sampled_from(chunks) | st.binary(max_size=20))
    return HTTPRequest(draw(st.just(sent) | changed_bytes(sent)), framed=False)


_METHODS: Final = ("ModelInfer",) * 6 + (
    "ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelConfig", "RepositoryIndex",
)  # fmt: skip


@st.composite
def grpc_requests(draw: st.DrawFn, slate: bool) -> GRPCRequest:
    """Draw a call whose message is a request, of which fields or bytes are changed."""
    request = service_pb2.ModelInferRequest(
        model_name=RECOMMEND if slate else MODEL, id=draw(st.sampled_from(("", "x" * 300)))
    )
    raw = draw(st.booleans())
    for tensor in draw(requests(slate))["inputs"]:
        datatype = draw(st.sampled_from((tensor["datatype"],) * 4 + ("INT8", "FP16", "odd", "")))
        shape = draw(st.sampled_from((tensor["shape"],) * 4 + ([], [-1], [2**40, 0], [0], [1] * 20)))
        added = request.inputs.add(name=tensor["name"], datatype=datatype, shape=shape)
        if raw:
            request.raw_input_contents.append(draw(st.just(pack(tensor)) | changed_bytes(pack(tensor))))
        elif tensor["datatype"] == "BYTES":
            flat = [value for row in tensor["data"] for value in (row if isinstance(row, list) else [row])]
            added.contents.bytes_contents.extend((value or "").encode("utf-8", "surrogatepass") for value in flat)
        else:
            added.contents.int64_contents.extend(draw(st.lists(_INTEGERS, max_size=5)))
    message = bytes(request.SerializeToString())
    metadata = draw(st.sampled_from(((), (("x-shortlist-track", "a b"),), (("x-shortlist-step", "-1"),))))
    method = f"{SERVICE}/{draw(st.sampled_from(_METHODS))}"
    return GRPCRequest(method, draw(st.just(message) | changed_bytes(message)), metadata)


def schema_requests() -> st.SearchStrategy[schemathesis.Case]:
    """Return a strategy for requests that follow the protocol's schema, and for ones that do not."""
    schema = schemathesis.openapi.from_dict(_API)
    return st.one_of(*(schema.as_strategy(mode) for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)))


def _path(name: str, *parameters: str, **operation: Any) -> Tree:
    declared = [{"name": each, "in": "path", "required": True, "schema": {"type": "string"}} for each in parameters]
    return {name: {"parameters": declared, **operation, "responses": {"200": {"description": "answered"}}}}


_TENSOR: Final[Tree] = {
    "type": "object",
    "required": ["name", "datatype", "shape", "data"],
    "properties": {
        "name": {"enum": [*_COLUMNS, *_LISTS, "k", "recent_items"]},
        "datatype": {"enum": ["INT64", "BYTES", "FP64", "FP32", "INT8", "UINT64", "BOOL", "FP16"]},
        "shape": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
        "data": {"type": "array"},
        "parameters": {"type": "object"},
    },
}
_INFERENCE: Final[Tree] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["inputs"],
                "properties": {
                    "id": {"type": "string"},
                    "parameters": {"type": "object"},
                    "inputs": {"type": "array", "items": _TENSOR},
                    "outputs": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["name"],
                            "properties": {"name": {"type": "string"}, "parameters": {"type": "object"}},
                        },
                    },
                },
            }
        }
    },
}
_API: Final[Tree] = {
    "openapi": "3.1.0",
    "info": {"title": "Open Inference Protocol", "version": "2"},
    "paths": {
        "/v2": _path("get"),
        "/v2/health/live": _path("get"),
        "/v2/health/ready": _path("get"),
        "/metrics": _path("get"),
        "/v2/models/{model}": _path("get", "model"),
        "/v2/models/{model}/ready": _path("get", "model"),
        "/v2/models/{model}/versions/{version}": _path("get", "model", "version"),
        "/v2/models/{model}/versions/{version}/ready": _path("get", "model", "version"),
        "/v2/models/{model}/infer": _path("post", "model", requestBody=_INFERENCE),
        INFER: _path("post", requestBody=_INFERENCE),
        RECOMMEND_INFER: _path("post", requestBody=_INFERENCE),
    },
}
