"""Requests at a declared rate over plain sockets, whatever becomes of them.

`python -m benchmarks.open_loop LOAD.json ANSWERS.json` reads a `Load` and writes what became of its requests.

A client library takes about as much processor time to ask as a server takes to refuse, so that on a machine with few
processors it would be measured with the server. This program takes some 0.2 ms for a request, runs on a processor of
its own where there is one to spare, and says how late its requests left.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, cast

import orjson
import uvloop

LATE: Final = 0
"""Status of a request without an answer by its deadline: its client hung up."""
BROKEN: Final = -1
"""Status of a request whose connection could not be made, or broke off."""
_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3})")
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_LAST: Final = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_NUMBER: Final = b"{number}"
"""In a request's head: its number."""


class Load(NamedTuple):
    """What is asked, of whom, how often."""

    port: int
    head: str
    """Of the request, with `{number}` where its number belongs."""
    body: str
    """Path of its body."""
    seconds: float
    deadline_seconds: float
    rate: float = 0.0
    """Arrivals per second, independent of each other; 0: there are clients that each wait for their answers."""
    clients: int = 0
    """How many."""
    seed: int = 0
    processors: tuple[int, ...] = ()
    """Those that the program runs on; empty: any."""


class TimedRequest(NamedTuple):
    """What became of a request; moments are seconds since the load began."""

    due: float
    sent: float
    answered: float
    status: int
    """HTTP's, `LATE` or `BROKEN`."""


class Generator:
    """The connections of a load, and what became of its requests."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.requests: list[TimedRequest] = []
        head, _, tail = load.head.encode().partition(_NUMBER)
        self._head, self._tail = head, tail + Path(load.body).read_bytes()
        self._free: list[_Connection] = []
        self._loop = asyncio.get_running_loop()
        self.began = self._loop.time()
        self._number = 0
        self._under_way = 0
        self._making: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Return when all requests are answered, late or broken."""
        if self.load.rate:
            await self._arrive()
        else:
            for _ in range(self.load.clients):
                self._ask(self._loop.time())
        while self._under_way:
            await asyncio.sleep(0.05)

    async def _arrive(self) -> None:
        for due in _arrivals(self.load):
            while (remaining_seconds := self.began + due - self._loop.time()) > 0:
                await asyncio.sleep(remaining_seconds)
            self._ask(self.began + due)

    def _ask(self, due: float) -> None:
        self._under_way += 1
        if self._free:
            self._send(self._free.pop(), due)
        else:
            making = self._loop.create_task(self._connect_and_send(due))
            self._making.add(making)
            making.add_done_callback(self._making.discard)

    async def _connect_and_send(self, due: float) -> None:
        try:
            _, connection = await self._loop.create_connection(lambda: _Connection(self), "127.0.0.1", self.load.port)
        except OSError:
            self.ended(due, self._loop.time(), BROKEN)
            return
        self._send(connection, due)

    def _send(self, connection: _Connection, due: float) -> None:
        self._number += 1
        request = b"".join((self._head, b"%d" % self._number, self._tail))
        connection.ask(request, due, self.load.deadline_seconds)

    def ended(self, due: float, sent: float, status: int, connection: _Connection | None = None) -> None:
        """Note what became of a request; its connection can be used again."""
        now, began = self._loop.time(), self.began
        self.requests.append(TimedRequest(due - began, sent - began, now - began, status))
        self._under_way -= 1
        if connection is not None:
            self._free.append(connection)
        if not self.load.rate and status > 0 and now < began + self.load.seconds:
            self._ask(now)

    def lost(self, connection: _Connection) -> None:
        """Note that a connection is gone."""
        if connection in self._free:
            self._free.remove(connection)


class _Connection(asyncio.Protocol):
    """A connection of HTTP/1.1; one request at a time."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._loop = asyncio.get_running_loop()
        self._due: float | None = None
        self._sent = 0.0
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one, but derives from none

    def ask(self, request: bytes, due: float, deadline_seconds: float) -> None:
        """Send a request; its answer has time until the deadline, counted from when it was due."""
        self._due, self._sent, self._received = due, self._loop.time(), b""
        self._late = self._loop.call_at(due + deadline_seconds, self._give_up)
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if self._due is None or end < 0:
            return
        length = _LENGTH.search(self._received, 0, end)
        if length is None or len(self._received) < end + 4 + int(length[1]):
            return
        status = _STATUS.match(self._received)
        is_last = _LAST.search(self._received, 0, end) is not None
        self._end(int(status[1]) if status is not None else BROKEN, None if is_last else self)
        if is_last:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._generator.lost(self)
        if self._due is not None:
            self._end(BROKEN, None)

    def _give_up(self) -> None:
        self._end(LATE, None)
        self._transport.abort()

    def _end(self, status: int, reusable: _Connection | None) -> None:
        due, self._due = self._due, None
        self._late.cancel()
        assert due is not None
        self._generator.ended(due, self._sent, status, reusable)


def _arrivals(load: Load) -> Iterator[float]:
    draw, due = random.Random(load.seed), 0.0
    while (due := due + draw.expovariate(load.rate)) < load.seconds:
        yield due


async def _run(load: Load) -> Generator:
    generator = Generator(load)
    await generator.run()
    return generator


def main() -> int:
    """Run the load of one file; write what became of its requests to another, as JSON."""
    load = Load(**orjson.loads(Path(sys.argv[1]).read_bytes()))
    if load.processors:
        os.sched_setaffinity(0, load.processors)
    began = time.process_time()
    generator = uvloop.run(_run(load))
    busy_seconds = time.process_time() - began
    requests = [tuple(request) for request in generator.requests]
    Path(sys.argv[2]).write_bytes(orjson.dumps({"asked": requests, "busy_seconds": busy_seconds}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
