"""A connection to Triton's HTTP port; one request at a time is under way on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import httptools

HEADER_LENGTH: Final = b"inference-header-content-length"
_LARGEST_WAITING: Final = 64 * 1024 * 1024
"""Bytes that may wait to be sent; nobody waits for less of them, as nobody else uses the connection."""


@dataclass
class TritonResponse:
    """What Triton answered."""

    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    header_length: int | None = None
    """Where, in a body with binary tensors, the JSON ends."""

    @property
    def text(self) -> str:
        """The body as text, for an error's message."""
        return self.body.decode(errors="replace")


class TritonConnection(asyncio.Protocol):
    """Sends requests and gives their answers.

    Who asks may give up waiting; the line is free for somebody else only when the answer has come.
    """

    def __init__(self, on_free: Callable[[TritonConnection], None]) -> None:
        """Use `connect`.

        Args:
            on_free: Called when it was given back and nothing is under way.
        """
        self._on_free = on_free
        self._given_back = False
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[TritonResponse] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._reply = TritonResponse()

    @classmethod
    async def connect(cls, host: str, port: int, on_free: Callable[[TritonConnection], None]) -> TritonConnection:
        """Return an open line.

        Raises:
            OSError: Nobody listens there.
        """
        loop = asyncio.get_running_loop()
        _, line = await loop.create_connection(lambda: cls(on_free), host, port)
        return line

    @classmethod
    async def connect_unix(cls, path: str, on_free: Callable[[TritonConnection], None]) -> TritonConnection:
        """Return an open line through a Unix socket.

        Raises:
            OSError: Nobody listens there.
        """
        _, line = await asyncio.get_running_loop().create_unix_connection(lambda: cls(on_free), path)
        return line

    @property
    def is_open(self) -> bool:
        """Whether a request may be sent on it."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, head: bytes, body: Sequence[bytes | memoryview] = ()) -> TritonResponse:
        """Return the answer to a request.

        Args:
            head: The request's line and headers, with the empty line that ends them.
            body: Its parts.

        Raises:
            ConnectionError: The line was cut before the answer had come.
        """
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the connection was closed")
        assert self._waiter is None, "one request at a time"
        self._reply, self._given_back = TritonResponse(), False
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(b"".join((head, *body)))
        return await self._waiter

    def give_back(self) -> None:
        """Let others use it, as soon as nothing is under way."""
        self._given_back = True
        if self._waiter is None:
            self._on_free(self)

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(_LARGEST_WAITING)

    def data_received(self, data: bytes) -> None:
        """Take a piece of an answer."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.close()
            self._give_up(f"not HTTP: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        """Tell who waits."""
        self._give_up(str(error) if error is not None else "the connection was closed")

    def on_status(self, status: bytes) -> None:
        """Take the parser's word, as the next ones do."""
        self._reply.status = self._parser.get_status_code()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        if name.lower() == HEADER_LENGTH:
            self._reply.header_length = int(value)

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._reply.body += body

    def on_message_complete(self) -> None:
        """Give the answer to who waits."""
        reply, waiter = self._reply, self._waiter
        if not self._parser.should_keep_alive():
            self.close()
        self._waiter = None
        if waiter is not None and not waiter.done():
            waiter.set_result(reply)
        if self._given_back:
            self._on_free(self)

    def _give_up(self, why: str) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(ConnectionResetError(why))
