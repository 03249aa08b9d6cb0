"""HTTP connections with timeouts for clients that are silent, slow, or do not read their responses."""

from __future__ import annotations

import asyncio
import copy
from typing import Any, ClassVar, Final

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import HTTP_PROTOCOLS
from uvicorn.importer import import_from_string

_MAX_WAITING: Final = 256
"""Most connections that wait for a complete request head; beyond, the oldest is closed."""


class OneWriteTransport:
    """Passes a response's head on together with the body that follows it.

    uvloop sends each write at once: two would cost two system calls, wake the reader twice, and let a server that dies
    in between leave half a response.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, content: bytes) -> None:
        """Send bytes; a head waits for its body until the end of the loop's round."""
        if self._head:
            content, self._head = self._head + content, b""
        elif content.startswith(b"HTTP/1.1 ") and content.endswith(b"\r\n\r\n"):
            self._head = content
            self._loop.call_soon(self._flush)
            return
        self._transport.write(content)

    def close(self) -> None:
        """Close the connection after what was written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            self.write(b"")

    def __getattr__(self, name: str) -> Any:
        """Return what is the transport's own."""
        return getattr(self._transport, name)


class TimedConnection(asyncio.Protocol):
    """Wraps uvicorn's connection, which by itself waits for ever for a request head."""

    idle_seconds: ClassVar[float]
    """Longest wait for a request head; set by `make_connection_class`."""
    write_seconds: ClassVar[float]
    """Longest wait for a client that does not read its responses; set by `make_connection_class`."""
    waiting: ClassVar[dict[TimedConnection, asyncio.TimerHandle]]
    """Timers of the connections that wait for a head, the oldest first; set by `make_connection_class`."""

    def __init__(self, config: uvicorn.Config, *state: Any, **states: Any) -> None:
        """Create uvicorn's connection, with an application that tracks when it begins and ends.

        Args:
            config: Configuration of the server.
            state: Positional arguments of uvicorn's connection.
            states: Keyword arguments of uvicorn's connection.
        """
        if not config.loaded:
            config.load()
        server_config = copy.copy(config)
        server_config.loaded_app = self._track_answering(config.loaded_app)
        self._inner = import_from_string(HTTP_PROTOCOLS["httptools"])(server_config, *state, **states)
        self._loop = asyncio.get_running_loop()
        self._answering = 0
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # one that writes
        """Start to wait for a request, with a timeout."""
        self._transport = transport
        self._inner.connection_made(OneWriteTransport(transport, self._loop))
        self._wait_for_head()
        if len(self.waiting) > _MAX_WAITING:
            next(iter(self.waiting))._give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        self._stop_waiting_for_head()
        self._stop_write_timer()
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass received bytes on."""
        was_closing = self._transport.is_closing()
        self._inner.data_received(data)
        if self._transport.is_closing():
            if not was_closing:  # uvicorn answers requests in tasks; it closes immediately only for malformed HTTP
                self.note_malformed()
        elif self not in self.waiting and not self._answering:
            self._wait_for_head()

    def eof_received(self) -> bool | None:
        """Pass the end of the input on."""
        ended: bool | None = self._inner.eof_received()
        return ended

    def pause_writing(self) -> None:
        """Start the timeout for a client that does not read its response."""
        self._inner.pause_writing()
        self._write_timer = self._loop.call_later(self.write_seconds, self._transport.abort)

    def resume_writing(self) -> None:
        """Cancel the timeout."""
        self._stop_write_timer()
        self._inner.resume_writing()

    def note_malformed(self) -> None:
        """Called when malformed HTTP was refused."""

    def _track_answering(self, app: ASGIApp) -> ASGIApp:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            self._stop_waiting_for_head()
            self._answering += 1
            try:
                await app(scope, receive, send)
            finally:
                self._answering -= 1

        return answer

    def _wait_for_head(self) -> None:
        self.waiting[self] = self._loop.call_later(self.idle_seconds, self._give_up)

    def _give_up(self) -> None:
        self._stop_waiting_for_head()
        self._transport.close()

    def _stop_waiting_for_head(self) -> None:
        timer = self.waiting.pop(self, None)
        if timer is not None:
            timer.cancel()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def make_connection_class(
    kind: type[TimedConnection], idle_seconds: float, write_seconds: float, **members: Any
) -> type[TimedConnection]:
    """Return a connection class with timeouts, for `uvicorn.Config(http=...)`.

    Args:
        kind: Base class.
        idle_seconds: Longest wait for a request head.
        write_seconds: Longest wait for a client that does not read its responses.
        members: Further class attributes.
    """
    settings = {"idle_seconds": idle_seconds, "write_seconds": write_seconds, "waiting": {}}
    return type(kind.__name__, (kind,), {**settings, **members})
