"""Admission control of a server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from shortlist.serving.server.protocols.grpc_app import _CODES
from shortlist.serving.server.requests.admission import Admission, AdmissionSlot
from shortlist.serving.server.requests.headers import UNREADY_HEADER
from shortlist.serving.server.requests.request_errors import ModelUnavailableError, OverloadedError, RequestError
from shortlist.spec.serving import Overload


def admission(took: float = 0.0, **limits: Any) -> Admission:
    """Return a queue whose last requests took so many seconds each."""
    queue = Admission(Overload.model_validate(limits))
    for _ in range(64):
        queue._durations.append(took)
    return queue


async def waits(queue: Admission, work: Callable[[], Awaitable[Any]], count: int) -> list[asyncio.Task[Any]]:
    """Let requests enter one after another."""

    async def request() -> Any:
        async with queue.slot():
            return await work()

    tasks = []
    for _ in range(count):
        tasks.append(asyncio.create_task(request()))
        await asyncio.sleep(0)
    return tasks


def test_at_most_max_concurrent_requests_run_and_the_queue_is_in_order() -> None:
    async def run() -> tuple[int, list[int], int]:
        queue, inside, most_inside, order = admission(max_concurrent=3), 0, 0, []

        async def work() -> None:
            nonlocal inside, most_inside
            order.append(len(order))
            inside += 1
            most_inside = max(most_inside, inside)
            await asyncio.sleep(0.001)
            inside -= 1

        await asyncio.gather(*await waits(queue, work, 20))
        return most_inside, order, queue.waiting

    assert asyncio.run(run()) == (3, list(range(20)), 0)


def test_the_estimated_wait_is_the_queue_times_the_median_and_long_waits_are_refused() -> None:
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


@pytest.mark.parametrize(("client", "network"), [("192.0.2.7", "192.0.2.7"), ("2001:db8:0:{:x}::1", "2001:db8::/48")])
def test_senders_take_turns_and_one_that_asks_for_too_much_waits_for_itself_alone(client: str, network: str) -> None:
    async def run() -> None:
        queue, order, may_end = admission(took=0.5, max_concurrent=2, max_waiting=6), [], asyncio.Event()

        async def request(sender: str) -> None:
            async with queue.slot(client.format(len(tasks)) if sender == "a" else sender):
                await may_end.wait()
                order.append(sender)

        tasks = []
        for sender in "aaaaaaaa":
            tasks.append(asyncio.create_task(request(sender)))
            await asyncio.sleep(0)
        assert queue.waiting == 6
        assert (queue.wait_seconds(network), queue.wait_seconds("b")) == (7 * 0.5 / 2, 2 * 0.5 / 2)
        with pytest.raises(OverloadedError):
            await queue.enter(network)
        tasks += [asyncio.create_task(request(sender)) for sender in "bbbb"]
        await asyncio.sleep(0)
        assert queue.waiting == 6
        may_end.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        # The newest of `a` made room for three of `b`: a fourth would leave `a` with fewer than `b`.
        assert [sender for sender, outcome in zip("aaaaaaaabbbb", outcomes, strict=True) if outcome] == [*"aaab"]
        assert order[:2] == [*"aa"] and sorted(order[2:]) == [*"aaabbb"]
        assert {*order[2:4]} == {*order[4:6]} == {"a", "b"}
        assert (queue.waiting, queue.refused) == (0, 5)

    asyncio.run(run())


def test_after_a_pause_all_are_served_and_under_overload_only_requests_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    async def run(pause: float, seconds_each: float) -> tuple[int, int]:
        """Return how many of 40 were served and refused when the machine pauses, and then serves so slowly."""
        nonlocal now
        queue, served = admission(max_concurrent=1, max_wait_ms=2_000), 0
        place = queue.slot()
        await place.__aenter__()

        async def request() -> None:
            nonlocal now, served
            async with queue.slot():
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


def test_requests_within_the_limit_are_served_while_later_ones_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    async def run() -> list[str]:
        nonlocal now
        queue, order = admission(max_concurrent=1, max_wait_ms=1_000), []
        inside = queue.slot()
        await inside.__aenter__()
        queue._late_since = -1.5  # nobody was in time for longer than anybody may wait

        async def request(name: str) -> None:
            with contextlib.suppress(OverloadedError):
                async with queue.slot():
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


def test_the_time_until_a_request_resumes_counts_to_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)

    async def run() -> float:
        nonlocal now
        queue = Admission(Overload(max_concurrent=1))
        first, second = queue.slot(), queue.slot()
        await first.__aenter__()
        entering = asyncio.create_task(second.__aenter__())
        await asyncio.sleep(0)
        await first.__aexit__(None, None, None)
        now = 3.0  # the event loop had other things to do
        await entering
        await second.__aexit__(None, None, None)
        return queue._durations[-1]

    assert asyncio.run(run()) == 3.0


def test_one_pause_does_not_refuse_a_burst() -> None:
    queue = admission(took=0.01, max_concurrent=16, max_wait_ms=1_000)
    for _ in range(16):  # all that are inside wait for the machine
        queue._durations.append(30.0)

    async def run() -> None:
        work = asyncio.Event()
        tasks = await waits(queue, work.wait, 16 + 1_000)
        work.set()
        assert all(await asyncio.gather(*tasks))

    asyncio.run(run())
    assert queue.refused == 0


def test_more_than_max_waiting_are_refused_even_after_fast_requests() -> None:
    async def run() -> None:
        queue, work = admission(max_concurrent=1, max_waiting=2), asyncio.Event()
        tasks = await waits(queue, work.wait, 3)
        with pytest.raises(OverloadedError):
            await queue.enter()
        work.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())


def test_a_cancelled_request_leaves_the_queue() -> None:
    async def run() -> int:
        queue, work = admission(max_concurrent=1), asyncio.Event()
        first, *other_tasks = await waits(queue, work.wait, 4)
        other_tasks[0].cancel()
        await asyncio.sleep(0)
        assert queue.waiting == 2
        work.set()
        other_tasks[1].cancel()  # it has its turn by the time it hears of that
        await asyncio.wait([first, *other_tasks])
        assert other_tasks[2].result() is True
        await asyncio.gather(*await waits(queue, work.wait, 5))
        return queue.waiting

    assert asyncio.run(run()) == 0


def test_a_request_that_waits_for_a_model_server_releases_its_slot_and_returns_first() -> None:
    async def run() -> list[str]:
        queue, order, back, work = admission(max_concurrent=1), [], asyncio.Event(), asyncio.Event()

        async def hold_slot() -> None:
            async with queue.slot() as place:
                place.release()
                await back.wait()
                await asyncio.gather(place.reacquire(), place.reacquire())  # two parts of one request
                order.append("held")

        async def newcomer(name: str) -> None:
            async with queue.slot():
                await work.wait()
                order.append(name)

        tasks = [asyncio.create_task(hold_slot())]
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


def test_a_slot_cancelled_after_its_release_is_free() -> None:
    async def run() -> tuple[int, int]:
        queue = admission(max_concurrent=1)
        with pytest.raises(ValueError, match="broken"):
            async with queue.slot() as place:
                place.release()
                raise ValueError("broken")
        assert isinstance(place, AdmissionSlot)
        return queue._free, queue.waiting

    assert asyncio.run(run()) == (1, 0)


def test_repeated_loop_delays_count_as_waiting_and_a_single_one_does_not() -> None:
    async def run() -> None:
        queue = admission(max_concurrent=1, max_wait_ms=1_000)
        queue._loop_delays.extend([9.0, 0.0, 9.0, 9.0])
        async with queue.slot():
            pass
        queue._loop_delays.extend([9.0, 8.0])
        with pytest.raises(OverloadedError, match=r"about 8\.0 s"):
            await queue.enter()
        keeping = asyncio.create_task(queue.measure_loop_delay())
        while min(queue._loop_delays) > 1:
            await asyncio.sleep(0.05)
        keeping.cancel()

    asyncio.run(run())


def test_every_error_has_a_grpc_status_and_overload_is_resource_exhausted() -> None:
    assert _CODES[OverloadedError] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert set(RequestError.__subclasses__()) <= set(_CODES)


def test_only_a_server_that_cannot_score_refers_to_another_server() -> None:
    assert UNREADY_HEADER in ModelUnavailableError("no Triton").headers
    assert UNREADY_HEADER not in OverloadedError("too much", retry_seconds=3).headers
