"""The declared load on a version's own port, against servers that are well, slow, busy for a moment, or broken."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from aiohttp import web

from shortlist.contracts import Columns, Files
from shortlist.serving.validation.live_load_test import live_load_failures
from shortlist.spec.data import Data
from shortlist.spec.gates import Infra
from shortlist.storage.tables import DayTableWriter

pytestmark = pytest.mark.servers

ROWS = 12
LIMITS = Infra(rows_per_request=4, requests_per_second=100, seconds=0.2, max_p50_ms=100, max_p99_ms=150)
DATA = Data.model_validate(
    {
        "source": {"kind": "generated"},
        "columns": [{"name": "price", "type": "number"}, {"name": "is_click", "type": "integer"}],
        "label": "is_click",
        "clock": {"kind": "row_order"},
    }
)
Behaviour = Callable[[int], tuple[int, float]]
"""From the number of a request to its status and the seconds until its answer."""


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[int]:
    """Give the port of a server in a thread of its own."""
    running, loop, ended, ports, asked = threading.Event(), asyncio.new_event_loop(), asyncio.Event(), [0], [0]

    async def infer(request: web.Request) -> web.Response:
        await request.read()
        asked[0] += 1
        status, seconds = behaviour(asked[0])
        await asyncio.sleep(seconds)
        outputs = [{"name": "score", "data": [0.5] * LIMITS.rows_per_request}]
        return web.json_response({"model_version": "4", "outputs": outputs}, status=status)

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/v2/models/m/infer", infer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports[0] = runner.addresses[0][1]
        running.set()
        await ended.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert running.wait(10)
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    times = [datetime(2026, 1, 5, tzinfo=UTC) + timedelta(seconds=row) for row in range(ROWS)]
    frame = pl.DataFrame(
        {
            Columns.TIME: pl.Series(times, dtype=pl.Datetime("us", "UTC")),
            Columns.DAY: [time.date() for time in times],
            Columns.IMPRESSION: range(ROWS),
            Columns.LABEL: pl.Series([0, 1] * (ROWS // 2), dtype=pl.Int8),
            "price": [float(row) for row in range(ROWS)],
        }
    )
    writer = DayTableWriter(tmp_path / "log", Files.LOG, 1_000)
    writer.append(frame)
    writer.close()
    return tmp_path / "log"


def reasons(log: Path, behaviour: Behaviour) -> list[str]:
    with serving(behaviour) as port:
        return live_load_failures(port, "m", DATA, log, LIMITS)


def test_a_server_that_bears_the_load_is_not_held(log: Path) -> None:
    assert reasons(log, lambda number: (200, 0.0)) == []


def test_a_slow_server_is_held(log: Path) -> None:
    p50, p99 = reasons(log, lambda number: (200, 0.2 if (number - 1) % 30 >= 10 else 0.0))  # ten are for warming
    assert p50.startswith("p50 2")
    assert p50.endswith(" ms > 100 ms (gates.infra.max_p50_ms) at 100 requests per second")
    assert p99.endswith(" ms > 150 ms (gates.infra.max_p99_ms) at 100 requests per second")


def test_a_moment_in_which_the_machine_was_busy_is_measured_again(log: Path) -> None:
    assert reasons(log, lambda number: (200, 0.3 if 10 < number <= 30 else 0.0)) == []


def test_a_request_that_is_not_answered_holds_at_once(log: Path) -> None:
    assert reasons(log, lambda number: (500 if number == 15 else 200, 0.0)) == ["1 of 20 requests were not answered"]


def test_a_request_that_is_refused_was_not_answered_either(log: Path) -> None:
    assert reasons(log, lambda number: (400, 0.0)) == ["20 of 20 requests were not answered"]
