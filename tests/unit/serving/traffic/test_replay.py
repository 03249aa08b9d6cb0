"""Replay of the log against a server that records its requests."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from aiohttp import web
from filelock import FileLock

from shortlist.contracts import Columns, DataError, Files, ShortlistError
from shortlist.rollout.evidence.outcomes import OUTCOMES, REQUESTS, OutcomeJoin
from shortlist.serving.log.logs import REPLAYED_ID, outcome_schema
from shortlist.serving.traffic.background import run_replay
from shortlist.serving.traffic.client import Endpoint
from shortlist.serving.traffic.replay import (
    LEDGER,
    LOCK,
    SUMMARY,
    WHILE_STDIN_IS_OPEN,
    ReplaySettings,
    describe,
    describe_end,
    replay,
)
from shortlist.serving.traffic.sessions import SlateRequests
from shortlist.spec.data import Data
from shortlist.spec.serving import ReplayTraffic
from shortlist.storage.artefacts import read_json, write_json
from shortlist.storage.tables import DayTable, DayTableWriter
from tests.served_log import logged_rows

USERS, ITEMS = 6, 5


@dataclass
class Server:
    """Scores an item by its key: 0.1 for 1, 0.2 for 2; user 5 gets an error from the canary."""

    port: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    slates: list[dict[str, Any]] = field(default_factory=list)
    has_no_slates: bool = False

    async def recommend(self, request: web.Request) -> web.Response:
        head = await self._tensors(request)
        self.slates.append({"id": request.headers["x-request-id"], "inputs": set(head)})
        if self.has_no_slates:
            return web.Response(status=404)
        output = {"name": "score", "datatype": "FP32", "shape": [3], "data": [0.3, 0.2, 0.1]}
        answer = {"model_name": "m.recommend", "model_version": "3", "outputs": [output]}
        return web.json_response(answer, headers={"x-shortlist-track": "stable"})

    async def _tensors(self, request: web.Request) -> dict[str, bytes]:
        body = await request.read()
        head, offset = json.loads(body[: int(request.headers["Inference-Header-Content-Length"])]), 0
        tensors: dict[str, bytes] = {}
        start = int(request.headers["Inference-Header-Content-Length"])
        for tensor in head["inputs"]:
            size = tensor["parameters"]["binary_data_size"]
            tensors[tensor["name"]] = body[start + offset : start + offset + size]
            offset += size
        return tensors

    async def infer(self, request: web.Request) -> web.Response:
        tensors = await self._tensors(request)
        user = request.headers["x-shortlist-user"]
        items = np.frombuffer(tensors["item_id"], np.int64)
        self.requests.append({"id": request.headers["x-request-id"], "user": user, "items": items, "at": time.time()})
        if user == "5":
            return web.Response(status=500, headers={"x-shortlist-track": "canary"})
        output = {"name": "score", "datatype": "FP32", "shape": [len(items)], "data": (items / 10).tolist()}
        answer = {"model_name": "m", "model_version": "3", "outputs": [output]}
        return web.json_response(answer, headers={"x-shortlist-track": "stable"})


@pytest.fixture
def server() -> Iterator[Server]:
    """A server in its own thread."""
    running, server, loop, ended = threading.Event(), Server(), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/v2/models/m/infer", server.infer)
        app.router.add_post("/v2/models/m.recommend/infer", server.recommend)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.port = runner.addresses[0][1]
        running.set()
        await ended.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert running.wait(10)
    yield server
    loop.call_soon_threadsafe(ended.set)
    thread.join()
    loop.close()


@pytest.fixture
def settings(server: Server, tmp_path: Path) -> Callable[..., ReplaySettings]:
    """Return a function that gives settings for a log of six users who each saw items 0 to 4; the odd clicked on 4."""
    columns = [{"name": name, "type": "integer"} for name in ("user_id", "item_id", "is_click")]
    declared = {"source": {"kind": "generated"}, "columns": columns, "label": "is_click", "user": "user_id"}
    clock = {"kind": "column", "column": "time", "unit": "s"}
    data = Data.model_validate({**declared, "item": "item_id", "clock": clock})
    start = datetime(2026, 1, 5, tzinfo=UTC)
    impressions = [(user, item) for item in range(ITEMS) for user in range(USERS)]
    writer = DayTableWriter(tmp_path / "log", Files.LOG, 1_000)
    writer.append(
        pl.DataFrame(
            {
                Columns.TIME: [start + timedelta(seconds=number) for number in range(len(impressions))],
                Columns.DAY: [start.date()] * len(impressions),
                Columns.IMPRESSION: range(len(impressions)),
                Columns.LABEL: pl.Series([int(item == 4 and user % 2) for user, item in impressions], dtype=pl.Int8),
                "user_id": [user for user, _ in impressions],
                "item_id": [item for _, item in impressions],
            }
        ).with_columns(pl.col(Columns.TIME).cast(pl.Datetime("us", "UTC")))
    )
    writer.close()

    def make(rate: float = 200, delay: float = 0.0, **changed: Any) -> ReplaySettings:
        return ReplaySettings(
            data=data,
            log=tmp_path / "log",
            traffic=ReplayTraffic(kind="replay", rate=rate, outcome_delay_seconds=delay),
            endpoint=Endpoint(port=server.port, model="m"),
            outcomes=tmp_path / "outcomes",
            out=tmp_path / "replay",
            **changed,
        )

    return make


def outcomes(settings: ReplaySettings) -> pl.DataFrame:
    return logged_rows(settings.outcomes, outcome_schema(pa.int64()))


def test_the_log_is_replayed_repeatedly_with_new_request_ids(
    settings: Callable[..., ReplaySettings], server: Server
) -> None:
    summary = replay(settings(seconds=0.3))
    assert len(server.requests) == summary["sent"] > 2 * USERS
    assert summary["rounds"] >= 3
    assert len({request["id"] for request in server.requests}) == len(server.requests)
    assert {request["user"] for request in server.requests} == {str(user) for user in range(USERS)}
    assert all(request["items"].tolist() == list(range(ITEMS)) for request in server.requests)


def test_a_replay_says_where_within_a_day_of_the_log_it_ended(
    settings: Callable[..., ReplaySettings], server: Server
) -> None:
    summary = replay(settings(rate=20), stop=lambda: len(server.requests) >= 2)
    assert 0 < summary["sent"] < USERS  # a session begins every second
    first_unsent = datetime(2026, 1, 5, second=summary["sent"], tzinfo=UTC)
    assert summary["ended_within_day"] == first_unsent.isoformat()
    assert describe_end(summary).startswith("It ended within 2026-01-05 of the log, at 00:00 (round 1).")
    assert "--rounds 1 replays whole days" in describe_end(summary)


def test_a_replay_of_whole_days_has_nothing_to_say_of_its_end(settings: Callable[..., ReplaySettings]) -> None:
    assert describe_end(replay(settings(rounds=1))) == ""


def test_a_replay_says_which_days_it_plays(settings: Callable[..., ReplaySettings]) -> None:
    summary = replay(settings(rounds=1))
    assert "\n  days of the log: 2026-01-05, 30 rows\n" in describe(summary)
    several = summary | {"first_day": "2026-01-02", "log_rows": 4_279, "collected_rows": 1_660}
    assert describe(several).splitlines()[1] == (
        "  days of the log: 2026-01-02 to 2026-01-05, 4,279 rows; 1,660 rows collected from live traffic are not"
        " replayed"
    )


def test_rows_that_were_collected_are_not_replayed(settings: Callable[..., ReplaySettings], server: Server) -> None:
    declared = settings(rounds=1)
    log = declared.log
    rows = pl.read_parquet(DayTable.open(log, Files.LOG).paths())
    served = pl.when(pl.col("user_id") < 4).then(None).otherwise(3).cast(pl.Int64).alias(Columns.SERVED_VERSION)
    later_day = rows.with_columns(pl.col(Columns.TIME, Columns.DAY) + timedelta(days=1))
    write_log(log, rows.with_columns(served), later_day.with_columns(pl.lit(3, pl.Int64).alias(Columns.SERVED_VERSION)))
    summary = replay(declared)
    assert {request["user"] for request in server.requests} == {"0", "1", "2", "3"}
    assert "2026-01-05, 20 rows; 40 rows collected from live traffic are not replayed\n" in describe(summary)


def test_a_log_of_collected_rows_alone_is_not_replayed(settings: Callable[..., ReplaySettings], server: Server) -> None:
    declared = settings(rounds=1)
    rows = pl.read_parquet(DayTable.open(declared.log, Files.LOG).paths())
    write_log(declared.log, rows.with_columns(pl.lit(3, pl.Int64).alias(Columns.SERVED_VERSION)))
    with pytest.raises(DataError, match=r"all 30 rows of the log were collected from live traffic; .* data\.source"):
        replay(declared)
    assert not server.requests


def write_log(folder: Path, *frames: pl.DataFrame) -> None:
    """Replace a log by other rows."""
    shutil.rmtree(folder)
    writer = DayTableWriter(folder, Files.LOG, 1_000)
    for frame in frames:
        writer.append(frame)
    writer.close()


def test_the_ids_of_a_rollouts_replay_say_what_they_are(
    settings: Callable[..., ReplaySettings], server: Server
) -> None:
    replay(settings(rounds=1, id_prefix=REPLAYED_ID))
    assert server.requests and all(request["id"].startswith(REPLAYED_ID) for request in server.requests)


def test_slates_are_asked_for_beside_the_logs_requests_where_the_release_has_them(
    settings: Callable[..., ReplaySettings], server: Server
) -> None:
    slates = SlateRequests(k=3, context=(), recent_items=5)
    summary = replay(settings(seconds=3, slates=slates, id_prefix=REPLAYED_ID))
    assert summary["slates_answered"] == summary["slates_sent"] == len(server.slates) > 5
    assert len(server.slates) < len(server.requests) / 10
    assert f" answered, {len(server.slates)} of {len(server.slates)} slates, failed " in describe(summary)
    assert {name for slate in server.slates for name in slate["inputs"]} == {"k", "user_id"}
    ids = {slate["id"] for slate in server.slates}
    assert len(ids) == len(server.slates) and all(name.startswith(REPLAYED_ID) for name in ids)
    assert not ids & set(outcomes(settings())["request_id"].to_list())  # what users would do with them is not known


def test_no_slates_are_asked_for_once_a_version_on_the_port_has_none(
    settings: Callable[..., ReplaySettings], server: Server
) -> None:
    server.has_no_slates = True
    replay(settings(seconds=3, slates=SlateRequests(k=3, context=(), recent_items=5)))
    assert (len(server.slates) <= 2, len(server.requests) > 300) == (True, True)


def test_every_row_has_the_logs_own_outcome(settings: Callable[..., ReplaySettings], server: Server) -> None:
    declared = settings(seconds=0.2)
    summary = replay(declared)
    written = outcomes(declared)
    user_of = {request["id"]: int(request["user"]) for request in server.requests}
    answered = {name for name, user in user_of.items() if user != 5}
    assert written.height == summary["outcomes"] == ITEMS * len(answered)
    assert written.select("request_id", "row").is_unique().all()
    assert set(written["request_id"]) == answered
    for name, item, row, label in written.select("request_id", "item", "row", "label").rows():
        assert item == row
        assert label == int(item == 4 and user_of[name] % 2)


@pytest.mark.parametrize("top", [1, 2])
def test_the_canarys_kpi_equals_the_one_of_the_best_rows_alone(
    settings: Callable[..., ReplaySettings], server: Server, top: int
) -> None:
    declared = settings(seconds=0.2)
    replay(declared)
    written = outcomes(declared).select(pl.col("request_id").hash().alias("request"), "row", "label").cast(OUTCOMES)
    requests_frame = pl.DataFrame(
        {"id": [request["id"] for request in server.requests], "user": [request["user"] for request in server.requests]}
    )
    requests = requests_frame.select(
        pl.col("id").hash().alias("request"),
        pl.col("user").hash(),
        pl.lit(0, pl.Int32).alias("step"),
        pl.lit(value=False).alias("canary"),
        pl.lit([item / 10 for item in range(ITEMS)], pl.List(pl.Float32)).alias("scores"),
        pl.lit(value=False).alias("slate"),
    )
    best = written.filter(pl.col("row") >= ITEMS - top)  # the server scores an item by its number
    assert best.height == written.height * top / ITEMS
    of_all, of_best = (OutcomeJoin(top).add(requests.cast(REQUESTS), outcomes) for outcomes in (written, best))
    assert of_all.sort("user").equals(of_best.sort("user"))
    assert of_all["shown"].unique().to_list() == [top]
    assert of_all["positive"].sum() > 0


def test_outcomes_due_at_once_are_all_written(settings: Callable[..., ReplaySettings], server: Server) -> None:
    declared = settings(seconds=0.3, delay=60)  # all of them are due at the end
    summary = replay(declared)
    assert (summary["outcomes"], summary["outcomes_dropped"]) == (ITEMS * summary["answered"], 0)
    assert outcomes(declared).height == summary["outcomes"] > 100


def test_failures_have_no_outcomes_and_are_counted_by_track(
    settings: Callable[..., ReplaySettings], server: Server
) -> None:
    declared = settings(seconds=0.2)
    summary = replay(declared)
    failed = sum(request["user"] == "5" for request in server.requests)
    assert summary["failed_by_track"] == {"canary": failed, "stable": 0}
    assert summary["answered_by_track"] == {"canary": 0, "stable": len(server.requests) - failed}
    assert (summary["lost"], summary["outcomes_dropped"]) == (0, 0)
    assert read_json(declared.out / "summary.json") == summary
    ledger = pl.read_parquet(declared.out / "ledger.parquet")
    assert set(ledger["id"]) == {request["id"] for request in server.requests}
    (reason,) = summary["reasons"]
    assert reason["status"] >= 500 and reason["requests"] == failed
    assert f"{failed} canary, 0 refused, 0 lost" in describe(summary)
    assert describe(summary).endswith(f"\n  {failed} x {reason['status']}: {reason['message']}\n")


def test_outcomes_are_written_after_the_delay(settings: Callable[..., ReplaySettings], server: Server) -> None:
    declared = settings(seconds=0.6, delay=0.2)
    replay(declared)
    requests_frame = pl.DataFrame(
        {
            "request_id": [request["id"] for request in server.requests],
            "at": [request["at"] for request in server.requests],
        }
    )
    # Those that were waited for when the replay ended come at once.
    early = outcomes(declared).join(
        requests_frame.filter(pl.col("at") < requests_frame["at"].max() - 0.25), "request_id"
    )
    waits = early["time"].dt.epoch("us") / 1e6 - early["at"]
    assert early.height > USERS
    assert waits.min() >= 0.199  # type: ignore[operator] # there are some


def test_a_missing_endpoint_gives_failures_and_no_crash(settings: Callable[..., ReplaySettings]) -> None:
    nowhere = Endpoint(port=1, model="m", patience_seconds=0.05)
    declared = settings(seconds=0.1).model_copy(update={"endpoint": nowhere})
    summary = replay(declared)
    assert summary["failed"] == summary["sent"] > 0
    assert summary["retried"] > 0  # a busy machine has time for no retry of some
    assert (summary["outcomes"], summary["p50_ms"]) == (0, None)
    assert "failed" in describe(summary)


@pytest.mark.parametrize("ending", ["signal", "stdin"])
def test_the_program_ends_cleanly(settings: Callable[..., ReplaySettings], server: Server, ending: str) -> None:
    declared = settings(delay=60)
    write_json(declared.log.parent / "settings.json", declared.model_dump(mode="json"))
    command = [sys.executable, "-m", "shortlist.serving.traffic.replay", str(declared.log.parent / "settings.json")]
    with subprocess.Popen([*command, WHILE_STDIN_IS_OPEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        wait_until(lambda: len(server.requests) > 20)
        assert program.stdin is not None
        assert program.stdout is not None
        program.send_signal(signal.SIGTERM) if ending == "signal" else program.stdin.close()
        output = program.stdout.read().decode()
    summary = read_json(declared.out / "summary.json")
    assert program.returncode == 0
    assert output == describe(summary)
    assert (summary["lost"], summary["sent"]) == (0, len(server.requests))
    assert outcomes(declared).height == ITEMS * summary["answered"]  # also those whose time had not come


def test_a_replay_in_the_background_lives_as_long_as_its_block(
    settings: Callable[..., ReplaySettings], server: Server
) -> None:
    declared = settings()
    with run_replay(declared):
        wait_until(lambda: len(server.requests) > 20)
    request_count = len(server.requests)
    assert read_json(declared.out / "summary.json")["sent"] == request_count
    assert (declared.out / "replay.log").read_text().startswith(f"replayed {request_count} requests")


def test_concurrent_replays_do_not_write_to_the_same_files(
    settings: Callable[..., ReplaySettings], server: Server
) -> None:
    declared = settings(seconds=0.2)
    declared.out.mkdir()
    with ThreadPoolExecutor(1) as pool:
        with FileLock(declared.out / LOCK):
            ending = pool.submit(replay, declared)
            wait_until(lambda: outcomes(declared).height > 0)
            time.sleep(0.3)
            assert [path.name for path in declared.out.iterdir()] == [LOCK]
        summary = ending.result(20)
    assert read_json(declared.out / SUMMARY) == summary
    assert pl.read_parquet(declared.out / LEDGER).height == summary["sent"] == len(server.requests)


def test_invalid_settings_are_refused(settings: Callable[..., ReplaySettings], tmp_path: Path) -> None:
    write_json(tmp_path / "settings.json", settings().model_dump(mode="json") | {"rows": 0})
    with pytest.raises(ShortlistError, match=r"settings\.json: rows: Input should be greater than or equal to 1"):
        ReplaySettings.read(tmp_path / "settings.json")


def wait_until(holds: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
