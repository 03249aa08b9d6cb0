"""Connections of HTTP that end where a client is silent, slow, or does not take its answers."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_WAITING: Final = 256
"""Connections that have not sent a whole request's head; when more do, the oldest is closed, so that others get in."""


class TimedConnection(HttpToolsProtocol):
    """A connection of uvicorn's, which by itself waits for ever for a request's head."""

    idle_seconds: ClassVar[float]
    """Longest wait for a head; set by `timed`."""
    write_seconds: ClassVar[float]
    """Longest wait for a client that does not take its answers; set by `timed`."""
    waiting: ClassVar[dict[TimedConnection, asyncio.TimerHandle]]
    """Those that wait for a head, the oldest first; set by `timed`."""
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Wait for a request, but not for ever."""
        super().connection_made(transport)
        self._wait_for_head()
        if len(self.waiting) > _MOST_WAITING:
            next(iter(self.waiting))._give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything."""
        self.stop_waiting_for_head()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Go on reading."""
        super().data_received(data)
        if self not in self.waiting and not self._is_answering and not self.transport.is_closing():
            self._wait_for_head()

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self.stop_waiting_for_head()
        super().on_headers_complete()

    def pause_writing(self) -> None:
        """Begin to wait for a client that does not take what it asked for."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on writing."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        super().resume_writing()

    def stop_waiting_for_head(self) -> None:
        """Note that a head is whole, or will never be."""
        timer = self.waiting.pop(self, None)
        if timer is not None:
            timer.cancel()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_head(self) -> None:
        self.waiting[self] = self.loop.call_later(self.idle_seconds, self._give_up)

    def _give_up(self) -> None:
        self.stop_waiting_for_head()
        self.transport.close()


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
