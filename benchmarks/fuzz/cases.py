"""Cases by kind and number: the same number is the same request, and every minimised failure comes first."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from tritonclient.grpc import service_pb2

from benchmarks.fuzz.mutation import as_json, changed_bytes, changed_tree, odd_value

MODEL: Final = "shop"
INFER: Final = f"/v2/models/{MODEL}/infer"
RECOMMEND: Final = f"{MODEL}.recommend"
RECOMMEND_INFER: Final = f"/v2/models/{RECOMMEND}/infer"
KINDS: Final = ("json", "binary", "raw", "grpc", "recommend-json", "recommend-binary", "recommend-grpc")
_SERVICE: Final = "/inference.GRPCInferenceService"
_METHODS: Final = ("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelInfer")
_COLUMNS: Final[Mapping[str, tuple[str, Callable[[Random], Any]]]] = {
    "user_id": ("INT64", lambda random: random.choice((1, 2, 3, None, 2**40, *random.sample(range(10**9), 3)))),
    "item_id": ("BYTES", lambda random: f"item {random.randrange(12)}"),
    "page": ("BYTES", lambda random: random.choice(("home", None, "", "漢字"))),
    "position": ("INT64", lambda random: random.randint(-3, 9)),
    "code": ("BYTES", lambda random: f"{random.getrandbits(64):x}"),
    "price": ("FP64", lambda random: random.choice((1.5, -0.0, 1e12, None))),
    "made": ("BYTES", lambda random: f"2026-01-{random.randint(1, 31):02}"),
    "event_time": ("INT64", lambda random: 1_770_000_000_000_000 + random.randrange(10**9)),
}
_WIDE: Final[Mapping[str, tuple[str, tuple[int, ...], Callable[[Random], Any]]]] = {
    "words": ("BYTES", (2, 2, 2, 0, 40, 1_000, 1_001), lambda random: random.choice(("a", "b", "", None))),
    "places": ("INT64", (3, 3, 3, 0, 40, 1_000, 1_001), lambda random: random.choice((1, 2, None))),
    "query": ("FP32", (2, 2, 2, 3), lambda random: random.uniform(-1, 1)),
}
_LONG_TEXTS: Final = ("x" * 16_384, "x" * 16_385, "\x01" * 16_384, "漢" * 16_384, "\U0001f600" * 5_000)
_ZEROS: Final = "0" * 5_000


@dataclass(frozen=True)
class HTTPCase:
    """Bytes of one connection."""

    sent: bytes
    """A whole request, or what is none."""
    framed: bool
    """Whether exactly one answer must come."""


@dataclass(frozen=True)
class GRPCCase:
    """One call."""

    method: str
    message: bytes
    metadata: tuple[tuple[str, str | bytes], ...] = ()


def post(body: bytes, *headers: str, path: str = INFER, zeros: str = "") -> bytes:
    """Return a request; `zeros` stand before its length."""
    length = f"Content-Length: {zeros}{len(body)}"
    head = "\r\n".join((f"POST {path} HTTP/1.1", "Host: here", length, *headers, "", ""))
    return head.encode("latin-1") + body


def good_slate() -> dict[str, Any]:
    """Return what is answered with a slate of three items."""
    return {"inputs": [{"name": "k", "datatype": "INT64", "shape": [1], "data": [3]}]}


def good_request() -> dict[str, Any]:
    """Return what is answered with two scores."""
    items = {"name": "item_id", "datatype": "BYTES", "shape": [2], "data": ["item 0", "item 2"]}
    return {"inputs": [items, {"name": "position", "datatype": "INT64", "shape": [1], "data": [1]}]}


def http_case(kind: str, seed: int, number: int) -> HTTPCase:
    """Return a case that comes over HTTP."""
    seeds = HTTP_SEEDS[kind]
    if number < len(seeds):
        return seeds[number]
    random, slates = Random(f"{seed} {kind} {number}"), kind.startswith("recommend")
    if kind == "raw":
        return _raw_case(random)
    tree, path = (_slate_tree(random), RECOMMEND_INFER) if slates else (_tree(random), INFER)
    return (_json_case if kind.endswith("json") else _binary_case)(random, tree, path)


def grpc_case(kind: str, seed: int, number: int) -> GRPCCase:
    """Return a case that comes over gRPC."""
    seeds = GRPC_SEEDS[kind]
    if number < len(seeds):
        return seeds[number]
    random = Random(f"{seed} {kind} {number}")
    method = f"{_SERVICE}/{random.choice((*_METHODS, *['ModelInfer'] * 15, 'ModelConfig', 'RepositoryIndex'))}"
    message = _message(random, *((_slate_tree(random), RECOMMEND) if kind != "grpc" else (_tree(random), MODEL)))
    if random.random() < 0.5:
        message = changed_bytes(random, message)
    return GRPCCase(method, message, _metadata(random) if random.random() < 0.2 else ())


def _slate_tree(random: Random) -> dict[str, Any]:
    """Return a request for a slate."""
    tree = _tree(random, rows=1, left_out=("item_id",))
    k = random.choice((1, 2, 3, 3, 3, 3, 3, 3, 8, 8, 8, 8, 0, 9, -1, 2**40))
    tree["inputs"].append({"name": "k", "datatype": "INT64", "shape": [1], "data": [k]})
    if random.random() < 0.5:
        value = _COLUMNS["item_id"][1]
        recent = [random.choice((value(random), None, "", "x")) for _ in range(random.choice((0, 1, 3, 30)))]
        if random.random() < 0.05:
            recent = recent * 40 + [random.choice(_LONG_TEXTS)]
        tree["inputs"].append({"name": "recent_items", "datatype": "BYTES", "shape": [len(recent)], "data": recent})
    random.shuffle(tree["inputs"])
    return tree


def _tree(random: Random, rows: int | None = None, left_out: Sequence[str] = ()) -> dict[str, Any]:
    rows = random.choice((0, 1, 1, 2, 5)) if rows is None else rows
    inputs: list[dict[str, Any]] = []
    for name, (datatype, value) in _COLUMNS.items():
        if name in left_out or (name != "item_id" and random.random() < 0.5):
            continue
        count = random.choice((1, rows))
        data = [value(random) for _ in range(count)]
        if datatype == "BYTES" and data and random.random() < 0.03:
            data[-1] = random.choice(_LONG_TEXTS)
        inputs.append({"name": name, "datatype": datatype, "shape": [count], "data": data})
    for name, (datatype, widths, value) in _WIDE.items():
        if random.random() < 0.3:
            width, count = random.choice(widths), random.choice((1, rows))
            wide = [[value(random) for _ in range(width)] for _ in range(count)]
            inputs.append({"name": name, "datatype": datatype, "shape": [count, width], "data": wide})
    random.shuffle(inputs)
    extra_fields: dict[str, Any] = {}
    if random.random() < 0.3:
        extra_fields["outputs"] = [{"name": "score", "parameters": {"binary_data": random.random() < 0.5}}]
    if random.random() < 0.3:
        extra_fields |= {"id": "mine", "parameters": {"binary_data_output": True}}
    return {"inputs": inputs, **extra_fields}


def _json_case(random: Random, tree: dict[str, Any], path: str) -> HTTPCase:
    if random.random() < (0.9 if path == INFER else 0.5):
        tree = changed_tree(random, tree)
    body = as_json(random, tree)
    if random.random() < 0.25:
        body = changed_bytes(random, body)
    zeros = random.choice((_ZEROS, "0" * 30)) if random.random() < 0.03 else ""
    return HTTPCase(post(body, *_headers(random), path=path, zeros=zeros), framed=True)


def _binary_case(random: Random, tree: dict[str, Any], path: str) -> HTTPCase:
    tail = b""
    for tensor in tree["inputs"]:
        if random.random() < 0.7:
            raw = _packed(tensor)
            del tensor["data"]
            tensor["parameters"] = {"binary_data_size": len(raw)}
            tail += raw
    if random.random() < (0.6 if path == INFER else 0.3):
        tree = changed_tree(random, tree)
    if random.random() < 0.4:
        tail = changed_bytes(random, tail)
    head = as_json(random, tree)
    length = str(len(head))
    if random.random() < 0.3:
        length = random.choice(("0", "-1", "9" * 4_300, "", " ", "1e3", "0x10", "\xb2", str(len(head) + 1), "1" * 18,
                                _ZEROS + length, "0" * 9 + length))  # fmt: skip
    lines = (f"Inference-Header-Content-Length: {length}", *_headers(random))
    return HTTPCase(post(head + tail, *lines, path=path), framed=True)


def _packed(tensor: Mapping[str, Any]) -> bytes:
    flat = [value for row in tensor["data"] for value in (row if isinstance(row, list) else [row])]
    if tensor["datatype"] == "BYTES":
        texts = [(value or "").encode() for value in flat]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    code = {"INT64": "q", "FP64": "d", "FP32": "f"}[tensor["datatype"]]
    return struct.pack(f"<{len(flat)}{code}", *(value or 0 for value in flat))


def _headers(random: Random) -> list[str]:
    if random.random() < 0.8:
        return []
    odd = ("", "x" * 300, "\xff\xfe", "canary", "-1", "1" * 5_000, "\t", "a,b", "%", "identity", "gzip", "\xb2",
           "0" * 5_000 + "1", "00001")  # fmt: skip
    names = (
        "X-Shortlist-Track", "X-Shortlist-User", "X-Shortlist-Step", "X-Shortlist-Rollout", "X-Request-Id",
        "Content-Encoding", "Content-Type", "Accept", "Te", "Traceparent",
    )  # fmt: skip
    return [f"{random.choice(names)}: {random.choice(odd)}" for _ in range(random.randint(1, 3))]


_PATHS: Final = (
    INFER, f"{INFER}?a=b", RECOMMEND_INFER, f"/v2/models/{RECOMMEND}",
    "/v2", "/v2/health/live", "/v2/health/ready", f"/v2/models/{MODEL}", "/metrics", "*",
    f"/v2/models/{MODEL}/versions/3/infer", f"/v2/models/{MODEL}/versions/x/ready", "/v2/models/%00%ff/infer", "//v2",
    "http://[/v2", "/v2/models/" + "x" * 3_000 + "/infer", "/v2/../metrics", "/%", "", "/\xff", "here:80",
)  # fmt: skip
_LINES: Final = (
    "Host: here", "Host: [", "Host: a:b:c", "Host:", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip",
    "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: odd", "Content-Length: 5", "Content-Length: 0",
    "Content-Length: 5, 5", "Content-Length: -1", f"Content-Length: {'9' * 30}", "Expect: 100-continue", "Expect: odd",
    f"Content-Length: {_ZEROS}5", f"Content-Length: {_ZEROS}",
    "Connection: close", "Connection: upgrade", "Upgrade: websocket", "Upgrade: h2c", "HTTP2-Settings: AA",
    "Content-Length: x", ": empty", "no colon", " folded: line", "X: \x00", "X: \x7f", "Content-Length: 1048577000",
)  # fmt: skip


def _raw_case(random: Random) -> HTTPCase:
    if random.random() < 0.3:
        return HTTPCase(changed_bytes(random, post(json.dumps(good_request()).encode())), framed=False)
    method = random.choice(("POST", "POST", "GET", "HEAD", "PUT", "OPTIONS", "CONNECT", "PRI", "odd", "G" * 300))
    version = random.choice(("HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9.9", "HTTP/1.1.1", ""))
    lines = [f"{method} {random.choice(_PATHS)} {version}"]
    lines += random.choices(_LINES, k=random.randint(0, 4))
    chunk = random.choice(
        (b"5\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffffff\r\n", b"-1\r\n", b"5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n")
    )
    body = random.choice((b"", b"hello", chunk, chunk, b"{}", random.randbytes(20)))
    sent = "\r\n".join((*lines, "", "")).encode("latin-1") + body
    return HTTPCase(changed_bytes(random, sent) if random.random() < 0.2 else sent, framed=False)


def _message(random: Random, tree: dict[str, Any], model: str) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=model, id=random.choice(("", "mine", "x" * 300)))
    raw = random.random() < 0.5
    for each in tree["inputs"]:
        name = str(odd_value(random)).replace("\ud800", "") if random.random() < 0.1 else each["name"]
        datatype = random.choice((each["datatype"], each["datatype"], "INT8", "FP16", "odd", ""))
        shape = random.choice((each["shape"], each["shape"], [], [-1], [2**40, 0], [0], [1] * 20))
        tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
        if raw:
            request.raw_input_contents.append(
                _packed(each) if random.random() < 0.8 else changed_bytes(random, _packed(each))
            )
        elif each["datatype"] == "BYTES":
            flat = [value for row in each["data"] for value in (row if isinstance(row, list) else [row])]
            tensor.contents.bytes_contents.extend((value or "").encode() for value in flat)
        else:
            tensor.contents.int64_contents.extend(random.randrange(9) for _ in each["data"])
    if random.random() < 0.1:
        request.outputs.add(name=random.choice(("score", "other", "")))
    if random.random() < 0.1:
        request.raw_input_contents.append(b"more")
    return bytes(request.SerializeToString())


def _metadata(random: Random) -> tuple[tuple[str, str | bytes], ...]:
    odd = ("", "x" * 300, "canary", "-1", " ", "~", "a b")
    names = ("x-shortlist-track", "x-shortlist-user", "x-shortlist-step", "x-request-id", "grpc-encoding-odd")
    binary: tuple[tuple[str, str | bytes], ...] = (("x-shortlist-track-bin", b"\x00\xff"),)
    return ((random.choice(names), random.choice(odd)), *(binary if random.random() < 0.3 else ()))


def _with(**changes: Any) -> HTTPCase:
    return HTTPCase(post(json.dumps({**good_request(), **changes}).encode()), framed=True)


def _with_input(**changes: Any) -> HTTPCase:
    request = good_request()
    request["inputs"][0] |= changes
    return HTTPCase(post(json.dumps(request).encode()), framed=True)


def _nested(shape: list[int]) -> HTTPCase:
    text = json.dumps({"inputs": [{"name": "position", "datatype": "INT64", "shape": shape, "data": [7]}]})
    return HTTPCase(post(text.replace("[7]", "[" * 1_000 + "7" + "]" * 1_000).encode()), framed=True)


def _length(text: str) -> HTTPCase:
    body = json.dumps(good_request()).encode()
    return HTTPCase(post(body, f"Inference-Header-Content-Length: {text}"), framed=True)


def _slate(*inputs: dict[str, Any]) -> HTTPCase:
    """Return a request for a slate with further inputs."""
    slate = good_slate()
    slate["inputs"] += inputs
    return HTTPCase(post(json.dumps(slate).encode(), path=RECOMMEND_INFER), framed=True)


def _binary(*inputs: tuple[str, str, list[int], bytes], path: str = INFER) -> HTTPCase:
    """Return a request whose inputs (name, datatype, shape, bytes) are all in the binary form."""
    headers = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(raw)}}
        for name, datatype, shape, raw in inputs
    ]
    head, tail = json.dumps({"inputs": headers}).encode(), b"".join(raw for *_, raw in inputs)
    return HTTPCase(post(head + tail, f"Inference-Header-Content-Length: {len(head)}", path=path), framed=True)


def _texts(text: bytes, count: int) -> bytes:
    return (struct.pack("<I", len(text)) + text) * count


def _raw(*lines: str, body: bytes = b"", framed: bool = False) -> HTTPCase:
    return HTTPCase("\r\n".join((*lines, "", "")).encode("latin-1") + body, framed)


_TAGS: Final = b"".join(_texts(b"%d" % number, 1) for number in range(900))

HTTP_SEEDS: Final[Mapping[str, tuple[HTTPCase, ...]]] = {
    "json": (
        _with(outputs=["score"]), _with(outputs=[[]]), _with(outputs=[{"name": "score", "parameters": [1]}]),
        _with(parameters=7), _with(id={}), _with(inputs=[7]), _with(inputs=[{"parameters": 7}]),
        _with_input(datatype=[]), _with_input(datatype={}), _with_input(name=[]), _with_input(shape=[2**70]),
        _with_input(shape=[[2]]), _with_input(data=[[[1]], "a"]), _with_input(name="x" * 2_000_000),
        _nested([1]), _nested([1, 1]), _nested([2, 1]),
        HTTPCase(post(json.dumps(good_request()).encode(), zeros=_ZEROS), framed=True),
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
_SEEDS: Final = (
    GRPCCase(f"{_SERVICE}/ModelInfer", b"\xff"),
    GRPCCase(f"{_SERVICE}/ModelReady", b"\x0a\x05ab"),
    GRPCCase(f"{_SERVICE}/ModelInfer", b"\x0a\x02\xff\xfe"),  # a text that is not UTF-8
    GRPCCase(f"{_SERVICE}/Nothing", b""),
    GRPCCase("/other.Service/ModelInfer", b""),
    GRPCCase(
        f"{_SERVICE}/ModelInfer",
        service_pb2.ModelInferRequest(model_name="\u6f22" * 5_000).SerializeToString(),
        (("x-shortlist-track", "a b"),),
    ),
)
GRPC_SEEDS: Final = {"grpc": _SEEDS, "recommend-grpc": (GRPCCase(f"{_SERVICE}/ModelInfer", _SLATE_MESSAGE),)}
