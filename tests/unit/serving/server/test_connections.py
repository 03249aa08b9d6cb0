"""A response leaves the server in one write."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from shortlist.serving.server.protocols.connections import OneWriteTransport, TimedConnection, make_connection_class


class RecordingTransport(asyncio.Transport):
    """A transport that keeps each write apart."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, content: bytes) -> None:  # type: ignore[override]  # nothing else is written
        self.writes.append(content)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else b"body"})


async def _writes_of(request: bytes) -> list[bytes]:
    kind = make_connection_class(TimedConnection, idle_seconds=10, write_seconds=10)
    config = uvicorn.Config(_answer, ws="none", lifespan="off", log_config=None, access_log=False)
    connection, transport = kind(config, ServerState(), {}), RecordingTransport()
    connection.connection_made(transport)
    connection.data_received(request)
    for _ in range(5):
        await asyncio.sleep(0)
    connection.connection_lost(None)
    return transport.writes


def test_head_and_body_of_a_response_are_one_write() -> None:
    (response,) = asyncio.run(_writes_of(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"))
    assert response.startswith(b"HTTP/1.1 200 OK\r\n") and response.endswith(b"\r\n\r\nbody")


def test_a_head_without_a_body_leaves_in_the_same_round() -> None:
    (response,) = asyncio.run(_writes_of(b"HEAD / HTTP/1.1\r\nhost: a\r\n\r\n"))
    assert response.startswith(b"HTTP/1.1 200 OK\r\n") and response.endswith(b"\r\n\r\n")


def test_a_head_that_waits_is_sent_before_the_connection_closes() -> None:
    async def close_at_once() -> RecordingTransport:
        recording = RecordingTransport()
        transport = OneWriteTransport(recording, asyncio.get_running_loop())
        transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        transport.close()
        return recording

    recording = asyncio.run(close_at_once())
    assert (recording.writes, recording.is_closed) == ([b"HTTP/1.1 204 No Content\r\n\r\n"], True)
