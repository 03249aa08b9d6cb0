"""The prediction log is uploaded to an object store and read back without losses or duplicates."""

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
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monitoring.monitoring_job import fetch_live_logs, page_address, publish_pages
from monitoring.windows.live_window import LiveWindow
from monitoring.windows.spans import Span
from monitoring.windows.windows import Windows
from shortlist.contracts import ShortlistError
from shortlist.features.online_stores.sqlite import SQLiteOnline
from shortlist.rollout.local.lifecycle import stop_stack
from shortlist.rollout.local.stack import Stack
from shortlist.serving.log.log_mirror import mirror
from shortlist.serving.log.log_reader import parts, read_log
from shortlist.serving.log.log_shipper import LogShipper
from shortlist.serving.log.log_writer import LogWriter
from shortlist.serving.log.logs import PART, outcome_schema, prediction_schema
from shortlist.serving.paths import ServingPaths
from shortlist.spec.data import Data
from shortlist.spec.monitoring import Monitoring
from shortlist.spec.serving import PredictionLog, Serving
from shortlist.storage.objects import open_object_store
from shortlist.storage.storage_config import StorageConfig

KEY = "logs/shop/predictions"
SCHEMA = pa.schema({"request_id": pa.string()})
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


@pytest.fixture(autouse=True)
def impatient_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")


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


def write(folder: Path, *ids: str, number: int | None = None) -> Path:
    """Write a part as the server does: whole, under its own name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / PART.format(number=len(parts(folder)) if number is None else number)
    pq.write_table(pa.table({"request_id": list(ids)}, schema=SCHEMA), path)
    return path


def shipper_of(folder: Path, url: str, keep_seconds: float = 3600.0, writer: str = "pod-1") -> LogShipper:
    return LogShipper(folder, open_object_store(StorageConfig(objects=url)), KEY, writer, keep_seconds)


def keys_of(s3: Any) -> list[str]:
    pages = s3.client().get_paginator("list_objects_v2").paginate(Bucket=s3.bucket)
    return sorted(one["Key"] for page in pages for one in page.get("Contents", ()))


def arrived(url: str, folder: Path) -> list[str]:
    """Return the request ids that a reader of the object store sees."""
    mirror(open_object_store(StorageConfig(objects=url)), KEY, folder)
    return sorted(pq.ParquetDataset([*parts(folder)]).read()["request_id"].to_pylist()) if parts(folder) else []


def until(holds: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_finished_parts_arrive_once_with_day_writer_and_process_in_their_key(s3: Any, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    path = write(folder / "v3-17-1", "a", "b")
    write(folder, "c", number=0)
    (folder / "v3-17-1" / "part-000001.parquet.partial").write_bytes(b"half")
    shipper = shipper_of(folder, s3.url)
    assert (shipper.ship(), shipper.ship(), shipper.shipped, shipper.waiting()) == (2, 0, 2, [])
    day = datetime.fromtimestamp(path.stat().st_mtime, UTC).date()
    assert keys_of(s3) == [
        f"shortlist/{KEY}/{day}/pod-1-v3-17-1/part-000000.parquet",
        f"shortlist/{KEY}/{day}/pod-1/part-000000.parquet",
    ]
    assert arrived(s3.url, tmp_path / "mirror") == ["a", "b", "c"]


def test_a_part_that_is_shipped_again_is_the_same_object(s3: Any, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    path = write(folder / "v3-17-1", "a")
    shipper_of(folder, s3.url).ship()
    before = keys_of(s3)
    path.with_name(path.name + ".shipped").unlink()  # as when it was killed before it could mark it
    assert shipper_of(folder, s3.url).ship() == 1
    assert keys_of(s3) == before
    assert arrived(s3.url, tmp_path / "mirror") == ["a"]


def test_writers_of_the_same_numbers_do_not_meet(s3: Any, tmp_path: Path) -> None:
    for pod in ("pod-1", "pod-2"):
        write(tmp_path / pod / "v3-17-1", pod)
        shipper_of(tmp_path / pod, s3.url, writer=pod).ship()
    assert arrived(s3.url, tmp_path / "mirror") == ["pod-1", "pod-2"]


def test_a_shipped_part_leaves_the_disk_after_the_declared_time_and_no_other_does(s3: Any, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    write(folder / "v3-17-1", "a")
    keeping = shipper_of(folder, s3.url)
    keeping.ship()
    keeping.tidy()
    assert len(parts(folder)) == 1
    write(folder / "v3-17-1", "b")  # not shipped yet
    throwing = shipper_of(folder, s3.url, keep_seconds=0.0)
    throwing.tidy()
    assert [path.name for path in parts(folder)] == ["part-000001.parquet"]
    assert not list(folder.rglob("*.shipped"))
    throwing.ship()
    throwing.tidy()
    assert parts(folder) == []
    assert arrived(s3.url, tmp_path / "mirror") == ["a", "b"]


@pytest.mark.long
def test_an_outage_loses_and_doubles_nothing_and_stops_no_writer(store: Store, s3: Any, tmp_path: Path) -> None:
    folder, stop = tmp_path / "log", threading.Event()
    settings = PredictionLog(flush_seconds=0.05)
    writer = LogWriter(folder / "v3-17-1", SCHEMA, settings)
    shipper = shipper_of(folder, s3.url)
    shipping = threading.Thread(target=shipper.run, args=(stop, 0.05))
    shipping.start()
    try:
        assert writer.add(("before",))
        until(lambda: shipper.shipped > 0)
        store.stop()
        written = writer.written
        for number in range(60):  # as many parts as a minute of traffic leaves behind
            assert writer.add((f"during-{number}",))
            writer.flush()
        until(lambda: shipper.failures > 1)
        assert shipper.problem is not None
        assert "cannot be reached" in shipper.problem
        assert (writer.written - written, writer.dropped, writer.problem) == (60, 0, None)
        assert len(shipper.waiting()) == 60
        store.start()
        assert writer.add(("after",))
        writer.close()
        until(lambda: not shipper.waiting())
    finally:
        stop.set()
        shipping.join()
        writer.close()
    assert shipper.problem is None
    wanted = sorted(["before", "after", *(f"during-{number}" for number in range(60))])
    assert arrived(s3.url, tmp_path / "mirror") == wanted


def shipping_process(folder: Path, url: str, *more: str) -> subprocess.Popen[bytes]:
    named = ["--folder", str(folder), "--objects", url, "--spec", "shop", "--writer", "pod-1", *more]
    return subprocess.Popen([sys.executable, "-m", "shortlist.serving.log.log_shipper", *named], stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    said = process.communicate(timeout=60)[1].decode()
    return process.returncode, said


@pytest.mark.long
def test_a_shipper_killed_in_the_middle_goes_on_where_it_was(s3: Any, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    ids = [f"request-{number:03d}" for number in range(150)]
    for number, one in enumerate(ids):
        write(folder / "v3-17-1", one, number=number)
    killed = shipping_process(folder, s3.url, "--poll-seconds", "0.01")
    try:
        until(lambda: len(list(folder.rglob("*.shipped"))) > 5)
    finally:
        killed.send_signal(signal.SIGKILL)
        ended(killed)
    shipped = len(list(folder.rglob("*.shipped")))
    assert 5 < shipped < 150
    again = shipping_process(folder, s3.url, "--poll-seconds", "0.01", "--quiet-seconds", "0.1")
    try:
        until(lambda: len(list(folder.rglob("*.shipped"))) == 150)
        write(folder / "v3-17-1", "last", number=150)
    finally:
        again.send_signal(signal.SIGTERM)  # what is there is shipped before it ends
        code, said = ended(again)
    assert code == 0, said
    assert "0 parts are only on this disk" in said
    assert arrived(s3.url, tmp_path / "mirror") == sorted([*ids, "last"])


def test_a_shipper_that_must_end_while_the_store_is_away_says_what_is_left(
    store: Store, s3: Any, tmp_path: Path
) -> None:
    write(tmp_path / "log", "a")
    store.stop()
    process = shipping_process(
        tmp_path / "log", s3.url, "--poll-seconds", "0.05", "--quiet-seconds", "0.2", "--grace-seconds", "0.5"
    )
    assert process.stderr is not None
    assert b"/log to s3://" in process.stderr.readline()  # it listens to signals now
    process.send_signal(signal.SIGTERM)
    code, said = ended(process)
    assert code == 1, said
    assert "1 parts wait: " in said
    assert "1 parts are only on this disk" in said
    assert "secret-of-the-test" not in said
    assert len(parts(tmp_path / "log")) == 1


def test_prometheus_is_told_what_waits(s3: Any, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    write(folder, "a")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    process = shipping_process(folder, s3.url, "--poll-seconds", "0.05", "--quiet-seconds", "0", "--metrics-port", port)

    def told() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    try:
        until(lambda: "shortlist_log_shipper_parts_total 1.0" in told())
        lines = told().splitlines()
    finally:
        process.send_signal(signal.SIGTERM)
        ended(process)
    for line in ("waiting 0.0", "oldest_seconds 0.0", "broken 0.0", "failures_total 0.0"):
        assert f"shortlist_log_shipper_{line}" in lines


def test_a_mirror_fetches_only_what_it_has_not(s3: Any, tmp_path: Path) -> None:
    folder, objects = tmp_path / "log", open_object_store(StorageConfig(objects=s3.url))
    write(folder / "v3-17-1", "a")
    shipper = shipper_of(folder, s3.url)
    shipper.ship()
    assert (mirror(objects, KEY, tmp_path / "mirror"), mirror(objects, KEY, tmp_path / "mirror")) == (1, 0)
    write(folder / "v3-17-1", "b")
    shipper.ship()
    objects.write(f"{KEY}/readme.txt", b"no part")
    half = tmp_path / "mirror" / "half.partial"
    half.write_bytes(b"half")
    assert mirror(objects, KEY, tmp_path / "mirror") == 1
    assert len(parts(tmp_path / "mirror")) == 2


def test_a_mirror_of_the_newest_days_lists_no_others(s3: Any, tmp_path: Path) -> None:
    objects, today = open_object_store(StorageConfig(objects=s3.url)), datetime.now(UTC).date()
    content = write(tmp_path / "log", "a").read_bytes()
    for day in (date(2025, 1, 1), today - timedelta(days=3), today):
        objects.write(f"{KEY}/{day}/pod-1/part-000000.parquet", content)
    assert mirror(objects, KEY, tmp_path / "some", today - timedelta(days=3)) == 2
    assert mirror(objects, KEY, tmp_path / "many", today - timedelta(days=32)) == 2
    assert mirror(objects, KEY, tmp_path / "all") == 3


def test_a_mirror_says_that_the_store_is_away(store: Store, s3: Any, tmp_path: Path) -> None:
    objects = open_object_store(StorageConfig(objects=s3.url))
    store.stop()
    with pytest.raises(ShortlistError, match="cannot be reached"):
        mirror(objects, KEY, tmp_path / "mirror")


def live_traffic(paths: ServingPaths) -> None:
    """Two servers and a web server write two days: unordered, doubled, late, one part of each torn."""
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
            put(paths.predictions / f"v3-{pod}", answers, rows)
            told = [
                {"time": row["time"] + MINUTES, "request_id": row["request_id"], "row": place, "label": place}
                for row in rows
                for place in (0, 1)
            ]  # fmt: skip
            put(paths.outcomes / "web", outcomes, [*told, *told[:3]])
    for folder in (paths.predictions / "v3-1", paths.outcomes / "web"):
        (folder / PART.format(number=99)).write_bytes(b"torn")


def put(folder: Path, schema: pa.Schema, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / PART.format(number=len(parts(folder)))
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def test_windows_of_the_object_store_are_those_of_local_files(s3: Any, tmp_path: Path) -> None:
    paths = ServingPaths.for_spec(tmp_path / "runs", "shop")
    live_traffic(paths)
    for kind, folder in (("predictions", paths.predictions), ("outcomes", paths.outcomes)):
        objects = open_object_store(StorageConfig(objects=s3.url))
        LogShipper(folder, objects, f"logs/shop/{kind}", "pod", 3600.0).ship()
    stores = StorageConfig(folder=tmp_path / "elsewhere" / "stores", objects=s3.url, log_in_objects=True)
    mirrored = fetch_live_logs(stores, "shop")
    assert mirrored != paths
    schema = prediction_schema(DATA)
    for folder in (mirrored.predictions, mirrored.outcomes):
        assert len(parts(folder)) > 8
    here, there = windows_of(paths), windows_of(mirrored)
    assert (here.find().mature, len(here.find().mature)) == (there.find().mature, 3)
    for span in here.find().mature:
        one, other = here.read(span), there.read(span)
        assert one.rows.height > 0
        assert as_numbers(one) == as_numbers(other)
        assert one.rows.equals(other.rows)
        assert one.scored.sort("score").equals(other.scored.sort("score"))
    with pytest.raises(ShortlistError, match=r"cannot be read"):
        read_log(mirrored.predictions, schema)


def test_without_an_object_store_windows_are_read_where_servers_wrote_them(tmp_path: Path) -> None:
    stores = StorageConfig(folder=tmp_path / "runs" / "stores", objects="s3://bucket/prefix")
    assert fetch_live_logs(stores, "shop") == ServingPaths.for_spec(tmp_path / "runs", "shop")


@pytest.mark.long
def test_a_stack_on_this_machine_brings_its_logs_to_the_object_store(s3: Any, tmp_path: Path) -> None:
    paths = ServingPaths.for_spec(tmp_path / "runs", "shop")
    try:
        Stack.up(paths, "shop", Serving(), SQLiteOnline(), "shop", log_objects=s3.url)
        write(paths.predictions / "v3-17-1", "a")
        write(paths.outcomes / "web", "b")
        until(lambda: len(keys_of(s3)) == 2)
    finally:
        stopped = stop_stack(paths)
    assert {"shipper-predictions", "shipper-outcomes"} <= set(stopped)
    assert ["outcomes" in key for key in keys_of(s3)] == [True, False]


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
