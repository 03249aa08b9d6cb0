"""Which requests a server takes on: so many at once, as many more as can wait a short while, and no others.

Without a limit everybody waits ever longer, until answers come when nobody waits for them any more. A request that is
refused at once costs little, and its client can ask another server or come back later.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from statistics import median
from types import TracebackType
from typing import Final, Self

from shortlist.serving.server.request_errors import OverloadedError
from shortlist.spec.serving import Overload

_REMEMBERED: Final = 64
"""Requests whose times are remembered, at least."""
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
        self._returning: deque[asyncio.Future[None]] = deque()
        """Those who were inside before: they go first."""
        self._queue: deque[asyncio.Future[None]] = deque()
        # More than twice as many as are inside: a pause during which all of these wait leaves the median as it was.
        self._took: deque[float] = deque(maxlen=max(_REMEMBERED, 4 * limits.max_concurrent))
        self._elsewhere = 0
        self._late: deque[float] = deque(maxlen=_LOOKS)
        self.refused = 0
        """Requests that were not taken on."""

    @property
    def waiting(self) -> int:
        """Requests that were taken on and are not being worked on."""
        return len(self._queue) + len(self._returning) + self._elsewhere

    def wait_seconds(self) -> float:
        """Return how long a newcomer waits altogether, about: it has before it is seen, and will for its turn."""
        # The shortest of the last delays: one pause of the machine does not make all of them long.
        seen = min(self._late) if len(self._late) == _LOOKS else 0.0
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
            self._late.append(max(0.0, loop.time() - due))

    def place(self) -> Place:
        """Return a place among those that are worked on, to be entered."""
        return Place(self)

    async def enter(self) -> None:
        """Take a place, as soon as it is this request's turn.

        Raises:
            OverloadedError: It would have to wait for too long.
        """
        wait, most = self.wait_seconds(), self._limits.max_wait_ms / 1000
        is_full = not self._free or self._queue or self._returning
        if wait > most or (is_full and self.waiting >= self._limits.max_waiting):
            self.refused += 1
            raise OverloadedError(
                f"the server has too much to do: {self.waiting} requests wait, about {wait:.1f} s; come back later",
                retry_seconds=max(1, math.ceil(wait)),
            )
        if is_full:
            await self._turn(self._queue)
        else:
            self._free -= 1

    async def enter_again(self) -> None:
        """Take a place before all newcomers."""
        if self._free:
            self._free -= 1
        else:
            await self._turn(self._returning)

    def leave(self, took: float | None = None) -> None:
        """Give a place to the next one.

        Args:
            took: Seconds that the request took; None when they say nothing about others.
        """
        if took is not None:
            self._took.append(took)
        for queue in (self._returning, self._queue):
            while queue:
                if not (turn := queue.popleft()).done():
                    turn.set_result(None)
                    return
        self._free += 1

    def wait_elsewhere(self, change: int) -> None:
        """Note that so many more requests wait for something else than their turn."""
        self._elsewhere += change

    async def _turn(self, queue: deque[asyncio.Future[None]]) -> None:
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:  # its client has gone
            if turn.cancelled():
                queue.remove(turn)
            else:
                self.leave()
            raise


class Place:
    """One request's place; a context manager. Entering it may raise `OverloadedError`."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._is_inside = False
        self._since = 0.0
        self._coming_back = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Enter, when it is this request's turn."""
        await self._admission.enter()
        self._begin()
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
                await self._admission.enter_again()
                self._admission.wait_elsewhere(-1)
                self._begin()

    def _begin(self) -> None:
        self._is_inside, self._since = True, time.perf_counter()
