"""The client over three protocols, with servers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from shortlist.serving.traffic.answers import ClientResponse
from shortlist.serving.traffic.client import Endpoint, connect
from shortlist.serving.traffic.requests import UnsupportedInputError, prepare
from shortlist.serving.triton.triton import RunningTriton

PROTOCOLS = ("http", "json", "grpc")
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def endpoint(triton: RunningTriton, protocol: str, **changed: Any) -> Endpoint:
    port = triton.ports.grpc if protocol == "grpc" else triton.ports.http
    return Endpoint(port=port, model="twice", protocol=protocol, **changed)


def ask(endpoint: Endpoint, values: list[float], user: str | None = None) -> ClientResponse:
    async def once() -> ClientResponse:
        async with connect(endpoint) as client:
            return await client.ask(client.prepare({"x": np.array(values, np.float64)[:, None]}), "request-1", user)

    return asyncio.run(once())


@contextlib.asynccontextmanager
async def listening(handler: Handler) -> AsyncIterator[int]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def http_answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def answering(answer: bytes, received: list[bytes]) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            received.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(answer)
            await writer.drain()
        writer.close()

    return handle


def ask_a_server_that_answers(answer: bytes, rows: int = 1) -> tuple[ClientResponse, list[bytes]]:
    async def once() -> tuple[ClientResponse, list[bytes]]:
        received: list[bytes] = []
        async with listening(answering(answer, received)) as port:
            async with connect(Endpoint(port=port, model="m", protocol="json", patience_seconds=0.2)) as client:
                response = await client.ask(client.prepare({"x": np.zeros(rows)}), "request-1", "ann")
            return response, received

    return asyncio.run(once())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_scores_and_version_are_returned(triton: RunningTriton, protocol: str) -> None:
    answer = ask(endpoint(triton, protocol), [0.0, 1.5, 40.0])
    assert (answer.status, answer.version, answer.error) == (200, "3", "")
    assert answer.scores is not None
    assert answer.scores.tolist() == [0.0, 3.0, 80.0]
    assert answer.scores.dtype == np.float32


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_failing_model_is_a_failure(triton: RunningTriton, protocol: str) -> None:
    answer = ask(endpoint(triton, protocol), [-1.0])
    assert answer.failed
    assert answer.status == 500
    assert "negative" in answer.error


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_client_error_is_refused_and_is_not_a_failure(triton: RunningTriton, protocol: str) -> None:
    answer = ask(endpoint(triton, protocol).model_copy(update={"model": "thrice"}), [1.0])
    assert 400 <= answer.status < 500
    assert not answer.failed


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_response_after_the_timeout_is_a_failure(triton: RunningTriton, protocol: str) -> None:
    answer = ask(endpoint(triton, protocol, timeout_seconds=0.05), [1e7])
    assert answer.failed


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_without_a_server_connecting_is_retried_until_patience_seconds(protocol: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, but not listening: refused
        port = unused.getsockname()[1]
        answer = ask(Endpoint(port=port, model="m", protocol=protocol, patience_seconds=0.2), [1.0])
    assert answer.status == 0
    assert answer.error.startswith("not sent: ")
    assert answer.retries >= 1


def test_a_server_that_starts_late_is_reached() -> None:
    async def story() -> tuple[ClientResponse, int]:
        with socket.socket() as reserved:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(("127.0.0.1", 0))
            port = reserved.getsockname()[1]
        async with connect(Endpoint(port=port, model="m", protocol="json")) as client:
            asking = asyncio.create_task(client.ask(client.prepare({"x": np.zeros(1)}), "request-1"))
            await asyncio.sleep(0.12)
            received: list[bytes] = []
            body = b'{"model_version": "7", "outputs": [{"name": "score", "data": [0.5]}]}'
            server = await asyncio.start_server(answering(http_answer(body), received), "127.0.0.1", port)
            answer = await asking
            server.close()
        return answer, len(received)

    answer, requests = asyncio.run(story())
    assert (answer.status, answer.version, requests) == (200, "7", 1)
    assert answer.retries >= 1


def test_a_sent_request_is_not_resent() -> None:
    connections = 0

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async def story() -> ClientResponse:
        async with listening(hang_up) as port, connect(Endpoint(port=port, model="m", protocol="http")) as client:
            return await client.ask(client.prepare({"x": np.zeros(1)}), "request-1")

    answer = asyncio.run(story())
    assert (answer.status, answer.retries, connections) == (0, 0, 1)


@pytest.mark.parametrize(("breaks", "status", "connections"), [(1, 200, 2), (2, 0, 2)])
def test_a_request_whose_connection_broke_is_resent_if_declared(breaks: int, status: int, connections: int) -> None:
    ids: list[bytes] = []

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        ids.append(next(line for line in head.split(b"\r\n") if line.lower().startswith(b"x-request-id")))
        if len(ids) > breaks:
            writer.write(http_answer(b'{"model_version": "7", "outputs": [{"name": "score", "data": [0.5]}]}'))
            await writer.drain()
        writer.close()

    async def story() -> ClientResponse:
        settings = {"model": "m", "protocol": "json", "resend": True}
        async with listening(hang_up) as port, connect(Endpoint.model_validate({"port": port, **settings})) as client:
            return await client.ask(client.prepare({"x": np.zeros(1)}), "request-1")

    answer = asyncio.run(story())
    assert (answer.status, answer.resent, len(ids)) == (status, True, connections)
    assert len(set(ids)) == 1


@pytest.mark.parametrize(("resend", "requests"), [(True, 2), (False, 1)])
def test_a_grpc_request_whose_connection_broke_is_resent_if_declared(resend: bool, requests: int) -> None:
    sent = 0

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"\0\0\0\4\0\0\0\0\0")  # empty HTTP/2 settings: the connection is made
        await reader.readexactly(len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
        kind = -1
        while kind != 0:  # until the body of a request
            head = await reader.readexactly(9)
            kind = head[3]
            await reader.readexactly(int.from_bytes(head[:3]))
        sent += 1
        writer.close()

    async def story() -> ClientResponse:
        settings = {"model": "m", "protocol": "grpc", "resend": resend}
        async with listening(hang_up) as port, connect(Endpoint.model_validate({"port": port, **settings})) as client:
            return await client.ask(client.prepare({"x": np.zeros(1)}), "request-1")

    answer = asyncio.run(story())
    assert (answer.status, answer.resent, sent) == (0, resend, requests)


def test_id_and_user_are_sent_as_headers_and_the_track_is_returned() -> None:
    body = b'{"model_version": "7", "outputs": [{"name": "score", "data": [0.25, null]}]}'
    answer, received = ask_a_server_that_answers(http_answer(body, "x-shortlist-track: canary"), rows=2)
    assert answer.track == "canary"
    assert answer.scores is not None
    np.testing.assert_array_equal(answer.scores, np.array([0.25, np.nan], np.float32))  # JSON has no NaN
    assert b"x-request-id: request-1" in received[0]
    assert b"x-shortlist-user: ann" in received[0]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (http_answer(b"<html>"), "not an answer of the protocol"),
        (http_answer(b"[]"), "not an answer of the protocol"),
        (http_answer(b'{"outputs": []}'), "holds no output"),
        (http_answer(b'{"outputs": [{"name": "score", "data": ["a"]}]}'), "not an answer of the protocol"),
        (http_answer(b'{"outputs": [{"name": "score", "data": [1, 2]}]}'), "2 scores for 1 rows"),
        (b"nonsense\r\n\r\n", "Error"),
    ],
)
def test_an_invalid_response_is_a_failure(answer: bytes, message: str) -> None:
    response, _ = ask_a_server_that_answers(answer)
    assert response.failed
    assert message in response.error


def test_an_unavailable_upstream_is_a_failure_that_keeps_its_track() -> None:
    answer = http_answer(b"no healthy upstream", "x-shortlist-track: canary", status="503 Service Unavailable")
    response, _ = ask_a_server_that_answers(answer)
    assert (response.status, response.track, response.error, response.failed) == (
        503,
        "canary",
        "no healthy upstream",
        True,
    )


def test_unsupported_arrays_are_refused() -> None:
    with pytest.raises(
        UnsupportedInputError, match="input 'x': an array of complex128 cannot be sent; wanted one of bool,"
    ):
        prepare({"x": np.zeros(1, np.complex128)}, "json", "m")
