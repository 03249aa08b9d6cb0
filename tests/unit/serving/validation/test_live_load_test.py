"""The load test of a version's own port, with healthy, slow, briefly busy and broken servers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from aiohttp import web

from shortlist.contracts import Columns, Files
from shortlist.serving.validation.live_load_test import live_load_failures, live_row, live_row_failures
from shortlist.spec.data import Data
from shortlist.spec.gates import Infra
from shortlist.storage.artefacts import write_json
from shortlist.storage.tables import DayTableWriter

ROWS = 12
LIMITS = Infra(
    rows_per_request=4, requests_per_second=100, seconds=0.2, max_p50_ms=100, max_p99_ms=150, slates_per_second=50,
    max_slate_p50_ms=100, max_slate_p99_ms=150,
)  # fmt: skip
DATA = Data.model_validate(
    {
        "source": {"kind": "generated"},
        "columns": [
            {"name": "person", "type": "integer"},
            {"name": "video", "type": "string"},
            {"name": "price", "type": "number"},
            {"name": "is_click", "type": "integer"},
        ],
        "user": "person",
        "item": "video",
        "label": "is_click",
        "clock": {"kind": "row_order"},
    }
)
Behaviour = Callable[[int], tuple[int, float]]
"""From the number of a request to its status and the seconds until its answer."""


@contextmanager
def serving(behaviour: Behaviour, slate: Behaviour, slates: list[bytes]) -> Iterator[int]:
    """Yield the port of a server in its own thread; requests for slates are appended to a list."""
    running, loop, ended, ports, request_counts = threading.Event(), asyncio.new_event_loop(), asyncio.Event(), [0], [0]

    async def infer(request: web.Request) -> web.Response:
        await request.read()
        request_counts[0] += 1
        status, seconds = behaviour(request_counts[0])
        await asyncio.sleep(seconds)
        outputs = [{"name": "score", "data": [0.5] * LIMITS.rows_per_request}]
        return web.json_response({"model_version": "4", "outputs": outputs}, status=status)

    async def recommend(request: web.Request) -> web.Response:
        slates.append(await request.read())
        status, seconds = slate(len(slates))
        await asyncio.sleep(seconds)
        outputs = [{"name": "score", "data": [0.5] * (1 + len(slates) % 3)}]  # some slates are short
        return web.json_response({"model_version": "4", "outputs": outputs}, status=status)

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/v2/models/m/infer", infer)
        app.router.add_post("/v2/models/m.recommend/infer", recommend)
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
            "person": [row // 4 for row in range(ROWS)],
            "video": [f"video {row}" for row in range(ROWS)],
        }
    )
    writer = DayTableWriter(tmp_path / "log", Files.LOG, 1_000)
    writer.append(frame)
    writer.close()
    return tmp_path / "log"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    section = {"candidates": 7, "context": ["price"], "sources": {"popular": {"kind": "popular"}}}
    (tmp_path / "release" / "sources").mkdir(parents=True)
    write_json(tmp_path / "release" / "sources" / "retrieval.json", {"section": section})
    return tmp_path / "release"


def well(number: int) -> tuple[int, float]:
    return 200, 0.0


def reasons(log: Path, behaviour: Behaviour) -> list[str]:
    with serving(behaviour, well, []) as port:
        return live_load_failures(port, "m", DATA, log, LIMITS, None)


def slate_reasons(log: Path, release: Path, slate: Behaviour, slates: list[bytes] | None = None) -> list[str]:
    with serving(well, slate, [] if slates is None else slates) as port:
        return live_load_failures(port, "m", DATA, log, LIMITS, release)


@pytest.mark.parametrize("status", [200, 503])
def test_a_row_is_scored_or_the_failure_names_the_server(log: Path, status: int) -> None:
    # The server of these tests answers with four scores.
    inputs = {name: np.repeat(values, 4, axis=0) for name, values in live_row(DATA, log).items()}
    with serving(lambda _: (status, 0.0), well, []) as port:
        failures = live_row_failures(port, "m", inputs)
    assert [f"127.0.0.1:{port} does not score a row: " in failure for failure in failures] == [True] * (status != 200)


def test_an_answer_without_a_score_of_each_row_is_a_failure(log: Path) -> None:
    with serving(well, well, []) as port:
        assert live_row_failures(port, "m", live_row(DATA, log)) == [
            f"127.0.0.1:{port} does not score a row: 4 scores for 1 rows"
        ]


def test_servers_that_are_gone_score_no_row(log: Path) -> None:
    inputs = live_row(DATA, log)
    with serving(well, well, []) as port:
        pass
    (failure,) = live_row_failures(port, "m", inputs)
    assert f"127.0.0.1:{port} does not score a row: not sent" in failure


def test_slate_requests_have_no_user_but_recent_items_and_the_declared_context(log: Path, release: Path) -> None:
    slates: list[bytes] = []
    assert slate_reasons(log, release, well, slates) == []
    first_slate = slates[0]
    assert len(slates) == 10 + 10  # ten are for warming, and 0.2 s at 50 a second
    assert b'"k"' in first_slate and b'"recent_items"' in first_slate and b'"price"' in first_slate
    assert b"video 0" in first_slate and b'"person"' not in first_slate


def test_a_release_with_slow_slates_fails_however_fast_it_scores(log: Path, release: Path) -> None:
    p50, p99 = slate_reasons(log, release, lambda number: (200, 0.2 if (number - 1) % 20 >= 10 else 0.0))
    assert p50.startswith("slate p50 2")
    assert p50.endswith(" ms > 100 ms (gates.infra.max_slate_p50_ms) at 50 slates per second")
    assert p99.endswith(" ms > 150 ms (gates.infra.max_slate_p99_ms) at 50 slates per second")


def test_an_unanswered_slate_fails_at_once(log: Path, release: Path) -> None:
    assert slate_reasons(log, release, lambda number: (500 if number == 15 else 200, 0.0)) == [
        "1 of 10 slates were not answered"
    ]


def test_a_server_within_the_limits_passes(log: Path) -> None:
    assert reasons(log, lambda number: (200, 0.0)) == []


def test_a_slow_server_fails(log: Path) -> None:
    p50, p99 = reasons(log, lambda number: (200, 0.2 if (number - 1) % 30 >= 10 else 0.0))  # ten are for warming
    assert p50.startswith("p50 2")
    assert p50.endswith(" ms > 100 ms (gates.infra.max_p50_ms) at 100 requests per second")
    assert p99.endswith(" ms > 150 ms (gates.infra.max_p99_ms) at 100 requests per second")


def test_a_slow_measurement_is_repeated(log: Path) -> None:
    assert reasons(log, lambda number: (200, 0.3 if 10 < number <= 30 else 0.0)) == []


def test_an_unanswered_request_fails_at_once(log: Path) -> None:
    assert reasons(log, lambda number: (500 if number == 15 else 200, 0.0)) == ["1 of 20 requests were not answered"]


def test_a_refused_request_counts_as_unanswered(log: Path) -> None:
    assert reasons(log, lambda number: (400, 0.0)) == ["20 of 20 requests were not answered"]
