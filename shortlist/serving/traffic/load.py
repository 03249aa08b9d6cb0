"""Closed-loop load by a few workers, and open-loop load at a declared rate."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from shortlist.serving.traffic.answers import ClientResponse
from shortlist.serving.traffic.client import Client
from shortlist.serving.traffic.ledger import Ledger, LedgerEntry
from shortlist.serving.traffic.requests import PreparedRequest

Arrivals = Literal["poisson", "even"]
_STOP_POLL_SECONDS: Final = 0.1
"""Longest sleep before the stop condition is checked again."""


@dataclass(frozen=True, slots=True)
class DueRequest:
    """A request that is due."""

    request: PreparedRequest
    id: str
    user: str | None = None


@dataclass
class Load:
    """A load: the requests, the client, and when to stop."""

    client: Client
    requests: Iterator[DueRequest]
    """Requests to send; the load ends with the last one."""
    seconds: float | None = None
    """Duration of the load; open requests are awaited. None for no limit."""
    stop: Callable[[], bool] = lambda: False
    """Ends the load when it returns true; called several times a second."""
    on_answer: Callable[[LedgerEntry, ClientResponse], None] | None = None
    """Called for every response, in order of arrival."""
    ledger: Ledger = field(default_factory=Ledger)

    async def run_closed(self, workers: int) -> Ledger:
        """Run a closed loop, in which each worker waits for its response before the next request; return the ledger."""
        self._start()
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._work())
        return self._end()

    async def run_open(
        self, rate: float, arrivals: Arrivals = "poisson", seed: int = 0, max_under_way: int = 1_000
    ) -> Ledger:
        """Run an open loop, in which requests are due at a rate independent of the responses; return the ledger.

        Args:
            rate: Requests per second.
            arrivals: `poisson`, like independent users, or `even`.
            seed: Seed of the arrivals.
            max_under_way: Most open requests; further due ones are delayed and counted, and their latency still starts
                at their due time.
        """
        self._start()
        slots = asyncio.Semaphore(max_under_way)
        due = self.ledger.started
        async with asyncio.TaskGroup() as group:
            for request, gap in zip(self.requests, _gaps(rate, arrivals, seed), strict=False):
                due += gap
                if self._has_ended(due) or not await self._sleep_until(due):
                    break
                entry = self._add_entry(request, due)
                entry.waited = slots.locked()
                await slots.acquire()
                task = group.create_task(self._send(request, entry))
                task.add_done_callback(lambda _: slots.release())
        return self._end()

    async def _work(self) -> None:
        for request in self.requests:
            now = _now()
            if self._has_ended(now) or self.stop():
                return
            await self._send(request, self._add_entry(request, now))

    async def _send(self, due_request: DueRequest, entry: LedgerEntry) -> None:
        entry.sent = _now()
        answer = await self.client.ask(due_request.request, due_request.id, due_request.user)
        entry.close(answer, _now())
        if self.on_answer is not None:
            self.on_answer(entry, answer)

    def _add_entry(self, due_request: DueRequest, due: float) -> LedgerEntry:
        entry = LedgerEntry(due_request.id, due_request.user, due_request.request.rows, due)
        self.ledger.entries.append(entry)
        return entry

    def _start(self) -> None:
        self.ledger.started = _now()

    def _end(self) -> Ledger:
        self.ledger.ended = _now()
        return self.ledger

    def _has_ended(self, moment: float) -> bool:
        return self.seconds is not None and moment > self.ledger.started + self.seconds

    async def _sleep_until(self, due: float) -> bool:
        while (remaining_seconds := due - _now()) > 0 and not self.stop():
            await asyncio.sleep(min(remaining_seconds, _STOP_POLL_SECONDS))
        return not self.stop()


def repeat_requests(requests: list[PreparedRequest], name: str) -> Iterator[DueRequest]:
    """Yield the requests repeatedly, with ids `<name>-<number>` and without a user."""
    for number, request in enumerate(itertools.cycle(requests)):
        yield DueRequest(request, f"{name}-{number}")


def _gaps(rate: float, arrivals: Arrivals, seed: int) -> Iterator[float]:
    if arrivals == "even":
        yield from itertools.repeat(1 / rate)
    generator = np.random.default_rng(seed)
    while True:
        yield from generator.exponential(1 / rate, 1_024).tolist()


def _now() -> float:
    return asyncio.get_running_loop().time()
