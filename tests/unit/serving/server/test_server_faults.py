"""Faults that a server with a real Triton survives."""

import asyncio
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from shortlist.features.fits.publish import announce_views
from shortlist.serving.processes.launch import clear_bytecode, clear_shared_memory
from shortlist.serving.triton.triton import running_triton, triton_program
from shortlist.storage.artefacts import folder_digest

pytestmark = pytest.mark.long

INFER = "/v2/models/shop/infer"


def column(name: str, datatype: str, *values: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [len(values)], "data": list(values)}


USER = column("user_id", "INT64", 1)
THREE = column("item_id", "BYTES", "item 0", "item 2", "nowhere")
FIRST = column("position", "INT64", 1)


def logged(server: Any, request_id: str) -> dict[str, Any]:
    log_rows: list[dict[str, Any]] = []

    def has_row() -> bool:
        rows = server.logged().filter(pl.col("request_id") == request_id)
        log_rows.extend(rows.to_dicts())
        return bool(log_rows)

    server.until(has_row)
    assert len(log_rows) == 1
    return log_rows[0]


def test_requests_outlive_a_killed_triton(start: Any, repository: Path, tmp_path: Path) -> None:
    with running_triton(repository) as first, ThreadPoolExecutor(3) as askers:
        server = start(first.http)
        server.until_ready()
        early = [askers.submit(server.infer, THREE, FIRST) for _ in range(20)]
        os.killpg(first.pid, signal.SIGKILL)
        late = [askers.submit(server.infer, THREE, FIRST) for _ in range(3)]
        server.until(lambda: server.get("/v2/health/ready")[0] == 503)
        with _restarted(first, repository, tmp_path):
            statuses = [task.result()[0] for task in (*early, *late)]
    assert statuses == [200] * 23


@contextmanager
def _restarted(first: Any, repository: Path, folder: Path) -> Iterator[None]:
    """Run a Triton on the ports of another."""
    clear_bytecode(repository)
    program = triton_program("again", repository, folder_digest(repository), first.ports, f"again-{os.getpid()}-", True)
    program.write(folder / "program.json")
    with (folder / "triton.log").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "shortlist.serving.processes.launch", str(folder / "program.json")],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        clear_shared_memory(program.shared_memory or "")


class BrokenTriton(BaseHTTPRequestHandler):
    """A Triton that is ready but cannot score, because its model process is gone."""

    def do_GET(self) -> None:
        self._answer(200)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(500)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def test_a_server_is_ready_only_when_it_can_score_a_row(start: Any, triton: Any) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BrokenTriton) as broken, ThreadPoolExecutor(1) as thread:
        thread.submit(broken.serve_forever)
        try:
            server = start(f"127.0.0.1:{broken.server_address[1]}")
            server.until(lambda: _up(server) and server.metric("shortlist_snapshot_age_seconds") < float("inf"))
            assert server.get("/v2/health/ready")[0] == 503
        finally:
            broken.shutdown()
        server.stop()


def test_while_its_triton_is_down_another_replicas_triton_scores(start: Any, triton: Any) -> None:
    server = start("unix:/nowhere/triton.sock", spare_predictors=[triton.http], hold_seconds=0)
    server.until_ready()
    assert server.infer(THREE, FIRST)[0] == 200


def test_without_triton_a_request_waits_and_is_then_refused(start: Any) -> None:
    server = start("127.0.0.1:9", hold_seconds=0.5)
    server.until(lambda: server.metric("shortlist_snapshot_age_seconds") < float("inf") if _up(server) else False)
    began = time.monotonic()
    status, answer = server.infer(THREE, FIRST)
    assert status == 503
    assert answer["error"].startswith("the model server cannot be reached for 0.5 s")
    assert time.monotonic() - began >= 0.5
    assert server.get("/v2/health/ready")[0] == 503
    assert server.get("/v2/health/live")[0] == 200


def _up(server: Any) -> bool:
    try:
        return server.get("/v2/health/live")[0] == 200
    except OSError:
        return False


def test_without_its_store_users_are_unknown_and_the_response_is_degraded(
    start: Any, triton: Any, copied: Any, impressions: Any
) -> None:
    server = start(triton.http, store=copied.store)
    server.until_ready()
    whole = [1000.0 * impressions[1] + 1.0]
    item = column("item_id", "BYTES", "item 0")
    assert server.infer(USER, item, FIRST)[1]["outputs"][0]["data"] == whole
    database = copied.store / "online.db"
    shutil.move(database, copied.store / "away.db")
    server.until(lambda: server.infer(USER, item, FIRST)[1]["parameters"]["degraded"])
    _, answer = server.infer(USER, item, FIRST, x_request_id="degraded")
    assert answer["outputs"][0]["data"] == [1.0]
    assert logged(server, "degraded")["degraded"] is True
    status, _, body = server.get("/v2/health/ready")
    assert status == 200
    assert "online.db" in json.loads(body)["problems"]["users"]
    assert server.metric("shortlist_users_broken") == 1
    assert server.metric("shortlist_degraded_answers_total") >= 2
    shutil.move(copied.store / "away.db", database)
    server.until(lambda: not server.infer(USER, item, FIRST)[1]["parameters"]["degraded"])
    assert server.infer(USER, item, FIRST)[1]["outputs"][0]["data"] == whole


def test_a_locked_store_does_not_delay_responses(start: Any, triton: Any, copied: Any, impressions: Any) -> None:
    with closing(sqlite3.connect(copied.store / "online.db")) as writer:
        writer.execute("PRAGMA journal_mode=DELETE")  # so that a writer locks readers out, as it does not in ours
        server = start(triton.http, store=copied.store)
        server.until_ready()
        item = column("item_id", "BYTES", "item 0")
        assert server.infer(USER, item, FIRST)[1]["outputs"][0]["data"] == [1000.0 * impressions[1] + 1.0]
        writer.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        _, answer = server.infer(USER, item, FIRST)
        assert time.monotonic() - began < 2.5  # SQLite itself would wait for 5 s
        assert answer["parameters"]["degraded"] is True
        assert answer["outputs"][0]["data"] == [1.0]
        writer.execute("ROLLBACK")
    server.until(lambda: not server.infer(USER, item, FIRST)[1]["parameters"]["degraded"])


def test_newer_views_are_read_without_a_restart_and_broken_ones_are_not(start: Any, triton: Any, copied: Any) -> None:
    server = start(triton.http, store=copied.store)
    server.until_ready()

    def weight() -> float:
        return float(server.infer(column("item_id", "BYTES", "item 0"), FIRST)[1]["outputs"][0]["data"][0])

    assert weight() == 1.0
    newer_folder = copied.folder / "newer"
    shutil.copytree(copied.folder / "fitted" / "views", newer_folder)
    items = pl.read_parquet(newer_folder / "items.parquet")
    items.with_columns(pl.lit(42.0).alias("weight")).write_parquet(newer_folder / "items.parquet")
    announce_views(newer_folder, copied.store, copied.until, copied.folder / "log")
    server.until(lambda: weight() == 42.0)
    broken = copied.folder / "broken"
    shutil.copytree(newer_folder, broken)
    (broken / "items.parquet").write_bytes(b"torn")
    announce_views(broken, copied.store, copied.until, copied.folder / "log")
    server.until(lambda: server.metric("shortlist_snapshot_broken") == 1)
    assert weight() == 42.0
    assert server.infer(column("item_id", "BYTES", "item 0"), FIRST)[1]["parameters"]["degraded"] is False
    status, _, body = server.get("/v2/health/ready")
    assert status == 200
    assert "view 'items'" in json.loads(body)["problems"]["views"]
    announce_views(newer_folder, copied.store, copied.until, copied.folder / "log")
    server.until(lambda: server.metric("shortlist_snapshot_broken") == 0)


def test_a_stopped_server_finishes_open_requests_and_writes_its_log(start: Any, triton: Any) -> None:
    server = start(triton.http, log={"flush_seconds": 600})
    server.until_ready()

    async def ask() -> list[int]:
        return list(await asyncio.gather(*(asyncio.to_thread(server.infer, THREE, FIRST) for _ in range(20))))

    answered = [status for status, _ in asyncio.run(ask())]
    assert server.stop() == 0, server.log.read_text()
    assert answered == [200] * 20
    assert server.logged().height == 20


def test_a_killed_server_loses_no_flushed_rows(start: Any, triton: Any) -> None:
    server = start(triton.http)
    server.until_ready()
    server.infer(THREE, FIRST, x_request_id="kept")
    logged(server, "kept")
    server.stop(signal.SIGKILL)
    assert server.logged()["request_id"].to_list() == ["kept"]


@pytest.mark.parametrize("taken_port", ["http_port", "grpc_port"])
def test_a_port_in_use_gives_a_message_and_an_exit_code(start: Any, taken_port: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other_socket:
        port = other_socket.getsockname()[1]
        server = start("127.0.0.1:9", **{taken_port: port})
        assert server.process.wait(60) == 1
    log_text = server.log.read_text()
    assert f"port {port} of 127.0.0.1 is not available" in log_text
    assert "Traceback" not in log_text
