"""Which requests a server takes on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from shortlist.serving.server.admission import Admission, Place
from shortlist.serving.server.grpc_app import _CODES
from shortlist.serving.server.headers import UNREADY_HEADER
from shortlist.serving.server.request_errors import ModelUnavailableError, OverloadedError, RequestError
from shortlist.spec.serving import Overload


def admission(took: float = 0.0, **limits: Any) -> Admission:
    """A queue whose last requests took so many seconds each."""
    found = Admission(Overload.model_validate(limits))
    for _ in range(64):
        found._took.append(took)
    return found


async def waits(queue: Admission, work: Callable[[], Awaitable[Any]], count: int) -> list[asyncio.Task[Any]]:
    """Let requests enter one after another."""

    async def request() -> Any:
        async with queue.place():
            return await work()

    tasks = []
    for _ in range(count):
        tasks.append(asyncio.create_task(request()))
        await asyncio.sleep(0)
    return tasks


def test_no_more_are_worked_on_at_once_than_declared_and_all_have_their_turn_in_order() -> None:
    async def run() -> tuple[int, list[int], int]:
        queue, inside, most, order = admission(max_concurrent=3), 0, 0, []

        async def work() -> None:
            nonlocal inside, most
            order.append(len(order))
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.001)
            inside -= 1

        await asyncio.gather(*await waits(queue, work, 20))
        return most, order, queue.waiting

    assert asyncio.run(run()) == (3, list(range(20)), 0)


def test_a_wait_is_the_requests_ahead_times_the_median_and_too_long_a_one_is_refused() -> None:
    async def run() -> None:
        queue, work = admission(took=0.5, max_concurrent=2, max_wait_ms=1_000), asyncio.Event()
        tasks = await waits(queue, work.wait, 5)
        assert (queue.waiting, queue.wait_seconds()) == (3, 4 * 0.5 / 2)
        tasks += await waits(queue, work.wait, 1)
        with pytest.raises(OverloadedError, match=r"4 requests wait, about 1\.2 s") as refused:
            await queue.enter()
        assert refused.value.headers == {"retry-after": "2"}
        assert queue.refused == 1
        work.set()
        assert all(await asyncio.gather(*tasks))

    asyncio.run(run())


def test_after_a_pause_all_are_served_and_under_lasting_overload_only_those_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    async def run(pause: float, seconds_each: float) -> tuple[int, int]:
        """Return how many of 40 were served and refused when the machine pauses, and then serves so slowly."""
        nonlocal now
        queue, served = admission(max_concurrent=1, max_wait_ms=2_000), 0
        place = queue.place()
        await place.__aenter__()

        async def request() -> None:
            nonlocal now, served
            async with queue.place():
                served += 1
                now += seconds_each

        tasks = [asyncio.create_task(request()) for _ in range(40)]
        await asyncio.sleep(0)
        now += pause
        await place.__aexit__(None, None, None)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(error is None or "too much to do" in str(error) for error in ended)
        assert (queue.waiting, queue._free) == (0, 1)
        return served, queue.refused

    assert asyncio.run(run(5.0, 0.01)) == (40, 0)
    # All have waited for 5 s already; after 2 s in which nobody was in time nobody else of them is served.
    assert asyncio.run(run(5.0, 0.5)) == (5, 35)


def test_whoever_waited_less_than_the_limit_is_served_while_those_before_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    async def run() -> list[str]:
        nonlocal now
        queue, order = admission(max_concurrent=1, max_wait_ms=1_000), []
        inside = queue.place()
        await inside.__aenter__()
        queue._late_since = -1.5  # nobody was in time for longer than anybody may wait

        async def request(name: str) -> None:
            with contextlib.suppress(OverloadedError):
                async with queue.place():
                    order.append(name)

        tasks = [asyncio.create_task(request("old"))]
        await asyncio.sleep(0)
        now = 2.0
        tasks.append(asyncio.create_task(request("new")))
        await asyncio.sleep(0)
        await inside.__aexit__(None, None, None)
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(run()) == ["new"]


def test_the_time_until_a_request_notices_its_turn_counts_as_that_of_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    async def run() -> float:
        nonlocal now
        queue = Admission(Overload(max_concurrent=1))
        first, second = queue.place(), queue.place()
        await first.__aenter__()
        entering = asyncio.create_task(second.__aenter__())
        await asyncio.sleep(0)
        await first.__aexit__(None, None, None)
        now = 3.0  # the event loop had other things to do
        await entering
        await second.__aexit__(None, None, None)
        return queue._took[-1]

    assert asyncio.run(run()) == 3.0


def test_one_pause_does_not_refuse_a_burst() -> None:
    queue = admission(took=0.01, max_concurrent=16, max_wait_ms=1_000)
    for _ in range(16):  # all that are inside wait for the machine
        queue._took.append(30.0)

    async def run() -> None:
        work = asyncio.Event()
        tasks = await waits(queue, work.wait, 16 + 1_000)
        work.set()
        assert all(await asyncio.gather(*tasks))

    asyncio.run(run())
    assert queue.refused == 0


def test_more_than_may_wait_are_refused_however_quick_the_others_were() -> None:
    async def run() -> None:
        queue, work = admission(max_concurrent=1, max_waiting=2), asyncio.Event()
        tasks = await waits(queue, work.wait, 3)
        with pytest.raises(OverloadedError):
            await queue.enter()
        work.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())


def test_whoever_gives_up_waiting_leaves_no_gap() -> None:
    async def run() -> int:
        queue, work = admission(max_concurrent=1), asyncio.Event()
        first, *others = await waits(queue, work.wait, 4)
        others[0].cancel()
        await asyncio.sleep(0)
        assert queue.waiting == 2
        work.set()
        others[1].cancel()  # it has its turn by the time it hears of that
        await asyncio.wait([first, *others])
        assert others[2].result() is True
        await asyncio.gather(*await waits(queue, work.wait, 5))
        return queue.waiting

    assert asyncio.run(run()) == 0


def test_whoever_waits_for_a_model_server_lets_others_in_and_goes_first_afterwards() -> None:
    async def run() -> list[str]:
        queue, order, back, work = admission(max_concurrent=1), [], asyncio.Event(), asyncio.Event()

        async def held() -> None:
            async with queue.place() as place:
                place.step_aside()
                await back.wait()
                await asyncio.gather(place.come_back(), place.come_back())  # two parts of one request
                order.append("held")

        async def newcomer(name: str) -> None:
            async with queue.place():
                await work.wait()
                order.append(name)

        tasks = [asyncio.create_task(held())]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(newcomer(name)) for name in ("first", "second")]
        await asyncio.sleep(0)
        assert queue.waiting == 2
        back.set()
        await asyncio.sleep(0.01)
        work.set()
        await asyncio.gather(*tasks)
        assert (queue.waiting, queue._free) == (0, 1)
        return order

    assert asyncio.run(run()) == ["first", "held", "second"]


def test_a_place_that_is_given_up_while_aside_is_free() -> None:
    async def run() -> tuple[int, int]:
        queue = admission(max_concurrent=1)
        with pytest.raises(ValueError, match="broken"):
            async with queue.place() as place:
                place.step_aside()
                raise ValueError("broken")
        assert isinstance(place, Place)
        return queue._free, queue.waiting

    assert asyncio.run(run()) == (1, 0)


def test_a_loop_that_is_late_again_and_again_counts_as_waiting_and_one_that_was_late_once_does_not() -> None:
    async def run() -> None:
        queue = admission(max_concurrent=1, max_wait_ms=1_000)
        queue._delays.extend([9.0, 0.0, 9.0, 9.0])
        async with queue.place():
            pass
        queue._delays.extend([9.0, 8.0])
        with pytest.raises(OverloadedError, match=r"about 8\.0 s"):
            await queue.enter()
        keeping = asyncio.create_task(queue.keep_time())
        while min(queue._delays) > 1:
            await asyncio.sleep(0.05)
        keeping.cancel()

    asyncio.run(run())


def test_every_refusal_has_a_code_of_grpcs_and_too_much_to_do_is_resource_exhausted() -> None:
    assert _CODES[OverloadedError] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert set(RequestError.__subclasses__()) <= set(_CODES)


def test_only_a_server_that_cannot_score_says_that_another_one_may() -> None:
    assert UNREADY_HEADER in ModelUnavailableError("no Triton").headers
    assert UNREADY_HEADER not in OverloadedError("too much", retry_seconds=3).headers
