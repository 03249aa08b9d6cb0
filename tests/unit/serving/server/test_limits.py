"""Limits of a server's clients: bytes of one and of all requests, time, connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
import uvicorn
import uvloop
from pydantic import ValidationError
from tritonclient.grpc import service_pb2

from shortlist.serving.server.inference.service import InferenceRequest, InferenceResponse
from shortlist.serving.server.inference.service import Service as ScoringService
from shortlist.serving.server.protocols.grpc_app import GRPCApp
from shortlist.serving.server.protocols.http_app import http_app
from shortlist.serving.server.protocols.http_inference import connection_class
from shortlist.serving.server.requests.admission import Admission, AdmissionSlot, BufferedBytes
from shortlist.serving.server.server import grpc_options, listeners, listening_socket
from shortlist.spec.serving import Limits, Overload, Serving

BODY = json.dumps({"inputs": [{"name": "item_id", "datatype": "INT64", "shape": [2], "data": [1, 2]}]}).encode()
HEAD = b"POST /v2/models/shop/infer HTTP/1.1\r\nHost: here\r\n"
LONGEST = 100_000
MANY_SECONDS = 600


class Service:
    """Returns a score per row, after `hold` is set."""

    request_context, names_version = ScoringService.request_context, ScoringService.names_version
    response_headers, events = ScoringService.response_headers, None

    def __init__(self, **limits: float) -> None:
        limit_values = {
            "max_request_bytes": LONGEST,
            "body_seconds": MANY_SECONDS,
            "idle_seconds": MANY_SECONDS,
            **limits,
        }
        self.settings = SimpleNamespace(
            model="shop", version=3, serving=Serving(limits=Limits.model_validate(limit_values)), stack_secrets=None
        )
        self.outputs = ("score",)
        self.counted: list[tuple[str, int]] = []
        self.metrics = SimpleNamespace(count=lambda protocol, status, _: self.counted.append((protocol, status)))
        self.admission = Admission(Overload())
        self.buffered_bytes = BufferedBytes(self.settings.serving.limits.max_buffered_bytes)
        self.request_count = 0
        self.hold = asyncio.Event()
        self.hold.set()

    def outputs_of(self, model: str) -> dict[str, str]:
        return {"score": "FP32"}

    async def answer(self, question: InferenceRequest, place: AdmissionSlot) -> InferenceResponse:
        self.request_count += 1
        await self.hold.wait()
        return InferenceResponse(np.ones(question.tensors[0].shape[0], np.float32), "own", False)

    def check_model(self, model: str, version: str) -> None:
        assert model == "shop"

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0.005)


Open = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


def run(test: Callable[[Service, Open], Awaitable[None]], **limits: float) -> None:
    async def whole() -> None:
        service = Service(**limits)
        config = uvicorn.Config(
            http_app(service),  # type: ignore[arg-type] # it has what is asked of a service here
            http=connection_class(service),  # type: ignore[arg-type]
            ws="none", loop="none", lifespan="off", log_config=None, port=0,
        )  # fmt: skip
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve())
        await service.until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        writers = []

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
            return reader, writer

        try:
            async with asyncio.timeout(120):
                await test(service, connect)
        finally:  # a test that fails must end
            for writer in writers:
                writer.close()
            server.should_exit = server.force_exit = True
            await running

    uvloop.run(whole())


async def received(reader: asyncio.StreamReader) -> tuple[int, str, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length: ")[2].split("\r\n")[0])
    return int(head.split()[1]), head, json.loads(await reader.readexactly(length))


async def ask(connect: Open) -> int:
    reader, writer = await connect()
    writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
    return (await received(reader))[0]


def test_a_declared_length_above_the_limit_is_refused_before_the_body() -> None:
    async def test(service: Service, connect: Open) -> None:
        reader, writer = await connect()
        writer.write(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % (LONGEST + 1))
        status, head, body = await received(reader)
        assert (status, "connection: close" in head) == (413, True)
        assert body == {"error": f"the body: wanted at most {LONGEST} bytes (serving.limits.max_request_bytes)"}
        assert await reader.read() == b""
        await service.until(lambda: service.counted == [("http", 413)])
        assert await ask(connect) == 200

    run(test)


def test_a_chunked_body_is_refused_as_soon_as_it_is_too_long() -> None:
    async def test(service: Service, connect: Open) -> None:
        reader, writer = await connect()
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(LONGEST // 10_000 + 1):
            writer.write(b"2710\r\n" + b" " * 10_000 + b"\r\n")
        assert (await received(reader))[0] == 413  # though its end never came
        await service.until(lambda: service.counted == [("http", 413)])

    run(test)


def test_a_client_that_is_still_sending_can_read_the_refusal() -> None:
    async def test(service: Service, connect: Open) -> None:
        reader, writer = await connect()
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % (3 * LONGEST) + b" " * (3 * LONGEST))
        assert (await received(reader))[0] == 413
        assert await reader.read() == b""  # closed, not reset

    run(test)


@pytest.mark.parametrize(("zeros", "length"), [(5_000, len(BODY)), (30, len(BODY)), (5_000, LONGEST + 1)])
def test_leading_zeros_of_a_length_are_ignored(zeros: int, length: int) -> None:
    """Python parses at most 4 300 digits; the HTTP parser accepts more."""

    async def test(service: Service, connect: Open) -> None:
        reader, writer = await connect()
        writer.write(HEAD + b"Content-Length: " + b"0" * zeros + b"%d\r\n\r\n" % length + BODY)
        assert (await received(reader))[0] == (200 if length == len(BODY) else 413)

    run(test)


def test_a_slow_body_times_out() -> None:
    async def test(service: Service, connect: Open) -> None:
        reader, writer = await connect()
        writer.write(HEAD + b"Content-Length: 1000\r\n\r\n{")
        status, _, body = await received(reader)
        assert (status, body) == (408, {"error": "the body: got 1 bytes within 0.05 s; wanted all of it"})
        assert await reader.read() == b""
        assert await ask(connect) == 200

    run(test, body_seconds=0.05)


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"POST /v2/models/shop/inf", HEAD])
def test_a_connection_without_a_complete_head_is_closed(sent: bytes) -> None:
    async def test(service: Service, connect: Open) -> None:
        reader, writer = await connect()
        writer.write(sent)
        with suppress(ConnectionResetError):  # where it was closed before it sent anything
            assert await reader.read() == b""
        assert not service.counted

    run(test, idle_seconds=0.1)


def test_a_connection_that_waits_for_its_answer_is_not_idle() -> None:
    async def test(service: Service, connect: Open) -> None:
        service.hold.clear()
        reader, writer = await connect()
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
        await asyncio.sleep(0.3)
        service.hold.set()
        assert (await received(reader))[0] == 200

    run(test, idle_seconds=0.05)


def test_a_client_that_does_not_read_its_responses_is_disconnected() -> None:
    async def test(service: Service, connect: Open) -> None:
        _, writer = await connect()
        large_body = json.dumps({"inputs": [{"name": "a", "datatype": "INT64", "shape": [2**14], "data": [1] * 2**14}]})
        request = HEAD + b"Content-Length: %d\r\n\r\n" % len(large_body) + large_body.encode()
        while not writer.transport.is_closing():  # answers of 64 KB each, none of which is read
            writer.transport.write(request)  # type: ignore[attr-defined] # it can
            await asyncio.sleep(0.01)

    run(test, body_seconds=0.1)


def test_the_total_size_of_bodies_is_limited_and_small_bodies_are_accepted() -> None:
    async def test(service: Service, connect: Open) -> None:
        first = await connect()
        first[1].write(HEAD + b"Content-Length: 1200000\r\n\r\n" + b" " * 1_100_000)
        reader, writer = await connect()
        writer.write(HEAD + b"Content-Length: 1200000\r\n\r\n" + b" " * 1_100_000)
        answers = [asyncio.create_task(received(response_reader)) for response_reader in (first[0], reader)]
        (first_done,), (waits,) = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        status, head, body = first_done.result()
        assert (status, "retry-after: 1" in head) == (429, True)
        assert "at most 2000000 fit; try again later" in body["error"]
        assert await ask(connect) == 200
        (first[1] if waits is answers[0] else writer).write(b" " * 100_000)
        assert (await waits)[0] == 400  # it was read: blanks are no JSON
        second_connection = await connect()
        second_connection[1].write(HEAD + b"Content-Length: 1200000\r\n\r\n" + b" " * 1_200_000)
        assert (await received(second_connection[0]))[0] == 400  # there is room again

    run(test, max_request_bytes=2_000_000, max_buffered_bytes=2_000_000)


def test_grpc_messages_count_to_the_total_size() -> None:
    async def whole() -> None:
        service = Service(max_request_bytes=1_500_000, max_buffered_bytes=1_500_000)
        server = grpc.aio.server(options=grpc_options(service.settings.serving.limits))
        server.add_generic_rpc_handlers((GRPCApp(service).handler,))  # type: ignore[arg-type]
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        small = service_pb2.ModelInferRequest(model_name="shop")
        small.inputs.add(name="item_id", datatype="INT64", shape=[2])
        small.raw_input_contents.append(bytes(16))
        large = service_pb2.ModelInferRequest(model_name="shop")
        large.inputs.add(name="item_id", datatype="INT64", shape=[125_000])
        large.raw_input_contents.append(bytes(1_000_000))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            service.hold.clear()
            first = asyncio.create_task(_code(infer(large.SerializeToString(), timeout=60)))
            await service.until(lambda: service.request_count == 1)
            assert await _code(infer(large.SerializeToString(), timeout=60)) == "RESOURCE_EXHAUSTED"
            service.hold.set()
            assert await _code(infer(small.SerializeToString(), timeout=60)) == await first == "OK"
            assert await _code(infer(large.SerializeToString(), timeout=60)) == "OK"  # there is room again
        await server.stop(0)
        assert [status for _, status in service.counted] == [429, 200, 200, 200]

    asyncio.run(whole())


async def _code(call: Any) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"


def test_the_limits_must_allow_one_request() -> None:
    with pytest.raises(ValidationError, match="max_buffered_bytes 1048576 is below max_request_bytes 16777216"):
        Limits(max_buffered_bytes=2**20)


def test_over_grpc_no_client_error_has_the_status_unknown_error() -> None:
    async def whole() -> None:
        service = Service()
        server = grpc.aio.server(options=grpc_options(service.settings.serving.limits))
        server.add_generic_rpc_handlers((GRPCApp(service).handler,))  # type: ignore[arg-type]
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        good = service_pb2.ModelInferRequest(model_name="shop")
        good.inputs.add(name="item_id", datatype="INT64", shape=[2]).contents.int64_contents.extend([1, 2])
        invalid_request = service_pb2.ModelInferRequest(model_name="shop", id="x" * 300)
        wrong = service_pb2.ModelInferRequest(model_name="shop")
        wrong.inputs.add(name="item_id", datatype="odd", shape=[1])
        messages = {}
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for name, method, message in (
                ("torn", "ModelInfer", b"\xff"),
                ("not UTF-8", "ModelInfer", b"\x0a\x02\xff\xfe"),
                ("torn too", "ModelReady", b"\x0a\x05ab"),
                ("long id", "ModelInfer", invalid_request.SerializeToString()),
                ("datatype", "ModelInfer", wrong.SerializeToString()),
                ("too long", "ModelInfer", b" " * (LONGEST + 1)),
                ("no method", "ModelConfig", b""),
                ("good", "ModelInfer", good.SerializeToString()),
            ):
                call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
                try:
                    await call(message, timeout=60)
                    messages[name] = "OK"
                except grpc.aio.AioRpcError as error:
                    messages[name] = f"{error.code().name}: {error.details()}"
        await server.stop(0)
        assert messages["torn"] == "INVALID_ARGUMENT: the message is no ModelInferRequest: it cannot be parsed"
        assert messages["datatype"].startswith("INVALID_ARGUMENT: inputs.0.datatype: got 'odd'; wanted 'BOOL'")
        codes = {name: text.split(":")[0] for name, text in messages.items()}
        assert codes == {
            "torn": "INVALID_ARGUMENT", "not UTF-8": "INVALID_ARGUMENT", "torn too": "INVALID_ARGUMENT",
            "long id": "INVALID_ARGUMENT", "datatype": "INVALID_ARGUMENT", "too long": "RESOURCE_EXHAUSTED",
            "no method": "UNIMPLEMENTED", "good": "OK",
        }  # fmt: skip
        assert service.counted == [("grpc", 400)] * 5 + [("grpc", 200)]

    asyncio.run(whole())


def test_a_round_of_the_event_loop_accepts_many_connections() -> None:
    """One listening socket accepts one connection per round, so that connections wait while rounds are long."""
    accepted = []

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.append(transport)

    async def rounds_until_all(sockets: list[socket.socket]) -> int:
        accepted.clear()
        port, loop, rounds = sockets[0].getsockname()[1], asyncio.get_running_loop(), 0
        servers = [await loop.create_server(Connection, sock=listening_socket) for listening_socket in sockets]
        with contextlib.ExitStack() as clients:
            for _ in range(16):  # the kernel connects them while the event loop stands still
                clients.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            while len(accepted) < 16:
                await asyncio.sleep(0)
                rounds += 1
            for server in servers:
                server.close()
            for transport in accepted:
                transport.close()
            await asyncio.sleep(0)
        return rounds

    rounds_of_one = uvloop.run(rounds_until_all([listening_socket("127.0.0.1", 0)]))
    rounds_of_many = uvloop.run(rounds_until_all(listeners(listening_socket("127.0.0.1", 0))))
    assert rounds_of_one >= 16
    assert rounds_of_many < 10
