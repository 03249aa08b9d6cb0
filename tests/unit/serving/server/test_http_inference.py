"""Inference over a real connection of uvicorn, in front of a service that records its requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import uvicorn
import uvloop

from shortlist.serving.server.inference.service import InferenceRequest, InferenceResponse
from shortlist.serving.server.inference.service import Service as ScoringService
from shortlist.serving.server.protocols.http_app import http_app
from shortlist.serving.server.protocols.http_inference import connection_class
from shortlist.serving.server.requests.admission import Admission, AdmissionSlot, BufferedBytes
from shortlist.serving.server.requests.senders import Senders
from shortlist.serving.stack_secrets import StackSecrets
from shortlist.spec.serving import Events, Overload, Serving

BODY = json.dumps({"inputs": [{"name": "item_id", "datatype": "INT64", "shape": [2], "data": [1, 2]}]}).encode()
PATH = "/v2/models/shop/infer"
VERSION_PATH = "/v2/models/shop/versions/3/infer"
_PATIENCE_SECONDS = 30


class Service:
    """Returns a score per row; `hold` delays all responses until it is set."""

    request_context, names_version = ScoringService.request_context, ScoringService.names_version
    response_headers = ScoringService.response_headers

    def __init__(self) -> None:
        self.settings = SimpleNamespace(model="shop", version=3, serving=Serving(), stack_secrets=None)
        self.events = None
        self.outputs = ("score",)
        self.requests: list[InferenceRequest] = []
        self.counted: list[int] = []
        self.metrics = SimpleNamespace(count=lambda protocol, status, seconds: self.counted.append(status))
        self.hold = asyncio.Event()
        self.hold.set()
        self.error: Exception | None = None
        self.admission = Admission(Overload())
        self.buffered_bytes = BufferedBytes(self.settings.serving.limits.max_buffered_bytes)

    def outputs_of(self, model: str) -> dict[str, str]:
        return {"score": "FP32"}

    async def answer(self, question: InferenceRequest, place: AdmissionSlot) -> InferenceResponse:
        self.requests.append(question)
        await self.hold.wait()
        if self.error is not None:
            raise self.error
        return InferenceResponse(
            np.ones(question.tensors[0].shape[0], np.float32), question.context.request_id or "own", False
        )

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                await asyncio.sleep(0.005)


class Connection:
    """The client's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    def send(self, body: bytes = BODY, path: str = PATH, *headers: str, length: int | None = None) -> None:
        lines = [f"POST {path} HTTP/1.1", "Host: here", f"Content-Length: {length or len(body)}", *headers, "", ""]
        self.writer.write("\r\n".join(lines).encode() + body)

    async def head(self) -> tuple[int, dict[str, str]]:
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        return int(first.split()[1]), dict(line.lower().split(": ", 1) for line in lines)

    async def receive(self) -> tuple[int, dict[str, str], bytes]:
        status, headers = await self.head()
        return status, headers, await self._reader.readexactly(int(headers["content-length"]))

    async def is_closed(self) -> bool:
        return await self._reader.read() == b""


@asynccontextmanager
async def serving(service: Any) -> AsyncIterator[tuple[uvicorn.Server, Connection]]:
    config = uvicorn.Config(
        http_app(service),
        http=connection_class(service),
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        port=0,
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    connection = Connection(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield server, connection
    finally:  # a test that fails must end
        connection.writer.close()
        server.should_exit = server.force_exit = True
        await running


Test = Callable[[Service, uvicorn.Server, Connection], Awaitable[None]]


def run(test: Test) -> None:
    async def whole() -> None:
        service = Service()
        async with serving(service) as (server, connection):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await test(service, server, connection)

    uvloop.run(whole())


def test_a_response_has_the_request_id_and_the_connection_stays_open() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        for number in range(3):
            connection.send(BODY, VERSION_PATH, f"X-Request-Id: {number}", "X-Shortlist-Track: canary")
            status, headers, body = await connection.receive()
            assert (status, headers["x-shortlist-track"], headers["x-shortlist-version"]) == (200, "canary", "3")
            assert "date" in headers
            assert json.loads(body)["id"] == str(number)
        await service.until(lambda: service.counted == [200, 200, 200])

    run(test)


def test_a_body_in_many_pieces_is_one_request() -> None:
    body = BODY + b" " * 300_000  # uvicorn stops reading with every 64 KiB

    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        connection.send(body[:10], length=len(body))
        for start in range(10, len(body), 50_000):
            await asyncio.sleep(0.01)
            connection.writer.write(body[start : start + 50_000])
        assert (await connection.receive())[0] == 200
        assert len(service.requests) == 1

    run(test)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        service.hold.clear()
        for number in range(3):
            connection.send(BODY, PATH, f"X-Request-Id: {number}")
        await service.until(lambda: len(service.requests) == 1)
        await asyncio.sleep(0.05)
        assert len(service.requests) == 1
        service.hold.set()
        answers = [json.loads((await connection.receive())[2])["id"] for _ in range(3)]
        assert answers == ["0", "1", "2"]

    run(test)


def test_pipelined_requests_are_not_read_before_earlier_responses_are_sent() -> None:
    padded, number = BODY + b" " * 2**15, 1_000  # more than what sockets hold

    async def test(service: Service, _: uvicorn.Server, connection: Connection) -> None:
        service.hold.clear()
        for _number in range(number):
            connection.send(padded)
        bounds = [0, number * len(padded)]
        while bounds[-1] != bounds[-2]:
            await asyncio.sleep(0.3)
            bounds.append(connection.writer.transport.get_write_buffer_size())
        assert len(service.requests) == 1
        assert bounds[-1] > number * len(padded) / 2
        service.hold.set()
        assert [(await connection.receive())[0] for _number in range(number)] == [200] * number

    run(test)


def test_expect_100_continue_is_answered() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        connection.send(b"", PATH, "Expect: 100-continue", length=len(BODY))
        assert (await connection.head())[0] == 100
        connection.writer.write(BODY)
        assert (await connection.receive())[0] == 200

    run(test)


@pytest.mark.parametrize("path", ["/v2/models/sh%6Fp/infer", f"{PATH}?a=b", "/v2/models/shop/versions/3/infer"])
def test_a_path_may_have_several_spellings(path: str) -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        connection.send(BODY, path)
        assert (await connection.receive())[0] == 200
        assert service.requests[0].model == "shop"
        assert service.requests[0].version == ("3" if "versions" in path else "")

    run(test)


def test_a_client_that_disconnects_within_its_body_is_not_scored() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        connection.send(BODY[:20], length=len(BODY))
        await connection.writer.drain()
        connection.writer.close()
        await service.until(lambda: service.counted == [499])
        assert not service.requests

    run(test)


def test_a_client_that_disconnects_does_not_affect_other_clients() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        service.hold.clear()
        connection.send()
        await service.until(lambda: len(service.requests) == 1)
        connection.writer.close()
        await service.until(lambda: not server.server_state.connections)
        # It is not answered any more, though nothing holds it up: what was not computed never is.
        await service.until(lambda: service.counted == [499])

    run(test)


def test_open_requests_are_answered_before_a_stop_and_connections_closed() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        service.hold.clear()
        connection.send()
        await service.until(lambda: len(service.requests) == 1)
        server.should_exit = True
        await asyncio.sleep(0.3)  # longer than it takes to notice
        service.hold.set()
        status, headers, _ = await connection.receive()
        assert (status, headers["connection"]) == (200, "close")
        assert await connection.is_closed()

    run(test)


def test_a_client_that_wants_to_close_is_closed() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        connection.send(BODY, PATH, "Connection: close")
        status, headers, _ = await connection.receive()
        assert (status, headers["connection"]) == (200, "close")
        assert await connection.is_closed()

    run(test)


def test_an_internal_error_is_a_500_without_details_and_the_next_request_is_answered() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        service.error = KeyError("secret")
        connection.send()
        assert (await connection.receive())[::2] == (500, b"Internal Server Error")
        service.error = None
        connection.send()
        assert (await connection.receive())[0] == 200
        await service.until(lambda: service.counted == [500, 200])

    run(test)


def test_malformed_requests_are_refused_with_a_message() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        connection.send(BODY, PATH, "Content-Encoding: br")
        status, headers, body = await connection.receive()
        assert (status, headers["content-type"], headers["accept-encoding"]) == (
            415,
            "application/json",
            "gzip, deflate",
        )
        assert json.loads(body) == {"error": "content-encoding: got 'br'; wanted gzip, deflate or none"}
        connection.send(b"nonsense")
        assert (await connection.receive())[0] == 400
        assert not service.requests

    run(test)


def test_a_client_is_not_told_its_track_unless_it_names_the_version_or_vouches_for_its_users() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        service.settings.serving = Serving(backends=("10.0.0.0/8",))
        service.events = SimpleNamespace(senders=Senders(Events(), "127.0.0.1"))  # type: ignore[assignment]
        for path, headers, tells in (
            (PATH, ["X-Shortlist-Track: canary"], False),
            (PATH, ["X-Shortlist-Track: canary", "X-Forwarded-For: 10.1.2.3, 192.0.2.7"], False),
            (PATH, ["X-Shortlist-Track: canary", "X-Forwarded-For: 192.0.2.7, 10.1.2.3"], True),
            (VERSION_PATH, ["X-Shortlist-Track: canary"], True),
            (PATH, [], True),  # no gateway has split the users
        ):
            connection.send(BODY, path, *headers)
            status, answer_headers, body = await connection.receive()
            assert (status, "x-shortlist-version" in answer_headers, "model_version" in json.loads(body)) == (
                200,
                tells,
                tells,
            )
            assert ("canary" in f"{answer_headers} {body!r}") == (tells and bool(headers))

    run(test)


def test_only_the_gateway_says_the_track_of_a_request() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        service.settings.stack_secrets = secrets = StackSecrets()
        forged = ["X-Shortlist-Track: canary", "X-Shortlist-Rollout: r1", "X-Shortlist-Step: 0", "X-Shortlist-User: u"]
        for key in ([], ["X-Shortlist-Gateway: guessed"], [f"X-Shortlist-Gateway: {secrets.gateway_key}"]):
            connection.send(BODY, PATH, *forged, *key)
            assert (await connection.receive())[0] == 200
        contexts = [request.context for request in service.requests]
        assert [(context.track, context.rollout, context.step) for context in contexts] == [
            (None, None, None),
            (None, None, None),
            ("canary", "r1", 0),
        ]
        assert {context.user for context in contexts} == {"u"}

    run(test)


def test_request_headers_cannot_inject_response_headers() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        connection.send(BODY, PATH, "X-Shortlist-Track: a\x0bb\x01\nSet-Cookie: c")
        status, headers, _ = await connection.receive()
        assert status == 400
        assert "set-cookie" not in headers
        assert not service.requests

    run(test)


def test_of_a_repeated_header_the_first_one_counts() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        connection.send(BODY, PATH, "X-Request-Id: first", "X-Request-Id: second")
        assert (await connection.receive())[0] == 200
        assert service.requests[0].context.request_id == "first"

    run(test)


def test_inference_needs_a_post_request() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        connection.writer.write(f"GET {PATH} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
        status, _, body = await connection.receive()
        assert (status, json.loads(body)) == (405, {"error": f"GET {PATH}: Method Not Allowed"})

    run(test)


def test_a_request_that_would_wait_too_long_is_refused_at_once_with_a_retry_time() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        service.admission = Admission(Overload(max_concurrent=1, max_waiting=0))
        service.hold.clear()
        reader, writer = await asyncio.open_connection(*connection.writer.get_extra_info("peername"))
        second_connection = Connection(reader, writer)
        second_connection.send()
        await service.until(lambda: len(service.requests) == 1)
        connection.send()
        status, headers, body = await connection.receive()
        assert (status, headers["retry-after"]) == (503, "1")
        assert "too much to do" in json.loads(body)["error"]
        assert len(service.requests) == 1  # nothing of it was read
        service.hold.set()
        assert (await second_connection.receive())[0] == 200
        connection.send()
        assert (await connection.receive())[0] == 200
        writer.close()

    run(test)


def test_requests_of_disconnected_clients_are_not_processed() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        service.admission = Admission(Overload(max_concurrent=1))
        service.hold.clear()
        connection.send()
        await service.until(lambda: len(service.requests) == 1)
        address = connection.writer.get_extra_info("peername")
        closed_connections = [Connection(*await asyncio.open_connection(*address)) for _ in range(5)]
        for closed_connection in closed_connections:
            closed_connection.send()
        await service.until(lambda: service.admission.waiting == 5)
        for closed_connection in closed_connections:
            closed_connection.writer.close()
        await service.until(lambda: service.admission.waiting == 0)
        service.hold.set()
        assert (await connection.receive())[0] == 200
        assert len(service.requests) == 1
        await service.until(lambda: sorted(service.counted) == [200, *[499] * 5])

    run(test)
