"""Inference over a real connection of uvicorn's, in front of a service that says what it was asked."""

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

from shortlist.serving.server.admission import Admission, AdmissionSlot, BufferedBytes
from shortlist.serving.server.http_app import http_app
from shortlist.serving.server.http_inference import connection_class
from shortlist.serving.server.service import InferenceRequest, InferenceResponse
from shortlist.spec.serving import Overload, Serving

BODY = json.dumps({"inputs": [{"name": "item_id", "datatype": "INT64", "shape": [2], "data": [1, 2]}]}).encode()
PATH = "/v2/models/shop/infer"
_PATIENCE_SECONDS = 30


class Service:
    """Answers with a score per row; `hold` keeps all answers back until it is set."""

    def __init__(self) -> None:
        self.settings = SimpleNamespace(model="shop", version=3, serving=Serving())
        self.outputs = ("score",)
        self.asked: list[InferenceRequest] = []
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
        self.asked.append(question)
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
    """A client's end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    def send(self, body: bytes = BODY, path: str = PATH, *headers: str, length: int | None = None) -> None:
        told = [f"POST {path} HTTP/1.1", "Host: here", f"Content-Length: {length or len(body)}", *headers, "", ""]
        self.writer.write("\r\n".join(told).encode() + body)

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


def test_an_answer_names_its_request_and_the_connection_stays_open() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        for number in range(3):
            connection.send(BODY, PATH, f"X-Request-Id: {number}", "X-Shortlist-Track: canary")
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
        assert len(service.asked) == 1

    run(test)


def test_a_request_sent_before_the_answer_to_the_one_before_is_answered_after_it() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        service.hold.clear()
        for number in range(3):
            connection.send(BODY, PATH, f"X-Request-Id: {number}")
        await service.until(lambda: len(service.asked) == 1)
        await asyncio.sleep(0.05)
        assert len(service.asked) == 1
        service.hold.set()
        answers = [json.loads((await connection.receive())[2])["id"] for _ in range(3)]
        assert answers == ["0", "1", "2"]

    run(test)


def test_who_sends_ahead_of_the_answers_is_read_no_further_until_they_are_there() -> None:
    padded, number = BODY + b" " * 2**15, 1_000  # more than what sockets hold

    async def test(service: Service, _: uvicorn.Server, connection: Connection) -> None:
        service.hold.clear()
        for _number in range(number):
            connection.send(padded)
        left = [0, number * len(padded)]
        while left[-1] != left[-2]:
            await asyncio.sleep(0.3)
            left.append(connection.writer.transport.get_write_buffer_size())
        assert len(service.asked) == 1
        assert left[-1] > number * len(padded) / 2
        service.hold.set()
        assert [(await connection.receive())[0] for _number in range(number)] == [200] * number

    run(test)


def test_whoever_asks_whether_to_go_on_is_told_to() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        connection.send(b"", PATH, "Expect: 100-continue", length=len(BODY))
        assert (await connection.head())[0] == 100
        connection.writer.write(BODY)
        assert (await connection.receive())[0] == 200

    run(test)


@pytest.mark.parametrize("path", ["/v2/models/sh%6Fp/infer", f"{PATH}?a=b", "/v2/models/shop/versions/3/infer"])
def test_a_path_may_be_written_in_several_ways(path: str) -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        connection.send(BODY, path)
        assert (await connection.receive())[0] == 200
        assert service.asked[0].model == "shop"
        assert service.asked[0].version == ("3" if "versions" in path else "")

    run(test)


def test_a_client_that_goes_away_within_its_body_is_no_question() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        connection.send(BODY[:20], length=len(BODY))
        await connection.writer.drain()
        connection.writer.close()
        await service.until(lambda: service.counted == [499])
        assert not service.asked

    run(test)


def test_a_client_that_goes_away_before_the_answer_harms_nobody() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        service.hold.clear()
        connection.send()
        await service.until(lambda: len(service.asked) == 1)
        connection.writer.close()
        await service.until(lambda: not server.server_state.connections)
        # It is not answered any more, though nothing holds it up: what was not computed never is.
        await service.until(lambda: service.counted == [499])

    run(test)


def test_what_is_under_way_is_answered_before_a_stop_and_the_connection_closed() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        service.hold.clear()
        connection.send()
        await service.until(lambda: len(service.asked) == 1)
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


def test_a_fault_of_ours_is_500_without_a_word_and_the_next_request_is_answered() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        service.error = KeyError("secret")
        connection.send()
        assert (await connection.receive())[::2] == (500, b"Internal Server Error")
        service.error = None
        connection.send()
        assert (await connection.receive())[0] == 200
        await service.until(lambda: service.counted == [500, 200])

    run(test)


def test_what_cannot_be_read_is_refused_with_a_sentence() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        connection.send(BODY, PATH, "Content-Encoding: gzip")
        status, headers, body = await connection.receive()
        assert (status, headers["content-type"]) == (400, "application/json")
        assert json.loads(body) == {"error": "content-encoding: got 'gzip'; wanted a plain body"}
        connection.send(b"nonsense")
        assert (await connection.receive())[0] == 400
        assert not service.asked

    run(test)


def test_no_header_of_a_request_begins_another_one_in_its_answer() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        connection.send(BODY, PATH, "X-Shortlist-Track: a\x0bb\x01\nSet-Cookie: c")
        status, headers, _ = await connection.receive()
        assert status == 400
        assert "set-cookie" not in headers
        assert not service.asked

    run(test)


def test_of_a_header_that_is_there_twice_the_first_one_counts() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        connection.send(BODY, PATH, "X-Request-Id: first", "X-Request-Id: second")
        assert (await connection.receive())[0] == 200
        assert service.asked[0].context.request_id == "first"

    run(test)


def test_only_posts_infer() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        connection.writer.write(f"GET {PATH} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
        status, _, body = await connection.receive()
        assert (status, json.loads(body)) == (405, {"error": f"GET {PATH}: Method Not Allowed"})

    run(test)


def test_what_would_wait_too_long_is_refused_at_once_with_the_time_to_come_back() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        service.admission = Admission(Overload(max_concurrent=1, max_waiting=0))
        service.hold.clear()
        reader, writer = await asyncio.open_connection(*connection.writer.get_extra_info("peername"))
        other = Connection(reader, writer)
        other.send()
        await service.until(lambda: len(service.asked) == 1)
        connection.send()
        status, headers, body = await connection.receive()
        assert (status, headers["retry-after"]) == (503, "1")
        assert "too much to do" in json.loads(body)["error"]
        assert len(service.asked) == 1  # nothing of it was read
        service.hold.set()
        assert (await other.receive())[0] == 200
        connection.send()
        assert (await connection.receive())[0] == 200
        writer.close()

    run(test)


def test_the_work_of_clients_that_are_gone_is_not_done() -> None:
    async def test(service: Service, server: uvicorn.Server, connection: Connection) -> None:
        service.admission = Admission(Overload(max_concurrent=1))
        service.hold.clear()
        connection.send()
        await service.until(lambda: len(service.asked) == 1)
        address = connection.writer.get_extra_info("peername")
        gone = [Connection(*await asyncio.open_connection(*address)) for _ in range(5)]
        for one in gone:
            one.send()
        await service.until(lambda: service.admission.waiting == 5)
        for one in gone:
            one.writer.close()
        await service.until(lambda: service.admission.waiting == 0)
        service.hold.set()
        assert (await connection.receive())[0] == 200
        assert len(service.asked) == 1
        await service.until(lambda: sorted(service.counted) == [200, *[499] * 5])

    run(test)
