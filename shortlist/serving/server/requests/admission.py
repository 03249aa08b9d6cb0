"""Admission control: a limited number of concurrent requests, a short queue, and refusal beyond.

Without a limit, waits grow until answers arrive after their clients have given up. A request that is refused at once
costs little, and its client can ask another server or retry later.

Senders share the slots: the next request is one of the sender that holds the fewest, so that a client that asks for
too much waits for itself alone. Where the queue is full, its newest request makes room for a sender with fewer.

The wait of a new request is an estimate; a server that suddenly gets less processor time is slower. So the wait is
checked again when a request leaves the queue: when, for as long as the longest allowed wait, every dequeued request had
waited too long, such requests are refused, and the next one in time is served instead.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from statistics import median
from types import TracebackType
from typing import Final, NamedTuple, Self

from shortlist.serving.server.requests.request_errors import OverloadedError, TooManyBytesError
from shortlist.spec.serving import Overload
from shortlist.system.sender_networks import sender_network

_MIN_DURATIONS: Final = 64
"""Smallest number of request durations that are kept."""
_UNCOUNTED_BYTES: Final = 64 * 1024
"""First bytes of a body that are not counted; uvicorn buffers as many before it waits for the application."""
_DELAY_SAMPLES: Final = 4
_DELAY_SAMPLE_SECONDS: Final = 0.05


class Admission:
    """The admission queue of one server.

    The wait of a new request is estimated from the requests ahead of it and the median duration of the last requests.
    The median, because a pause of the machine slows a few requests and says nothing about the next ones.
    """

    def __init__(self, limits: Overload) -> None:
        self._limits = limits
        self._free = limits.max_concurrent
        self._returning: deque[_WaitingRequest] = deque()
        """Requests that held a slot before; they are served first."""
        self._queues: dict[str, deque[_WaitingRequest]] = {}
        """Requests that wait for their first slot, by sender; without those of senders that wait for none."""
        self._slots_held: Counter[str] = Counter()
        """Slots of each sender."""
        self._late_since: float | None = None
        """Time since when every dequeued request had waited too long; None when the last one had not."""
        # More than twice the concurrent requests: a pause that delays all of them leaves the median unchanged.
        self._durations: deque[float] = deque(maxlen=max(_MIN_DURATIONS, 4 * limits.max_concurrent))
        self._waiting_elsewhere = 0
        self._loop_delays: deque[float] = deque(maxlen=_DELAY_SAMPLES)
        self.refused = 0
        """Number of refused requests."""

    @property
    def waiting(self) -> int:
        """Number of admitted requests that hold no slot."""
        return self._queued + len(self._returning) + self._waiting_elsewhere

    @property
    def _queued(self) -> int:
        return sum(map(len, self._queues.values()))

    def wait_seconds(self, sender: str = "") -> float:
        """Return the estimated wait of a sender's new request: the delay of the event loop plus the time in the queue.

        Senders take turns, so that a request waits for as many of each other sender as of its own, where there are.
        """
        # The shortest of the last delays: a single pause of the machine does not lengthen all of them.
        loop_delay = min(self._loop_delays) if len(self._loop_delays) == _DELAY_SAMPLES else 0.0
        sender_requests = len(self._queues.get(sender, ()))
        ahead = len(self._returning) + sum(min(len(queue), sender_requests + 1) for queue in self._queues.values())
        if self._free and not ahead:
            return loop_delay
        return (
            loop_delay
            + (ahead + 1) * (median(self._durations) if self._durations else 0.0) / self._limits.max_concurrent
        )

    async def measure_loop_delay(self) -> None:
        """Measure repeatedly how late the event loop runs; new requests wait as long before they are read."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _DELAY_SAMPLE_SECONDS
            await asyncio.sleep(_DELAY_SAMPLE_SECONDS)
            self._loop_delays.append(max(0.0, loop.time() - due))

    def slot(self, sender: str | None = None) -> AdmissionSlot:
        """Return a slot, to be entered as a context manager, for a request of a sender; None: it is not known."""
        return AdmissionSlot(self, sender_network(sender))

    async def enter(self, sender: str = "") -> float:
        """Wait for a slot and take it; return the time at which it was taken (`time.perf_counter`).

        Raises:
            OverloadedError: The request would wait too long, or has waited too long.
        """
        wait = self.wait_seconds(sender)
        is_full = not self._free or self._queues or self._returning
        if wait > self._max_wait_seconds:
            raise self._overloaded_error(wait)
        if is_full and self.waiting >= self._limits.max_waiting and not self._makes_room(sender, wait):
            raise self._overloaded_error(wait)
        if is_full:
            return await self._wait_in(self._queues.setdefault(sender, deque()), sender)
        self._free -= 1
        self._slots_held[sender] += 1
        self._late_since = None
        return time.perf_counter()

    async def reenter(self, sender: str = "") -> float:
        """Take a slot before all new requests; return the time at which it was taken."""
        if self._free:
            self._free -= 1
            self._slots_held[sender] += 1
            return time.perf_counter()
        return await self._wait_in(self._returning, sender)

    def leave(self, sender: str = "", duration_seconds: float | None = None) -> None:
        """Give the slot to the next request.

        Args:
            sender: Sender of the request that held the slot.
            duration_seconds: Duration of the request; None when it says nothing about other requests.
        """
        if duration_seconds is not None:
            self._durations.append(duration_seconds)
        self._slots_held[sender] -= 1
        if not self._slots_held[sender]:
            del self._slots_held[sender]
        now = time.perf_counter()
        while self._returning:
            if self._grant(self._returning.popleft(), now):
                return
        while self._queues:
            turn = self._next_in_queue()
            if not turn.granted.done() and self._is_too_late(now - turn.since, now):
                turn.granted.set_exception(self._overloaded_error(now - turn.since))
            elif self._grant(turn, now):
                return
        self._free += 1

    def _grant(self, turn: _WaitingRequest, now: float) -> bool:
        """Give a slot to a request; return whether it still waited."""
        if turn.granted.done():
            return False
        self._slots_held[turn.sender] += 1
        turn.granted.set_result(now)
        return True

    def _next_in_queue(self) -> _WaitingRequest:
        """Take the first request of the sender that holds the fewest slots; of several, the one that waited longest."""
        sender = min(self._queues, key=lambda name: (self._slots_held[name], self._queues[name][0].since))
        turn = self._queues[sender].popleft()
        if not self._queues[sender]:
            del self._queues[sender]
        return turn

    def _makes_room(self, sender: str, wait: float) -> bool:
        """Refuse the newest request of the sender with the most that wait, where it has more than this one."""
        greediest = max(self._queues, key=lambda name: len(self._queues[name]), default=sender)
        if len(self._queues.get(greediest, ())) <= len(self._queues.get(sender, ())) + 1:
            return False
        turn = self._queues[greediest].pop()
        if not turn.granted.done():
            turn.granted.set_exception(self._overloaded_error(wait))
        return True

    def change_waiting_elsewhere(self, change: int) -> None:
        """Change the number of admitted requests that wait outside the queue."""
        self._waiting_elsewhere += change

    @property
    def _max_wait_seconds(self) -> float:
        return self._limits.max_wait_ms / 1000

    def _is_too_late(self, waited: float, now: float) -> bool:
        """Whether to refuse a dequeued request. After a single pause of the machine, late requests are served."""
        if waited <= self._max_wait_seconds:
            self._late_since = None
            return False
        if self._late_since is None:
            self._late_since = now
        return now - self._late_since > self._max_wait_seconds

    def _overloaded_error(self, wait: float) -> OverloadedError:
        self.refused += 1
        return OverloadedError(
            f"the server has too much to do: {self.waiting} requests wait, about {wait:.1f} s; come back later",
            retry_seconds=max(1, math.ceil(wait)),
        )

    async def _wait_in(self, queue: deque[_WaitingRequest], sender: str) -> float:
        turn = _WaitingRequest(asyncio.get_running_loop().create_future(), time.perf_counter(), sender)
        queue.append(turn)
        try:
            return await turn.granted
        except asyncio.CancelledError:  # its client disconnected
            if turn.granted.cancelled():
                queue.remove(turn)
                if not queue and self._queues.get(sender) is queue:
                    del self._queues[sender]
            elif turn.granted.exception() is None:
                self.leave(sender)
            raise


class _WaitingRequest(NamedTuple):
    """A request in the queue."""

    granted: asyncio.Future[float]
    """Time at which it got a slot."""
    since: float
    """Time since when it has waited."""
    sender: str


class AdmissionSlot:
    """The slot of one request; a context manager. Entering it may raise `OverloadedError`."""

    def __init__(self, admission: Admission, sender: str) -> None:
        self._admission = admission
        self._sender = sender
        self._is_inside = False
        self._since = 0.0
        self._reenter_lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Wait for the slot."""
        self._begin(await self._admission.enter(self._sender))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the slot back."""
        if self._is_inside:
            duration_seconds = time.perf_counter() - self._since if kind is None else None
            self._admission.leave(self._sender, duration_seconds)
        else:
            self._admission.change_waiting_elsewhere(-1)

    def release(self) -> None:
        """Give the slot to other requests while this one waits for something outside this server."""
        if self._is_inside:
            self._is_inside = False
            self._admission.change_waiting_elsewhere(1)
            self._admission.leave(self._sender)

    async def reacquire(self) -> None:
        """Take a slot again; the parts of one request share one slot."""
        async with self._reenter_lock:
            if not self._is_inside:
                since = await self._admission.reenter(self._sender)
                self._admission.change_waiting_elsewhere(-1)
                self._begin(since)

    def _begin(self, since: float) -> None:
        self._is_inside, self._since = True, since


class BufferedBytes:
    """Limit of the request bytes that a server buffers, over HTTP and gRPC.

    The first bytes of each request are not counted, so that small requests are always accepted.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0

    def change(self, old_bytes: int, new_bytes: int) -> None:
        """Count the changed size of a body.

        Raises:
            TooManyBytesError: It grew, and all bodies together exceed the limit.
        """
        self._bytes += max(0, new_bytes - _UNCOUNTED_BYTES) - max(0, old_bytes - _UNCOUNTED_BYTES)
        if new_bytes > max(old_bytes, _UNCOUNTED_BYTES) and self._bytes > self._max_bytes:
            raise TooManyBytesError(
                f"the server holds {self._bytes} bytes of requests; at most {self._max_bytes} fit; try again later"
            )
