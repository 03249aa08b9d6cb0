"""Which requests a server takes on: so many at once, as many more as can wait a short while, and no others.

Without a limit everybody waits ever longer, until answers come when nobody waits for them any more. A request that is
refused at once costs little, and its client can ask another server or come back later.

How long a newcomer will wait is an estimate, and a server that gets less of its machine than a moment ago is slower
than that. So the wait is looked at again when a request's turn comes: when, for as long as anybody may wait, all whose
turn came had waited for too long, such requests are refused, and the next one in time is served instead.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from statistics import median
from types import TracebackType
from typing import Final, NamedTuple, Self

from shortlist.serving.server.request_errors import OverloadedError, TooManyBytesError
from shortlist.spec.serving import Overload

_REMEMBERED: Final = 64
"""Requests whose times are remembered, at least."""
_NOT_COUNTED: Final = 64 * 1024
"""Bytes of a body; uvicorn reads as many before it waits for whoever wants them."""
_LOOKS: Final = 4
_LOOK_SECONDS: Final = 0.05


class Admission:
    """The queue of one server.

    A newcomer's wait is estimated from those ahead of it and the median of what the last requests took. It is the
    median, as one pause of the machine makes a few requests slow and says nothing about the next ones.
    """

    def __init__(self, limits: Overload) -> None:
        self._limits = limits
        self._free = limits.max_concurrent
        self._returning: deque[_Turn] = deque()
        """Those who were inside before: they go first."""
        self._queue: deque[_Turn] = deque()
        self._late_since: float | None = None
        """Since when everybody whose turn came had waited for too long; None while somebody had not."""
        # More than twice as many as are inside: a pause during which all of these wait leaves the median as it was.
        self._took: deque[float] = deque(maxlen=max(_REMEMBERED, 4 * limits.max_concurrent))
        self._elsewhere = 0
        self._delays: deque[float] = deque(maxlen=_LOOKS)
        self.refused = 0
        """Requests that were not taken on."""

    @property
    def waiting(self) -> int:
        """Requests that were taken on and are not being worked on."""
        return len(self._queue) + len(self._returning) + self._elsewhere

    def wait_seconds(self) -> float:
        """Return how long a newcomer waits altogether, about: it has before it is seen, and will for its turn."""
        # The shortest of the last delays: one pause of the machine does not make all of them long.
        seen = min(self._delays) if len(self._delays) == _LOOKS else 0.0
        ahead = len(self._queue) + len(self._returning)
        if self._free and not ahead:
            return seen
        return seen + (ahead + 1) * (median(self._took) if self._took else 0.0) / self._limits.max_concurrent

    async def keep_time(self) -> None:
        """Note again and again by how much the event loop is late; what arrives waits as long before it is seen."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LOOK_SECONDS
            await asyncio.sleep(_LOOK_SECONDS)
            self._delays.append(max(0.0, loop.time() - due))

    def place(self) -> Place:
        """Return a place among those that are worked on, to be entered."""
        return Place(self)

    async def enter(self) -> float:
        """Take a place, as soon as it is this request's turn; return the moment since when it has the place.

        Raises:
            OverloadedError: It would have to wait for too long, or has.
        """
        wait = self.wait_seconds()
        is_full = not self._free or self._queue or self._returning
        if wait > self._most_seconds or (is_full and self.waiting >= self._limits.max_waiting):
            raise self._refusal(wait)
        if is_full:
            return await self._wait_in(self._queue)
        self._free -= 1
        self._late_since = None
        return time.perf_counter()

    async def enter_again(self) -> float:
        """Take a place before all newcomers; return the moment since when it is had."""
        if self._free:
            self._free -= 1
            return time.perf_counter()
        return await self._wait_in(self._returning)

    def leave(self, took: float | None = None) -> None:
        """Give a place to the next one.

        Args:
            took: Seconds that the request took; None when they say nothing about others.
        """
        if took is not None:
            self._took.append(took)
        now = time.perf_counter()
        while self._returning:
            if not (turn := self._returning.popleft()).granted.done():
                turn.granted.set_result(now)
                return
        while self._queue:
            turn = self._queue.popleft()
            if turn.granted.done():
                continue
            if self._is_too_late(now - turn.since, now):
                turn.granted.set_exception(self._refusal(now - turn.since))
            else:
                turn.granted.set_result(now)
                return
        self._free += 1

    def wait_elsewhere(self, change: int) -> None:
        """Note that so many more requests wait for something else than their turn."""
        self._elsewhere += change

    @property
    def _most_seconds(self) -> float:
        return self._limits.max_wait_ms / 1000

    def _is_too_late(self, waited: float, now: float) -> bool:
        """Whether to refuse whoever's turn has come. After a pause of the machine all are late, and are served."""
        if waited <= self._most_seconds:
            self._late_since = None
            return False
        if self._late_since is None:
            self._late_since = now
        return now - self._late_since > self._most_seconds

    def _refusal(self, wait: float) -> OverloadedError:
        self.refused += 1
        return OverloadedError(
            f"the server has too much to do: {self.waiting} requests wait, about {wait:.1f} s; come back later",
            retry_seconds=max(1, math.ceil(wait)),
        )

    async def _wait_in(self, queue: deque[_Turn]) -> float:
        turn = _Turn(asyncio.get_running_loop().create_future(), time.perf_counter())
        queue.append(turn)
        try:
            return await turn.granted
        except asyncio.CancelledError:  # its client has gone
            if turn.granted.cancelled():
                queue.remove(turn)
            elif turn.granted.exception() is None:
                self.leave()
            raise


class _Turn(NamedTuple):
    """A request that waits for its turn."""

    granted: asyncio.Future[float]
    """The moment since when it has a place."""
    since: float
    """The moment since when it waits."""


class Place:
    """One request's place; a context manager. Entering it may raise `OverloadedError`."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._is_inside = False
        self._since = 0.0
        self._coming_back = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Enter, when it is this request's turn."""
        self._begin(await self._admission.enter())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave."""
        if self._is_inside:
            self._admission.leave(time.perf_counter() - self._since if kind is None else None)
        else:
            self._admission.wait_elsewhere(-1)

    def step_aside(self) -> None:
        """Let others have the place while this request waits for something that does not depend on them."""
        if self._is_inside:
            self._is_inside = False
            self._admission.wait_elsewhere(1)
            self._admission.leave()

    async def come_back(self) -> None:
        """Enter again; parts of one request have one place."""
        async with self._coming_back:
            if not self._is_inside:
                since = await self._admission.enter_again()
                self._admission.wait_elsewhere(-1)
                self._begin(since)

    def _begin(self, since: float) -> None:
        self._is_inside, self._since = True, since


class Held:
    """How many bytes of requests a server holds, over HTTP and gRPC.

    The first ones of each request are not counted, so that small requests always get in.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0

    def change(self, before: int, after: int) -> None:
        """Note that a body of so many bytes has so many now.

        Raises:
            TooManyBytesError: It grew, and all together they have too many.
        """
        self._bytes += max(0, after - _NOT_COUNTED) - max(0, before - _NOT_COUNTED)
        if after > max(before, _NOT_COUNTED) and self._bytes > self._most:
            raise TooManyBytesError(
                f"the server holds {self._bytes} bytes of requests; at most {self._most} fit; try again later"
            )
