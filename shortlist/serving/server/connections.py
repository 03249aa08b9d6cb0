"""Connections of HTTP that end where a client is silent, slow, or does not take its answers."""

from __future__ import annotations

import asyncio
import copy
from typing import Any, ClassVar, Final

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import HTTP_PROTOCOLS
from uvicorn.importer import import_from_string

_MOST_WAITING: Final = 256
"""Connections that have not sent a whole request's head; when more do, the oldest is closed, so that others get in."""


class TimedConnection(asyncio.Protocol):
    """A connection that uvicorn's own answers; by itself, that waits for ever for a request's head."""

    idle_seconds: ClassVar[float]
    """Longest wait for a head; set by `timed`."""
    write_seconds: ClassVar[float]
    """Longest wait for a client that does not take its answers; set by `timed`."""
    waiting: ClassVar[dict[TimedConnection, asyncio.TimerHandle]]
    """Those that wait for a head, the oldest first; set by `timed`."""

    def __init__(self, config: uvicorn.Config, *state: Any, **states: Any) -> None:
        """Make uvicorn's connection, with an application that says when it begins and ends.

        Args:
            config: Of the server.
            state: Of the server, which is passed on.
            states: Likewise.
        """
        if not config.loaded:
            config.load()
        own = copy.copy(config)
        own.loaded_app = self._noted(config.loaded_app)
        self._inner = import_from_string(HTTP_PROTOCOLS["httptools"])(own, *state, **states)
        self._loop = asyncio.get_running_loop()
        self._answering = 0
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # one that writes
        """Wait for a request, but not for ever."""
        self._transport = transport
        self._inner.connection_made(transport)
        self._wait_for_head()
        if len(self.waiting) > _MOST_WAITING:
            next(iter(self.waiting))._give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything."""
        self._stop_waiting_for_head()
        self._stop_write_timer()
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Go on reading."""
        closed = self._transport.is_closing()
        self._inner.data_received(data)
        if self._transport.is_closing():
            if not closed:  # uvicorn answers requests in tasks; what it closes at once is no HTTP
                self.note_malformed()
        elif self not in self.waiting and not self._answering:
            self._wait_for_head()

    def eof_received(self) -> bool | None:
        """Pass it on."""
        ended: bool | None = self._inner.eof_received()
        return ended

    def pause_writing(self) -> None:
        """Begin to wait for a client that does not take what it asked for."""
        self._inner.pause_writing()
        self._write_timer = self._loop.call_later(self.write_seconds, self._transport.abort)

    def resume_writing(self) -> None:
        """Go on writing."""
        self._stop_write_timer()
        self._inner.resume_writing()

    def note_malformed(self) -> None:
        """Note that the client sent what is no HTTP, which was refused."""

    def _noted(self, app: ASGIApp) -> ASGIApp:
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


def timed(
    kind: type[TimedConnection], idle_seconds: float, write_seconds: float, **members: Any
) -> type[TimedConnection]:
    """Return a class of connections, as `uvicorn.Config(http=...)` takes it.

    Args:
        kind: What it adds to.
        idle_seconds: Longest wait for a request's head.
        write_seconds: Longest wait for a client that does not take its answers.
        members: Others of the class.
    """
    settings = {"idle_seconds": idle_seconds, "write_seconds": write_seconds, "waiting": {}}
    return type(kind.__name__, (kind,), {**settings, **members})
