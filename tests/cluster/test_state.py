"""Records in files and in PostgreSQL: both stores have the same guarantees."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pytest
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from shortlist.contracts import ShortlistError
from shortlist.features.feast.feast_store_location import spec_feast_store_location
from shortlist.kubeflow.training_runs import storage_config
from shortlist.runs.runs_folder import RunsFolder
from shortlist.spec.runtime import Database, Runtime
from shortlist.storage.records.folder import FolderRecordStore
from shortlist.storage.records.opening import RECORD_STORES, open_record_store
from shortlist.storage.records.store import LockedError, RecordStore
from shortlist.storage.storage_config import StorageConfig

if TYPE_CHECKING:
    import psycopg

STORES = ("files", "postgres")
BEGIN = """
import sys, time
from pathlib import Path
from shortlist.storage.records.opening import open_record_store
state = open_record_store(sys.argv[1], "monitoring", "demo")
"""


@pytest.fixture(params=STORES)
def stores(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StorageConfig:
    if request.param == "files":
        return StorageConfig(folder=tmp_path / "runs" / "stores", epoch="1")
    monkeypatch.setenv("RECORDS", request.getfixturevalue("postgres"))
    return StorageConfig(cluster="one", database_variable="RECORDS")


@pytest.fixture
def state(stores: StorageConfig) -> RecordStore:
    return open_record_store(stores, "monitoring", "demo")


@pytest.fixture
def server(postgres: str, monkeypatch: pytest.MonkeyPatch) -> StorageConfig:
    monkeypatch.setenv("RECORDS", postgres)
    return StorageConfig(cluster="one", database_variable="RECORDS")


@pytest.fixture
def holder(stores: StorageConfig) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Start processes that hold a lock."""
    started: list[subprocess.Popen[str]] = []

    def hold(name: str) -> subprocess.Popen[str]:
        script = f"{BEGIN}with state.lock({name!r}):\n    print('held', flush=True); time.sleep(60)"
        process = subprocess.Popen([sys.executable, "-c", script, str(stores)], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.communicate()


def test_a_text_is_created_once_and_read_back(state: RecordStore) -> None:
    assert state.read("decisions/a.json") is None
    assert state.create("decisions/a.json", '{"é": "\\u0000"}')
    assert not state.create("decisions/a.json", "second")
    assert state.read("decisions/a.json") == '{"é": "\\u0000"}'


def test_replace_overwrites_a_record(state: RecordStore) -> None:
    state.replace("told/a.json", "first")
    state.replace("told/a.json", "second")
    assert state.read("told/a.json") == "second"


def test_a_removed_record_can_be_recreated(state: RecordStore) -> None:
    state.create("a", "1")
    state.remove("a")
    state.remove("a")
    assert (state.read("a"), state.create("a", "2"), state.read("a")) == (None, True, "2")


def test_a_moved_text_has_one_name(state: RecordStore) -> None:
    state.replace("reports/new/a.json", "new")
    state.replace("reports/old/a.json", "old")
    state.move("reports/new/a.json", "reports/old/a.json")
    state.move("reports/new/a.json", "reports/old/a.json")  # as after a lost answer: nothing more happens
    assert state.names("reports/") == ["reports/old/a.json"]
    assert state.read("reports/old/a.json") == "new"


def test_names_are_those_below_a_prefix_sorted_as_python_sorts(state: RecordStore) -> None:
    names = ["a/B.json", "a/_.json", "a/a.json", "a/b/c.json", "ab/a.json", "a_/x.json", "looked"]
    for name in reversed(names):
        state.create(name, "")
    with state.lock("a/held"):  # what a store keeps for its own use is no record
        assert state.names("") == sorted(names)
        assert state.names("a/") == ["a/B.json", "a/_.json", "a/a.json", "a/b/c.json"]
        assert state.names("a_/") == ["a_/x.json"]  # no wildcard
        assert state.names("b/") == []


def test_written_is_the_moment_of_the_last_write(state: RecordStore) -> None:
    assert state.written("looked") is None
    state.replace("looked", "")
    first = state.written("looked")
    time.sleep(0.05)  # a disk's clock may tick a hundred times a second
    state.replace("looked", "")
    second = state.written("looked")
    assert first is not None
    assert second is not None
    assert first < second
    assert first.tzinfo is UTC
    assert abs(datetime.now(UTC) - second) < timedelta(minutes=5)


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../other/a.json", "a//b", ".hidden", "a/b/c/d", "a\nb"])
def test_a_name_that_leads_elsewhere_is_refused(state: RecordStore, name: str) -> None:
    with pytest.raises(AssertionError, match="not a record's name"):
        state.create(name, "")


def test_specs_areas_and_clusters_are_separate(stores: StorageConfig) -> None:
    open_record_store(stores, "monitoring", "demo").create("a", "demo's")
    assert open_record_store(stores, "monitoring", "other").names("") == []
    assert open_record_store(stores, "retraining", "demo").create("a", "another")
    if stores.cluster:
        assert open_record_store(stores.model_copy(update={"cluster": "two"}), "monitoring", "demo").create(
            "a", "two's"
        )
    assert open_record_store(stores, "monitoring", "demo").read("a") == "demo's"


@pytest.mark.long
def test_of_ten_processes_that_create_at_once_one_wins(
    stores: StorageConfig, state: RecordStore, tmp_path: Path
) -> None:
    script = f"""{BEGIN}
import threading
go = Path(sys.argv[2])
print("ready", flush=True)
while not go.exists():
    time.sleep(0.001)
print(sum(state.create(f"decisions/{{number}}.json", sys.argv[3]) for number in range(20)))
"""
    go = tmp_path / "go"
    ten = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(stores), str(go), str(number)], stdout=subprocess.PIPE, text=True
        )
        for number in range(10)
    ]
    try:
        for process in ten:  # nobody made the table yet: all ten will want to
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        go.touch()
        won = [int(process.communicate(timeout=60)[0]) for process in ten]
    finally:
        for process in ten:
            process.kill()
            process.communicate()
    assert sum(won) == 20
    writers = [state.read(f"decisions/{number}.json") for number in range(20)]
    assert [writers.count(str(number)) for number in range(10)] == won


def test_a_lock_shuts_out_others_until_its_holder_is_killed(
    state: RecordStore, holder: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = holder("book")
    assert state.is_locked("book")
    assert not state.is_locked("other")
    with pytest.raises(LockedError, match=r"book.* held by another process"), state.lock("book", seconds=0.1):
        pytest.fail("two held it")
    process.send_signal(signal.SIGKILL)
    with state.lock("book", seconds=30):
        assert state.is_locked("book")
    assert not state.is_locked("book")


def test_every_lock_is_seen_whatever_its_number(state: RecordStore) -> None:
    for name in map(str, range(12)):  # a server's number of a lock may be negative
        with state.lock(name):
            assert [number for number in map(str, range(12)) if state.is_locked(number)] == [name]


def test_threads_take_turns(state: RecordStore) -> None:
    state.replace("count", "0")

    def add(_: int) -> None:
        with state.lock("count"):
            count_before = int(state.read("count") or 0)
            time.sleep(0.001)
            state.replace("count", str(count_before + 1))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(24)))
    assert state.read("count") == "24"


def test_a_lock_is_free_after_an_error_in_its_block(state: RecordStore) -> None:
    with pytest.raises(ZeroDivisionError), state.lock("book"):
        raise ZeroDivisionError
    with state.lock("book", seconds=0):
        pass


def test_where_names_the_place_and_no_secret(state: RecordStore) -> None:
    assert state.where("decisions/a.json").endswith("monitoring/demo/decisions/a.json")
    assert "password" not in state.where("a")
    assert "pa55" not in state.where("a")


def test_files_keep_their_paths(tmp_path: Path) -> None:
    stores = f"{tmp_path / 'runs' / 'stores'}#epoch"
    open_record_store(stores, "monitoring", "demo").create("windows/a.json", "{}")
    open_record_store(stores, "rollouts", "demo").create("20260101-000000-demo-aaaa/state.json", "{}")
    assert (tmp_path / "runs/monitoring/demo/windows/a.json").read_text() == "{}"
    assert (tmp_path / "runs/rollouts/20260101-000000-demo-aaaa/state.json").read_text() == "{}"


def test_half_written_and_foreign_files_are_no_records(tmp_path: Path) -> None:
    state = FolderRecordStore(tmp_path)
    state.create("a/b.json", "{}")
    for name in ("a/b.json.partial", "a/.c.1-2", "a/.lock"):
        (tmp_path / name).touch()
    deep = tmp_path / "a/b/c/d"
    deep.mkdir(parents=True)
    (deep / "e.json").touch()
    assert state.names("") == ["a/b.json"]


def test_bytes_that_are_no_text_are_an_integrity_error(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ValueError, match="escape"):
        json.loads(FolderRecordStore(tmp_path).read("a.json") or "")


def test_stores_without_folder_and_database_are_refused() -> None:
    with pytest.raises(ShortlistError, match="'monitoring' needs a folder"):
        open_record_store(StorageConfig(), "monitoring", "demo")


def test_a_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECORDS", raising=False)
    with pytest.raises(ShortlistError, match="the environment variable RECORDS is not set"):
        open_record_store(StorageConfig(database_variable="RECORDS"), "monitoring", "demo")


class ShelfRecords(FolderRecordStore):
    """Records of a project's own: a folder for each cluster, area and spec below the address."""


def open_shelf(address: str, cluster: str, area: str, spec: str) -> ShelfRecords:
    """Return the records at `shelf:///path`."""
    return ShelfRecords(Path(address.removeprefix("shelf://")) / cluster / area / spec)


class Shelf(Database):
    """A record store that only this file knows."""

    opened_by: ClassVar[Mapping[str, str]] = {"shelf": f"{__name__}:open_shelf"}
    kind: Literal["shelf"]
    """A folder below the address."""

    @property
    def address_variable(self) -> str:
        return "RECORDS"


def test_a_spec_can_declare_its_own_record_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECORD_STORES, "shelf", Shelf)
    monkeypatch.setenv("RECORDS", f"shelf://{tmp_path}/shelf")
    runtime = Runtime.model_validate({"database": {"kind": "shelf"}, "cluster": {"name": "blue"}})
    runs = RunsFolder.open(tmp_path / "runs")
    stores = runs.storage_parameter(runtime)
    state = open_record_store(stores, "monitoring", "demo")
    assert isinstance(state, ShelfRecords)
    assert state.create("decisions/1.json", "{}")
    assert not open_record_store(stores, "monitoring", "demo").create("decisions/1.json", "{}")
    assert (tmp_path / "shelf" / "blue" / "monitoring" / "demo" / "decisions" / "1.json").read_text() == "{}"
    place = spec_feast_store_location(StorageConfig.parse(stores), "demo")
    assert isinstance(place.state, ShelfRecords)
    assert place.registry.endswith(str(runs.stores / "feast" / "demo" / "registry.db"))  # the shelf keeps none


def test_pods_need_a_record_store_with_feasts_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RECORD_STORES, "shelf", Shelf)
    bucket = {"kind": "bucket", "url": "s3://models/shortlist"}
    runtime = Runtime.model_validate({"profile": "cluster", "database": {"kind": "shelf"}, "objects": bucket})
    with pytest.raises(ShortlistError, match="runtime: got database: shelf, on one machine's disk"):
        storage_config(runtime)


@pytest.mark.parametrize("address", ["mysql://me:hush@host/db", "me:hush@host"])
def test_an_address_without_a_record_store_is_refused_unseen(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECORDS", address)
    with pytest.raises(
        ShortlistError, match="no record store is known for this address; wanted postgresql://"
    ) as logged:
        open_record_store(StorageConfig(database_variable="RECORDS"), "monitoring", "demo")
    assert "hush" not in str(logged.value)


def connected(postgres: str) -> psycopg.Connection[Any]:
    """Return a connection, as soon as a server that is being started takes one."""
    import psycopg

    away = retry_if_exception_type(psycopg.OperationalError)
    return Retrying(retry=away, wait=wait_fixed(0.02), stop=stop_after_delay(30))(psycopg.connect, postgres)


def kill_server(postgres: str) -> None:
    """Make the server throw everybody out and start anew: it does so when one of its processes is killed."""
    import psycopg

    with connected(postgres) as connection:
        pid = connection.info.backend_pid
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT pg_sleep(10)")


def restart_server(postgres: str) -> None:
    """Kill the server, and return when nobody's connection to the one before is left: then it answers again."""
    import psycopg

    with connected(postgres) as connection:
        kill_server(postgres)
        # Somebody's own process was killed; that it throws everybody else out is what is waited for.
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT pg_sleep(10)")
    connected(postgres).close()


def test_a_store_goes_on_after_the_server_restarted(server: StorageConfig, postgres: str) -> None:
    state = open_record_store(server, "monitoring", "demo")
    state.create("a", "1")
    for number in range(3):
        kill_server(postgres)
        assert state.create(f"b{number}", "2")
    assert (state.read("a"), state.names("b")) == ("1", ["b0", "b1", "b2"])


def test_a_holder_writes_on_after_the_server_restarted_if_nobody_had_its_lock(
    server: StorageConfig, postgres: str
) -> None:
    state = open_record_store(server, "rollouts", "demo")
    with state.lock("demo"):
        state.replace("state", "1")
        restart_server(postgres)
        state.replace("state", "2")
        assert state.is_locked("demo")
        with pytest.raises(LockedError), open_record_store(server, "rollouts", "demo").lock("demo", seconds=0):
            pytest.fail("two held it")
    assert state.read("state") == "2"
    assert not state.is_locked("demo")


def test_a_process_that_lost_its_lock_cannot_write(server: StorageConfig, postgres: str) -> None:
    old, new = open_record_store(server, "rollouts", "demo"), open_record_store(server, "rollouts", "demo")
    with old.lock("demo"):
        old.replace("state", "old")
        restart_server(postgres)
        with new.lock("demo", seconds=30):
            new.replace("state", "new")
        with pytest.raises(LockedError, match="lost with the connection, and another process took it over"):
            old.replace("state", "old again")
    assert old.read("state") == "new"


def test_a_create_whose_answer_was_lost_still_knows_that_it_won(
    server: StorageConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from psycopg import Error
    from sqlalchemy import Connection, event
    from sqlalchemy.exc import OperationalError

    state = open_record_store(server, "monitoring", "demo")
    state.names("")
    lost: list[bool] = []

    def lose(connection: Connection) -> None:
        if not lost:  # what was written is kept, and the answer never comes
            lost.append(True)
            connection.connection.driver_connection.commit()  # type: ignore[union-attr]
            raise OperationalError("COMMIT", {}, Error("server closed the connection unexpectedly"))

    event.listen(Connection, "commit", lose)
    try:
        assert state.create("a", "1")
        assert lost
        assert not state.create("a", "1")
    finally:
        event.remove(Connection, "commit", lose)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("postgresql://shortlist:s3cr3t-word@{host}/{database}", "password authentication failed"),
        ("postgresql://nobody:s3cr3t-word@{host}/{database}", "password authentication failed"),
        ("postgresql://shortlist:s3cr3t-word@{host}", "not a PostgreSQL address"),
        ("postgresql://shortlist:s3cr3t@word@{host}/{database}", "not a PostgreSQL address"),
        ("postgresql://shortlist:s3cr3t-word@{host}x/{database}", "not a PostgreSQL address"),
        ("mysql://shortlist:s3cr3t-word@{host}/{database}", "no record store is known for this address"),
        ("s3cr3t-word", "no record store is known for this address"),
    ],
)
def test_a_wrong_address_is_told_at_once_without_its_password(
    postgres: str, monkeypatch: pytest.MonkeyPatch, address: str, message: str
) -> None:
    host, database = postgres.partition("@")[2].split("/")
    monkeypatch.setenv("RECORDS", address.format(host=host, database=database))
    began = time.monotonic()
    with pytest.raises(ShortlistError, match=message) as caught:
        open_record_store(StorageConfig(database_variable="RECORDS"), "monitoring", "demo").read("a")
    assert time.monotonic() - began < 20  # patience is for servers that are unavailable, and lasts a minute
    assert "s3cr3t" not in str(caught.value)
    assert "@word" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from shortlist.storage.records.postgres_server import Server

    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ShortlistError, match=r"needs the package psycopg \(requirements/cluster\.txt\)"):
        Server("postgresql://me:s3cr3t-word@127.0.0.1:1/records")


def test_an_unreachable_server_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from shortlist.storage.records.postgres import PostgresRecordStore
    from shortlist.storage.records.postgres_server import Server
    from shortlist.storage.records.postgres_table import Rows

    server = Server("postgresql://me:s3cr3t-word@127.0.0.1:1/records", patience_seconds=0.3)
    with pytest.raises(ShortlistError, match=r"PostgreSQL at 127\.0\.0\.1:1/records for 0\.3 s: .*refused") as caught:
        PostgresRecordStore(server, Rows("", "monitoring", "demo")).read("a")
    assert "s3cr3t" not in str(caught.value)


def test_rights_that_are_missing_are_told_without_what_was_written(server: StorageConfig, postgres: str) -> None:
    import psycopg

    state = open_record_store(server, "monitoring", "demo")
    state.create("a", "1")
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("ALTER TABLE shortlist_records RENAME TO elsewhere")
    with pytest.raises(ShortlistError, match='relation "shortlist_records" does not exist') as caught:
        state.replace("a", "the body")
    assert "the body" not in str(caught.value)


def test_ten_threads_make_the_table_once(server: StorageConfig) -> None:
    barrier = threading.Barrier(10)

    def create(number: int) -> bool:
        state = open_record_store(server, "monitoring", f"spec{number}")
        barrier.wait()
        return state.create("a", "1")

    with ThreadPoolExecutor(10) as pool:
        assert all(pool.map(create, range(10)))
