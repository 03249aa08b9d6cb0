"""Limits of a real Envoy's clients: bytes of a request, time, connections, streams."""

from __future__ import annotations

import http.client
import json
import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as services

from shortlist.spec.serving import Limits, Serving
from tests.fuzz.running import SECRETS, free_ports, running_envoy
from tests.fuzz.world import INFER, MODEL

LONGEST = 100_000
TOO_LONG = {"error": f"the body: wanted at most {LONGEST} bytes (serving.limits.max_request_bytes)"}
ECHO = Path(__file__).with_name("echo_server.py")
STREAMS = 8
FRAME_SETTINGS, FRAME_HEADERS, FRAME_RESET = 4, 1, 3


@pytest.fixture(scope="module")
def stub_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Ports of a stub server for HTTP and gRPC."""
    settings = tmp_path_factory.mktemp("echo") / "echo.json"
    http_port, grpc_port, health_port = free_ports(3)
    ports = {"http_port": http_port, "grpc_port": grpc_port, "health_port": health_port}
    settings.write_text(json.dumps({"version": 1, **ports}))
    process = subprocess.Popen([sys.executable, str(ECHO), str(settings)])
    try:
        yield http_port, grpc_port
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def envoy(tmp_path_factory: pytest.TempPathFactory, stub_server: tuple[int, int]) -> Iterator[int]:
    """An Envoy with low limits, in front of a stub server."""
    limits = Limits(
        max_request_bytes=LONGEST, max_buffered_bytes=2**25, body_seconds=2, idle_seconds=3, max_streams=STREAMS
    )
    folder = tmp_path_factory.mktemp("envoy") / "envoy"
    with running_envoy(folder, *stub_server, Serving(limits=limits)) as port:
        deadline = time.monotonic() + 60
        while ask(port)[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield port


def ask(port: int, body: bytes = b"{}") -> tuple[int, object]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", INFER, body)
        answer = connection.getresponse()
        return answer.status, json.load(answer)


def answer_to(port: int, sent: bytes) -> tuple[int, object]:
    """Send bytes and nothing more; return the status and the JSON of the response."""
    with closing(socket.create_connection(("127.0.0.1", port), timeout=60)) as line:
        line.sendall(sent)
        answer = http.client.HTTPResponse(line)
        answer.begin()
        return answer.status, json.load(answer)


def head(*lines: str) -> bytes:
    return "\r\n".join((f"POST {INFER} HTTP/1.1", "Host: here", *lines, "", "")).encode()


def test_a_body_of_the_longest_length_passes(envoy: int) -> None:
    assert ask(envoy, b" " * LONGEST)[0] == 200


def test_a_declared_length_above_the_limit_is_refused_before_the_body(envoy: int) -> None:
    assert answer_to(envoy, head(f"Content-Length: {LONGEST + 1}")) == (413, TOO_LONG)


def test_a_slow_body_times_out(envoy: int) -> None:
    status, body = answer_to(envoy, head("Content-Length: 1000") + b"{")
    assert (status, body) == (
        408, {"error": "the request: wanted all of it within 2 s (serving.limits.body_seconds)"},
    )  # fmt: skip


@pytest.mark.parametrize("encoding", ["odd", "gzip, chunked"])
def test_an_unknown_encoding_is_a_client_error(envoy: int, encoding: str) -> None:
    assert answer_to(envoy, head(f"Transfer-Encoding: {encoding}") + b"hello")[0] == 400


def test_a_silent_connection_is_closed(envoy: int) -> None:
    with closing(socket.create_connection(("127.0.0.1", envoy), timeout=60)) as line:
        assert line.recv(1) == b""


def is_open(line: socket.socket) -> bool:
    """Whether the other side has not closed a connection within a while; who closes, does so at once."""
    line.settimeout(0.2)
    try:
        return line.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


@pytest.mark.long
def test_a_connection_beyond_the_limit_is_closed_and_the_others_stay_open(tmp_path: Path) -> None:
    max_connections = 16
    with running_envoy(
        tmp_path / "envoy", *free_ports(2), Serving(limits=Limits(max_connections=max_connections))
    ) as port:
        time.sleep(1)  # the connection by which the Envoy was tried is over
        with ExitStack() as lines:

            def connect() -> socket.socket:
                return lines.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))

            first, *other_connections = (connect() for _ in range(max_connections))
            assert is_open(first) and is_open(other_connections[-1])
            assert not is_open(connect())
            first.close()
            deadline = time.monotonic() + 60
            while not is_open(connect()):
                assert time.monotonic() < deadline
            assert not is_open(connect())
            assert all(is_open(connection) for connection in other_connections)


RATE = 3
BURST = 2 * RATE


@pytest.fixture
def limited_envoy(
    tmp_path: Path, stub_server: tuple[int, int], envoy: int, request: pytest.FixtureRequest
) -> Iterator[int]:
    """An Envoy that takes few requests a second of an address that is not `request.param`; the server is ready."""
    serving = Serving(backends=[*request.param], limits=Limits(requests_per_second=RATE))
    with running_envoy(tmp_path / "envoy", *stub_server, serving) as port:
        yield port


def statuses(port: int, count: int, address: str = "127.0.0.1", method: str = "POST", **headers: str) -> list[int]:
    """Return the statuses of requests from an address."""
    answers = []
    for _ in range(count):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=(address, 0))
        with closing(connection):
            connection.request(method, INFER if method == "POST" else "/v2/health/live", b"{}", headers)
            answers.append(connection.getresponse().status)
    return answers


@pytest.mark.parametrize("limited_envoy", [()], indirect=True)
def test_an_address_sends_as_many_requests_as_declared(limited_envoy: int, tmp_path: Path) -> None:
    began = time.monotonic()
    refused = statuses(limited_envoy, 40 * BURST).count(429)
    passed_at_most = BURST + RATE * (time.monotonic() - began) + 1
    assert refused >= 40 * BURST - passed_at_most
    assert statuses(limited_envoy, BURST, "127.0.0.2") == [200] * BURST  # the address has a rate of its own
    token = {"authorization": f"Bearer {SECRETS.backend_token}"}
    assert statuses(limited_envoy, 5 * BURST, **token) == [200] * 5 * BURST
    assert 429 not in statuses(limited_envoy, 5 * BURST, method="GET")
    text = f"too many requests from one address: wanted at most {RATE} a second (serving.limits.requests_per_second)"
    with closing(http.client.HTTPConnection("127.0.0.1", limited_envoy, timeout=60)) as connection:
        while True:
            connection.request("POST", INFER, b"{}")
            answer = connection.getresponse()
            content = json.load(answer)
            if answer.status == 429:
                break
    assert answer.headers["retry-after"] == "1"
    assert content["error"].startswith(text)
    deadline = time.monotonic() + 60
    while "RL" not in (log := (tmp_path / "envoy/access.jsonl").read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    refusals = [line for line in map(json.loads, log.splitlines()) if line["flags"] == "RL"]
    assert {line["track"] for line in refusals} == {None}  # of no track, so that they are no evidence against one


@pytest.mark.parametrize("limited_envoy", [("127.0.0.0/30", "2001:db8::/32")], indirect=True)
def test_a_declared_backend_has_no_limit_by_its_address(limited_envoy: int) -> None:
    assert statuses(limited_envoy, 5 * BURST) == [200] * 5 * BURST
    assert 429 in statuses(limited_envoy, 5 * BURST, "127.0.0.9")


@pytest.mark.parametrize("limited_envoy", [()], indirect=True)
def test_over_grpc_too_many_requests_exhaust_a_resource(limited_envoy: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{limited_envoy}") as channel:
        infer = services.GRPCInferenceServiceStub(channel).ModelInfer
        with pytest.raises(grpc.RpcError, match=r"serving\.limits\.requests_per_second") as error:
            for _ in range(100 * BURST):
                infer(messages.ModelInferRequest(model_name=MODEL))
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_long_headers_are_refused_and_fill_no_log(envoy: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    log = next(tmp_path_factory.getbasetemp().glob("envoy*/envoy/access.jsonl"))
    assert answer_to(envoy, head(f"x-anything: {'a' * 50_000}", "content-length: 0"))[0] == 431
    request = f"POST {INFER}?{'q' * 9_000} HTTP/1.1\r\nHost: here\r\nx-request-id: long-{'i' * 2_000}\r\n"
    assert answer_to(envoy, f"{request}x-shortlist-user: {'u' * 2_000}\r\ncontent-length: 0\r\n\r\n".encode())[0] == 200
    deadline = time.monotonic() + 60
    while not (lines := [line for line in log.read_text().splitlines() if '"long-' in line]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (line,) = map(json.loads, lines)
    assert (len(line["id"]), len(line["user"]), len(line["path"])) == (256, 256, 512)
    assert max(map(len, log.read_text().splitlines())) < 2_000


@pytest.mark.long
@pytest.mark.parametrize(
    "limits", [Limits(), Limits(max_connections=15_100), Limits(max_request_bytes=2**16, max_buffered_bytes=2**20)]
)
def test_fifteen_thousand_idle_connections_keep_nobody_out(limits: Limits, tmp_path: Path) -> None:
    files, max_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if max_files < 16_000:
        pytest.skip(f"a process may open {max_files} files here; each connection is one")
    http_port, grpc_port, health_port = free_ports(3)
    ports = {"http_port": http_port, "grpc_port": grpc_port, "health_port": health_port}
    (tmp_path / "echo.json").write_text(json.dumps({"version": 1, **ports}))
    process = subprocess.Popen([sys.executable, str(ECHO), str(tmp_path / "echo.json")])
    resource.setrlimit(resource.RLIMIT_NOFILE, (max_files, max_files))
    try:
        serving = Serving(limits=limits)
        with running_envoy(tmp_path / "envoy", http_port, grpc_port, serving) as port, ExitStack() as lines:
            connections = [
                lines.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(15_000)
            ]
            assert [ask(port)[0] for _ in range(20)] == [200] * 20
            if limits != Limits():  # of all connections, or of a heap of 132 MiB, they took half
                connections[0].settimeout(30)
                assert connections[0].recv(1) == b""  # half a minute before an idle connection is closed otherwise
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, max_files))
        process.kill()
        process.wait()


def test_over_grpc_refusals_have_the_status_of_client_errors(envoy: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{envoy}") as channel:
        stub = services.GRPCInferenceServiceStub(channel)
        long = messages.ModelInferRequest(model_name=MODEL, raw_input_contents=[b" " * LONGEST])
        with pytest.raises(grpc.RpcError) as refused:
            stub.ModelInfer(long, timeout=60)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert refused.value.details() == TOO_LONG["error"]
        silent = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as slow:
            silent(_slow_body(), timeout=60)
        assert slow.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "within 2 s" in slow.value.details()
        assert stub.ModelInfer(messages.ModelInferRequest(model_name=MODEL), timeout=60).model_name == MODEL


def _slow_body() -> Iterator[bytes]:
    time.sleep(30)
    yield b""


class HTTP2:
    """A client that sends complete requests and reads no response bodies."""

    def __init__(self, port: int) -> None:
        self.line = socket.create_connection(("127.0.0.1", port), timeout=60)
        no_window = struct.pack(">HI", 4, 0)
        self.line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self._frame(FRAME_SETTINGS, 0, 0, no_window))

    def ask(self, stream: int) -> None:
        """Request the metadata."""
        fields = ((":method", "GET"), (":scheme", "http"), (":path", "/v2"), (":authority", "here"))
        block = b"".join(b"\x00" + self._text(name) + self._text(value) for name, value in fields)
        self.line.sendall(self._frame(FRAME_HEADERS, 0x5, stream, block))  # the end of headers, and of the request

    def frames(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield kind, stream and content of each frame until the connection ends."""
        with self.line.makefile("rb") as reader:
            while len(start := reader.read(9)) == 9:
                length = int.from_bytes(start[:3])
                yield start[3], int.from_bytes(start[5:9]), reader.read(length)

    @staticmethod
    def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
        return len(content).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + content

    @staticmethod
    def _text(text: str) -> bytes:
        return bytes((len(text),)) + text.encode()  # literal, not compressed


def test_a_client_that_reads_no_response_has_few_streams_and_they_end(envoy: int) -> None:
    client = HTTP2(envoy)
    with closing(client.line):
        for number in range(STREAMS):
            client.ask(2 * number + 1)
        announced, ended = {}, set()
        for kind, stream, content in client.frames():
            if kind == FRAME_SETTINGS:
                announced |= dict(struct.iter_unpack(">HI", content))
            if kind == FRAME_RESET:
                ended.add(stream)
            if len(ended) == STREAMS:
                break
        assert announced[3] == STREAMS  # SETTINGS_MAX_CONCURRENT_STREAMS
        assert ended == {2 * number + 1 for number in range(STREAMS)}


def test_clients_that_read_no_responses_do_not_affect_other_clients(envoy: int) -> None:
    clients = [HTTP2(envoy) for _ in range(10)]
    try:
        for number in range(200):
            for client in clients:
                client.ask(2 * number + 1)
            if number % 10 == 0:
                assert ask(envoy)[0] == 200
    except (BrokenPipeError, ConnectionResetError):  # who goes on asking beyond the limit is cut off
        pass
    finally:
        for client in clients:
            client.line.close()
    assert [ask(envoy)[0] for _ in range(20)] == [200] * 20
