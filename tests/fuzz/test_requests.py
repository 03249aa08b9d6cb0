"""Invalid requests of every form to a real server, and through a real Envoy: each is refused, none is a failure."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import grpc
import pytest
from hypothesis import given

from shortlist.spec.serving import Limits, Serving
from tests.fuzz.earlier_failures import GRPC_FAILURES, HTTP_FAILURES
from tests.fuzz.requests import (
    GRPCRequest,
    HTTPRequest,
    binary_requests,
    grpc_requests,
    json_requests,
    post_bytes,
    raw_requests,
    schema_requests,
    valid_request,
    valid_slate_request,
)
from tests.fuzz.running import Running, running_envoy, running_server
from tests.fuzz.world import INFER, RECOMMEND_INFER, SCORES, fuzz_world

LIMITS = Limits(max_request_bytes=2**20, max_buffered_bytes=2**21, body_seconds=30)
REFUSALS = ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED")
HTTP_STRATEGIES = {
    "json": json_requests(slate=False),
    "binary": binary_requests(slate=False),
    "raw": raw_requests(),
    "recommend-json": json_requests(slate=True),
    "recommend-binary": binary_requests(slate=True),
}
GRPC_STRATEGIES = {"grpc": grpc_requests(slate=False), "recommend-grpc": grpc_requests(slate=True)}
PARTS = ("log", "users", "release", "events", "history")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("fuzz")
    serving = {"limits": LIMITS.model_dump(mode="json"), "log": {"feature_sampling": 1.0}}
    with running_server(folder / "server", fuzz_world(folder / "world"), serving) as server:
        yield server


@pytest.fixture(scope="module")
def envoy(server: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_envoy(tmp_path_factory.mktemp("envoy"), server.http, server.grpc, Serving(limits=LIMITS)) as port:
        yield port


@pytest.fixture(scope="module", params=["server", "envoy"])
def ports(request: pytest.FixtureRequest, server: Running) -> tuple[int, int]:
    """Return the ports of HTTP and gRPC."""
    if request.param == "server":
        return server.http, server.grpc
    port = request.getfixturevalue("envoy")
    return port, port


def http_status(port: int, request: HTTPRequest) -> int | None:
    """Return the status of the answer; None where the connection is closed without one."""
    with closing(socket.create_connection(("127.0.0.1", port), timeout=30)) as line:
        answer = http.client.HTTPResponse(line)
        try:
            line.sendall(request.sent)
            if not request.framed:
                line.shutdown(socket.SHUT_WR)  # no more will come of what may be no whole request
            answer.begin()
            while answer.status == 100:
                answer.begin()
            return answer.status
        except (http.client.HTTPException, ConnectionError):
            return None


def check_http(port: int, request: HTTPRequest) -> None:
    status = http_status(port, request)
    assert status is not None or not request.framed
    assert status is None or status < 500


def grpc_code(channel: grpc.Channel, request: GRPCRequest) -> str:
    call = channel.unary_unary(request.method, request_serializer=None, response_deserializer=None)
    try:
        call(request.message, metadata=request.metadata, timeout=30)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def answer_to(port: int, request: dict[str, Any], path: str) -> list[Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with closing(connection):
        connection.request("POST", path, json.dumps(request))
        answer = connection.getresponse()
        assert answer.status == 200
        data: list[Any] = json.loads(answer.read())["outputs"][0]["data"]
        return data


@pytest.fixture(autouse=True)
def unharmed(server: Running) -> Iterator[None]:
    """The server answers valid requests afterwards as before, has failed none, and has lost no part."""
    yield
    assert answer_to(server.http, valid_request(), INFER) == SCORES
    assert len(answer_to(server.http, valid_slate_request(), RECOMMEND_INFER)) == 3
    assert server.metric("shortlist_requests_total", 'outcome="failed"') == 0
    assert {part: server.metric(f"shortlist_{part}_broken") for part in PARTS} == dict.fromkeys(PARTS, 0)


@pytest.mark.parametrize("kind", HTTP_STRATEGIES)
def test_what_once_failed_over_http_is_refused(ports: tuple[int, int], kind: str) -> None:
    for request in HTTP_FAILURES[kind]:
        check_http(ports[0], request)


@pytest.mark.parametrize("kind", HTTP_STRATEGIES)
def test_no_request_over_http_is_a_failure_of_the_server(ports: tuple[int, int], kind: str) -> None:
    given(HTTP_STRATEGIES[kind])(lambda request: check_http(ports[0], request))()


@pytest.mark.parametrize("kind", GRPC_STRATEGIES)
def test_no_call_is_a_failure_of_the_server(ports: tuple[int, int], kind: str) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{ports[1]}") as channel:
        for request in GRPC_FAILURES[kind]:
            assert grpc_code(channel, request) in REFUSALS

        @given(GRPC_STRATEGIES[kind])
        def check(request: GRPCRequest) -> None:
            assert grpc_code(channel, request) in REFUSALS

        check()


def test_no_request_of_the_protocols_schema_is_a_failure_of_the_server(server: Running) -> None:
    @given(schema_requests())
    def check(case: Any) -> None:
        assert case.call(base_url=f"http://127.0.0.1:{server.http}").status_code < 500

    check()


def test_client_errors_and_answers_are_counted_separately(server: Running) -> None:
    def counts() -> dict[str, float]:
        return {
            name: server.metric("shortlist_requests_total", f'outcome="{name}"') for name in ("answered", "refused")
        }

    before = counts()
    bodies = [b"{}", json.dumps(valid_request()).encode(), b"["]
    assert [http_status(server.http, HTTPRequest(post_bytes(body), framed=True)) for body in bodies] == [400, 200, 400]
    assert counts() == {"answered": before["answered"] + 1, "refused": before["refused"] + 2}


def test_a_chunked_body_is_refused_as_soon_as_it_is_too_long(envoy: int) -> None:
    with closing(socket.create_connection(("127.0.0.1", envoy), timeout=60)) as line:
        line.sendall(f"POST {INFER} HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        line.sendall((b"10000\r\n" + b" " * 2**16 + b"\r\n") * 17)  # and no end
        answer = http.client.HTTPResponse(line)
        answer.begin()
        assert (answer.status, "wanted at most 1048576 bytes" in answer.read().decode()) == (413, True)


@contextmanager
def large_bodies(port: int) -> Iterator[None]:
    """While the block runs, four bodies lack a byte; together they are more than the server holds."""
    head = f"POST {INFER} HTTP/1.1\r\nHost: here\r\nContent-Length: {2**20}\r\n\r\n".encode()
    with ExitStack() as stack:
        for _ in range(4):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            line.sendall(head + b" " * (2**20 - 1))
        yield


def test_large_bodies_do_not_keep_small_requests_out(server: Running) -> None:
    old_refusals = server.metric("shortlist_requests_total", 'status="429"')
    with large_bodies(server.http):
        deadline = time.monotonic() + 60
        while server.metric("shortlist_requests_total", 'status="429"') == old_refusals:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert answer_to(server.http, valid_request(), INFER) == SCORES


def test_incomplete_bodies_wait_in_envoy(server: Running, envoy: int) -> None:
    old_refusals = server.metric("shortlist_requests_total", 'status="429"')
    with large_bodies(envoy):
        assert answer_to(envoy, valid_request(), INFER) == SCORES
        assert server.metric("shortlist_requests_total", 'status="429"') == old_refusals
