"""The logs of pods are committed to tables in an object store, without losses or duplicates."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from monitoring.monitoring_job import page_address, publish_pages
from monitoring.windows.live_window import LiveWindow
from monitoring.windows.spans import Span
from monitoring.windows.windows import Windows
from shortlist.features.online_stores.sqlite import SQLiteOnline
from shortlist.rollout.local.lifecycle import stop_stack
from shortlist.rollout.local.stack import Stack
from shortlist.serving.log.committer import LogCommitter
from shortlist.serving.log.log_rows import encode_rows
from shortlist.serving.log.log_tables import table_options
from shortlist.serving.log.log_writer import LogWriter
from shortlist.serving.log.logs import ANSWER_SCHEMA, outcome_schema, prediction_schema
from shortlist.serving.log.serving_log import ServingLog, stream_folder
from shortlist.serving.log.stored_logs import maintain_stored_logs, serving_log_paths
from shortlist.serving.log.table_committer import TableCommitter
from shortlist.serving.paths import ServingPaths
from shortlist.spec.data import Data
from shortlist.spec.monitoring import Monitoring
from shortlist.spec.serving import PredictionLog, Serving
from shortlist.storage.append_log.segments import segments
from shortlist.storage.append_log.writer import AppendLog, streams
from shortlist.storage.storage_config import StorageConfig
from tests.served_log import append_rows

KEY = "logs/shop/predictions"
IDS = pa.schema({"request_id": pa.string()})
MINUTES = timedelta(minutes=5)
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
DATA = Data.model_validate(
    {
        "source": {"kind": "files"},
        "columns": [
            {"name": "user_id", "type": "integer"},
            {"name": "price", "type": "number"},
            {"name": "clicked", "type": "integer"},
        ],
        "label": "clicked",
        "user": "user_id",
        "clock": {"kind": "column", "column": "time", "unit": "s"},
    }
)


class Store:
    """An S3 server that can be away; what it holds stays."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        self._new = lambda: ThreadedMotoServer(ip_address="127.0.0.1", port=self._port, verbose=False)
        self._server: Any = None
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._server = self._new()
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None


@pytest.fixture
def store(s3: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Another address of the same bucket, which the test may take away."""
    one = Store()
    monkeypatch.setenv("AWS_ENDPOINT_URL", one.address)
    yield one
    one.stop()


def write(folder: Path, *ids: str) -> None:
    """Append answers to the prediction log of a pod's disk, in a record each."""
    log = AppendLog(stream_folder(folder / "predictions") / "stream-000")
    for name in ids:
        log.append([encode_rows(answers(name))]).result()
    log.close()


def answers(*ids: str) -> pa.Table:
    rows = [{"time": NOON, "request_id": name, "version": 3, "status": 200, "scores": [0.5]} for name in ids]
    return pa.Table.from_pylist(rows, schema=ANSWER_SCHEMA)


def committer_of(folder: Path, url: str, keep_seconds: float = 3600.0) -> TableCommitter:
    return TableCommitter(stream_folder(folder / "predictions"), f"{url}/{KEY}", keep_seconds)


def keys_of(s3: Any) -> list[str]:
    pages = s3.client().get_paginator("list_objects_v2").paginate(Bucket=s3.bucket)
    return sorted(one["Key"] for page in pages for one in page.get("Contents", ()))


def arrived(url: str) -> list[str]:
    """Return the request ids that a reader of the object store sees."""
    rows = ServingLog(ANSWER_SCHEMA, f"{url}/{KEY}", None).read_all(["request_id"])
    return sorted(rows["request_id"])


def until(holds: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_rows_of_two_pods_arrive_once_in_few_objects(s3: Any, tmp_path: Path) -> None:
    for pod in ("pod-1", "pod-2"):
        write(tmp_path / pod, *(f"{pod}-{number}" for number in range(100)))
        committer = committer_of(tmp_path / pod, s3.url)
        assert (committer.commit(), committer.commit()) == (100, 0)
    assert len([key for key in keys_of(s3) if key.endswith(".parquet")]) == 2
    assert arrived(s3.url) == sorted(f"{pod}-{number}" for pod in ("pod-1", "pod-2") for number in range(100))


def test_only_committed_streams_leave_the_disk_after_the_declared_time(s3: Any, tmp_path: Path) -> None:
    write(tmp_path, "a")
    write(tmp_path, "b")
    committer_of(tmp_path, s3.url).commit()
    (stream,) = streams(stream_folder(tmp_path / "predictions"))
    assert len(segments(stream)) == 2
    committer_of(tmp_path, s3.url, keep_seconds=0.0).commit()
    assert len(segments(stream)) == 1  # the last one holds the end of the stream
    assert arrived(s3.url) == ["a", "b"]


@pytest.mark.long
def test_an_outage_loses_and_doubles_nothing_and_stops_no_writer(store: Store, s3: Any, tmp_path: Path) -> None:
    stop, settings = threading.Event(), PredictionLog(flush_seconds=0.05)
    writer = LogWriter(stream_folder(tmp_path / "predictions"), IDS, settings)
    tables = committer_of(tmp_path, s3.url)
    committer = LogCommitter([tables])
    committing = threading.Thread(target=committer.run, args=(stop, 0.05))
    committing.start()
    try:
        assert writer.add(("before",))
        until(lambda: tables.committed == 1)
        store.stop()
        written = writer.written
        for number in range(60):
            assert writer.add((f"during-{number}",))
            writer.flush()
        until(lambda: committer.failures > 1)
        assert committer.problem is not None
        assert "the table cannot be read or written" in committer.problem
        assert (writer.written - written, writer.dropped, writer.problem) == (60, 0, None)
        store.start()
        assert writer.add(("after",))
        writer.close()
        until(lambda: tables.committed == 62)
    finally:
        stop.set()
        committing.join()
        writer.close()
    assert committer.problem is None
    rows = ServingLog(IDS, f"{s3.url}/{KEY}", None).read_all(["request_id"])["request_id"]
    assert sorted(rows) == sorted(["before", "after", *(f"during-{number}" for number in range(60))])


def committing_process(folder: Path, url: str, *more: str) -> subprocess.Popen[bytes]:
    named = ["--folder", str(folder), "--objects", url, "--spec", "shop", *more]
    return subprocess.Popen([sys.executable, "-m", "shortlist.serving.log.committer", *named], stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    output = process.communicate(timeout=60)[1].decode()
    return process.returncode, output


@pytest.mark.long
def test_a_committer_killed_in_the_middle_resumes_at_its_offset(s3: Any, tmp_path: Path) -> None:
    ids = [f"request-{number:03d}" for number in range(150)]
    killed = committing_process(tmp_path, s3.url, "--commit-seconds", "0.01")
    try:
        write(tmp_path, *ids[:50])
        until(lambda: len(arrived(s3.url)) > 5)
        write(tmp_path, *ids[50:])
    finally:
        killed.send_signal(signal.SIGKILL)
        ended(killed)
    again = committing_process(tmp_path, s3.url, "--commit-seconds", "0.01", "--quiet-seconds", "0.1")
    try:
        until(lambda: len(arrived(s3.url)) == 150)
        write(tmp_path, "last")
    finally:
        again.send_signal(signal.SIGTERM)  # what is there is committed before it ends
        code, output = ended(again)
    assert code == 0, output
    assert "all rows are committed" in output
    assert arrived(s3.url) == sorted([*ids, "last"])


def test_a_committer_that_must_end_without_the_store_prints_a_warning(store: Store, s3: Any, tmp_path: Path) -> None:
    write(tmp_path, "a")
    store.stop()
    options = "--commit-seconds", "0.05", "--quiet-seconds", "0.2", "--grace-seconds", "0.5"
    process = committing_process(tmp_path, s3.url, *options)
    assert process.stderr is not None
    assert b" to s3://" in process.stderr.readline()  # it listens to signals now
    process.send_signal(signal.SIGTERM)
    code, output = ended(process)
    assert code == 1, output
    assert "some rows are only on this disk" in output
    assert "secret-of-the-test" not in output


def test_prometheus_is_told_what_is_committed(s3: Any, tmp_path: Path) -> None:
    write(tmp_path, "a")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    options = "--commit-seconds", "0.05", "--quiet-seconds", "0", "--metrics-port", port
    process = committing_process(tmp_path, s3.url, *options)

    def metrics() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    try:
        until(lambda: "shortlist_log_committer_rows_total 1.0" in metrics())
        lines = metrics().splitlines()
    finally:
        process.send_signal(signal.SIGTERM)
        ended(process)
    for line in ("skipped_total 0.0", "unreadable 0.0", "broken 0.0", "failures_total 0.0"):
        assert f"shortlist_log_committer_{line}" in lines


def live_traffic(paths: ServingPaths) -> None:
    """Two servers and a web server write two days: unordered, doubled, late."""
    answers, outcomes = prediction_schema(DATA), outcome_schema(pa.int64())
    for pod in (1, 2):
        for part in range(8):
            moment = NOON + timedelta(hours=6 * part, minutes=pod)
            rows = [
                {
                    "time": moment + timedelta(seconds=number), "request_id": f"{pod}-{part}-{number}",
                    "user": str(number), "track": "stable", "version": 3, "status": 200, "digest": "0" * 16,
                    "latency_ms": 4.0, "degraded": False, "items": None, "scores": [0.25, 0.5],
                    "user_id": [number], "price": [1.5, 2.5],
                }
                for number in range(20)
            ]  # fmt: skip
            append_rows(paths.predictions, answers, rows, pod)
            told = [
                {"time": row["time"] + MINUTES, "request_id": row["request_id"], "row": place, "label": place}
                for row in rows
                for place in (0, 1)
            ]  # fmt: skip
            append_rows(paths.outcomes, outcomes, [*told, *told[:3]])


def test_windows_of_the_object_store_are_those_of_this_disk(s3: Any, tmp_path: Path) -> None:
    paths = ServingPaths.for_spec(tmp_path / "runs", "shop")
    live_traffic(paths)
    for folder in (paths.predictions, paths.outcomes):
        TableCommitter(stream_folder(folder), f"{s3.url}/logs/shop/{folder.name}").commit()
    stores = StorageConfig(folder=tmp_path / "elsewhere" / "stores", objects=s3.url, log_in_objects=True)
    here, there = windows_of(paths), windows_of(serving_log_paths(stores, "shop"))
    assert (here.find().mature, len(here.find().mature)) == (there.find().mature, 3)
    for span in here.find().mature:
        one, other = here.read(span), there.read(span)
        assert one.rows.height > 0
        assert as_numbers(one) == as_numbers(other)
        assert one.rows.equals(other.rows)
        assert one.scored.sort("score").equals(other.scored.sort("score"))


def test_a_table_in_the_object_store_is_maintained_by_its_reader(s3: Any, tmp_path: Path) -> None:
    old = ServingPaths.for_spec(tmp_path / "runs", "shop", s3.url)
    for number in range(3):
        write(tmp_path, f"{number}")
        committer_of(tmp_path, s3.url).commit()
    maintain_stored_logs(old, timedelta(days=36_500))
    assert len(DeltaTable(f"{s3.url}/{KEY}", storage_options=table_options(s3.url)).file_uris()) == 1
    assert arrived(s3.url) == ["0", "1", "2"]
    maintain_stored_logs(old, timedelta(days=1))
    assert arrived(s3.url) == []


def test_without_an_object_store_logs_are_read_from_the_servers_folder(tmp_path: Path) -> None:
    stores = StorageConfig(folder=tmp_path / "runs" / "stores", objects="s3://bucket/prefix")
    assert serving_log_paths(stores, "shop") == ServingPaths.for_spec(tmp_path / "runs", "shop")


@pytest.mark.long
def test_a_stack_on_this_machine_brings_its_logs_to_the_object_store(s3: Any, tmp_path: Path) -> None:
    paths = ServingPaths.for_spec(tmp_path / "runs", "shop")
    try:
        Stack.up(paths, "shop", Serving(), SQLiteOnline(), log_objects=s3.url)
        write(paths.root, "a")
        until(lambda: arrived(s3.url) == ["a"])
    finally:
        stopped = stop_stack(paths)
    assert "log-committer" in stopped


def test_pages_are_put_where_people_find_them_and_stay_here_while_the_store_is_away(
    store: Store, s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("monitoring.monitoring_job.note", said.append)
    stores, folder = StorageConfig(cluster="one", objects=s3.url), tmp_path / "pages"
    (folder / "windows" / "20260302").mkdir(parents=True)
    for name in ("status.html", "windows/20260302/drift.html", "metrics.prom"):
        (folder / name).touch()
    publish_pages(stores, "shop", folder)
    assert keys_of(s3) == [
        "shortlist/monitoring/shop/status.html", "shortlist/monitoring/shop/windows/20260302/drift.html"
    ]  # fmt: skip
    assert page_address(stores, "shop", "status.html") == f"{s3.url}/monitoring/shop/status.html"
    assert page_address(StorageConfig(folder=tmp_path), "shop", "status.html") == ""
    store.stop()
    publish_pages(stores, "shop", folder)
    (why,) = said
    assert why.startswith("Pages stay on this machine: ")


def windows_of(paths: ServingPaths) -> Windows:
    settings = Monitoring.model_validate({"window": {"maturity_hours": 1.0}})
    return Windows(paths, DATA, Path("unused"), settings, NOON + timedelta(days=30))


def as_numbers(window: LiveWindow) -> tuple[Any, ...]:
    bare = replace(window, rows=pl.DataFrame(), scored=pl.DataFrame(), unreadable=())
    return (
        Span(bare.start, bare.end), bare.requests, bare.coverage, bare.late, bare.duplicates, bare.orphans, bare.future,
        len(window.unreadable),
    )  # fmt: skip
