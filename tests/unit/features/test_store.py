import importlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal

import httpx
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from shortlist.contracts import DataError, ShortlistError
from shortlist.features.feast import store as store_module
from shortlist.features.feast.feast_environment import environment_variables, silence_feast, temporary_environment
from shortlist.features.feast.feast_store_location import feast_store_location
from shortlist.features.feast.store import ROW, FeastStore, apply, connect, is_online_view, user_reader, with_answers
from shortlist.features.online_stores.redis import RedisOnline
from shortlist.features.online_stores.registry import ONLINE_STORES
from shortlist.features.online_stores.sqlite import SQLiteOnline
from shortlist.features.stored_views.view_index import INDEX, StoredView, ViewColumn, ViewIndex
from shortlist.serving.processes.ports import free_ports
from shortlist.spec.runtime import FileOf, OnlineStore, Runtime
from shortlist.storage.artefacts import write_json
from shortlist.system.project import project_root

ZONE = "Asia/Shanghai"  # eight hours ahead: a day begins at 16:00 UTC of the day before
BIG = 2**53 + 1  # a float cannot hold it


def start(day: int) -> datetime:
    return datetime(2026, 1, day, tzinfo=UTC) - timedelta(hours=8)


def view(
    name: str, keys: dict[str, str], features: dict[str, str], frame: pl.DataFrame, static: bool = False
) -> StoredView:
    return StoredView(
        name=name,
        keys=tuple(ViewColumn(name=key, dtype=dtype) for key, dtype in keys.items()),
        features=tuple(ViewColumn(name=feature, dtype=dtype) for feature, dtype in features.items()),
        path=f"{name}.parquet",
        static=static,
        rows=frame.height,
        newest_keys=frame.select(list(keys)).n_unique(),
    )


def write(folder: Path, frames: dict[str, pl.DataFrame], views: list[StoredView]) -> Path:
    folder.mkdir(exist_ok=True)
    index = ViewIndex(
        folder=folder, views=tuple(views), first_day=date(2026, 1, 5), last_day=date(2026, 1, 7), timezone=ZONE
    )
    write_json(folder / INDEX, index.model_dump(mode="json"))
    for view in views:
        frames[view.name].write_parquet(folder / view.path)
    return folder


def moments(*days: int) -> pl.Series:
    return pl.Series([start(day) for day in days], dtype=pl.Datetime("us", "UTC"))


CLICKS = pl.DataFrame(
    {
        "user": [1, 1, 2, 2],
        "event_timestamp": moments(6, 7, 7, 8),
        "rows": [2, 3, 1, 2],
        "rate": [0.5, None, 0.1, 0.2],
        "last_time": [BIG, BIG + 2, 5, 7],
        "fill": [None, None, None, 2**53],
    }
)
PAIRS = pl.DataFrame({"user": [1, 2], "tab": ["a", "b"], "event_timestamp": moments(6, 7), "rows": [5, 6]})
OVERALL = pl.DataFrame({"everything": [0, 0, 0], "event_timestamp": moments(6, 7, 8), "rows": [10, 20, 30]})
USERS = pl.DataFrame(
    {
        "user": [1, 2],
        "event_timestamp": pl.Series([datetime(1970, 1, 1, tzinfo=UTC)] * 2, dtype=pl.Datetime("us", "UTC")),
        "history": [[BIG, 2], []],
        "vector": pl.Series([[0.1, 0.2], None], dtype=pl.List(pl.Float32)),
        "name": [None, "bo"],
    }
)
FRAMES = {"clicks": CLICKS, "pairs": PAIRS, "overall": OVERALL, "users": USERS}
VIEWS = [
    view(
        "clicks", {"user": "Int64"}, {"rows": "Int64", "rate": "Float64", "last_time": "Int64", "fill": "Int64"}, CLICKS
    ),
    view("pairs", {"user": "Int64", "tab": "String"}, {"rows": "Int64"}, PAIRS),
    view("overall", {"everything": "Int64"}, {"rows": "Int64"}, OVERALL),
    view(
        "users",
        {"user": "Int64"},
        {"history": "List(Int64)", "vector": "List(Float32)", "name": "String"},
        USERS,
        static=True,
    ),
]


@pytest.fixture(scope="session")
def applied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `views` and a `store` they were applied to: making a registry takes a second."""
    folder = tmp_path_factory.mktemp("applied")
    apply(write(folder / "views", FRAMES, VIEWS), folder / "store", "my-spec", SQLiteOnline(), user="user")
    return folder


@pytest.fixture
def views(applied: Path) -> Path:
    return applied / "views"


@pytest.fixture
def store(applied: Path, tmp_path: Path) -> FeastStore:
    shutil.copytree(applied / "store", tmp_path / "store")
    return connect(applied / "views", tmp_path / "store", "my-spec", SQLiteOnline())


def apply_changed(tmp_path: Path, frames: dict[str, pl.DataFrame], views: list[StoredView] = VIEWS) -> FeastStore:
    """Apply other views to the store of the test."""
    changed = write(tmp_path / "views", FRAMES | frames, views)
    return apply(changed, tmp_path / "store", "my-spec", SQLiteOnline(), user="user")


def rows(store: FeastStore, user: int = 1) -> int | None:
    return store.online(pl.DataFrame({"user": [user]}), ["clicks"])["clicks:rows"][0]


def test_historical_answers_hold_at_the_moment_of_the_row_in_its_order(store: FeastStore) -> None:
    asking = pl.DataFrame(
        {
            "user": [2, 1, 1, 1, None, 9, 2],
            "tab": ["b", "a", "a", "zz", "a", "a", None],
            "everything": [0] * 7,
            "event_time": pl.Series(
                [start(7), start(6), start(6) - timedelta(microseconds=1), start(8), start(8), start(8), start(9)],
                dtype=pl.Datetime("us", "UTC"),
            ),
        }
    )
    answers = store.historical(asking, ["clicks", "pairs", "overall", "users"])
    assert_frame_equal(answers.select(asking.columns), asking)
    assert answers["clicks:rows"].to_list() == [1, 2, None, 3, None, None, 2]
    assert answers["clicks:last_time"].to_list() == [5, BIG, None, BIG + 2, None, None, 7]
    assert answers["clicks:fill"].to_list() == [None] * 6 + [2**53]
    assert answers["clicks:rate"].to_list() == [0.1, 0.5, None, None, None, None, 0.2]
    assert answers["pairs:rows"].to_list() == [6, 5, None, None, None, None, None]
    assert answers["overall:rows"].to_list() == [20, 10, None, 30, 30, 30, 30]
    assert answers["users:history"].to_list() == [[], [BIG, 2], [BIG, 2], [BIG, 2], None, None, []]
    assert answers["users:name"].to_list() == ["bo", None, None, None, None, None, "bo"]


def test_online_answers_are_those_valid_at_materialisation(store: FeastStore) -> None:
    store.materialize(start(7))
    asking = pl.DataFrame({"user": [2, 1, 9, None, 1], "tab": ["b", "a", "a", "a", "a"], "everything": [0] * 5})
    answers = store.online(asking, ["clicks", "pairs", "overall", "users"])
    assert answers["clicks:rows"].to_list() == [1, 3, None, None, 3]
    assert answers["clicks:last_time"].to_list() == [5, BIG + 2, None, None, BIG + 2]
    assert answers["pairs:rows"].to_list() == [6, 5, None, None, 5]
    assert answers["overall:rows"].to_list() == [20] * 5
    assert answers["users:history"].to_list() == [[], [BIG, 2], None, None, [BIG, 2]]
    assert answers["users:vector"].to_list() == [
        None,
        USERS["vector"][0].to_list(),
        None,
        None,
        USERS["vector"][0].to_list(),
    ]
    assert answers.schema["users:vector"] == pl.List(pl.Float32)


def test_materialising_again_writes_only_new_rows(store: FeastStore) -> None:
    assert store.materialize(start(7)) == {"clicks": 2, "pairs": 2, "overall": 1, "users": 2}
    assert store.materialize(start(7)) == {"clicks": 0, "pairs": 0, "overall": 0, "users": 0}
    assert store.materialize(start(8)) == {"clicks": 1, "pairs": 0, "overall": 1, "users": 0}  # user 2 and the total
    assert rows(store, 2) == 2
    assert store.valid_until("clicks") == start(8)


def test_an_earlier_moment_changes_no_value(store: FeastStore) -> None:
    store.materialize(start(8))
    assert store.materialize(start(6))["clicks"] == 0
    assert rows(store, 2) == 2
    assert store.valid_until("clicks") == start(8)


def test_a_new_day_is_written_alone_when_the_past_is_unchanged(store: FeastStore, tmp_path: Path) -> None:
    store.materialize(start(8))
    later_clicks = pl.concat(
        [CLICKS, CLICKS.tail(1).with_columns(event_timestamp=pl.lit(start(9)), rows=pl.lit(9, pl.Int64))]
    )
    later_store = apply_changed(tmp_path, {"clicks": later_clicks})
    assert later_store.materialize(start(9))["clicks"] == 1
    assert rows(later_store, 2) == 9


def test_a_changed_past_is_rewritten_and_its_removed_keys_are_deleted(store: FeastStore, tmp_path: Path) -> None:
    store.materialize(start(8))
    changed = CLICKS.filter(user=1).with_columns(rows=pl.col("rows") + 100)
    rewritten_store = apply_changed(tmp_path, {"clicks": changed})
    assert rewritten_store.materialize(start(8)) == {"clicks": 1, "pairs": 0, "overall": 0, "users": 0}
    assert rows(rewritten_store, 1) == 3 + 100
    assert rows(rewritten_store, 2) is None


def test_a_killed_rewrite_is_repeated(store: FeastStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.materialize(start(8))
    changed = apply_changed(tmp_path, {"clicks": CLICKS.filter(user=1)})
    with monkeypatch.context() as killed:
        killed.setattr(changed._feast, "materialize", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            changed.materialize(start(8))
    assert rows(changed, 1) is None  # the view was emptied, because user 2 is gone
    back = apply_changed(tmp_path, {})  # the log of before
    assert back.materialize(start(8))["clicks"] == 2
    assert [rows(back, 1), rows(back, 2)] == [3, 2]


def test_a_changed_row_of_a_side_table_reaches_the_store(store: FeastStore, tmp_path: Path) -> None:
    store.materialize(start(8))
    changed_store = apply_changed(tmp_path, {"users": USERS.with_columns(name=pl.Series(["al", "bo"]))})
    assert changed_store.materialize(start(8))["users"] == 2
    assert changed_store.online(pl.DataFrame({"user": [1]}), ["users"])["users:name"][0] == "al"


def test_a_new_feature_of_a_view_is_filled_for_every_key(store: FeastStore, tmp_path: Path) -> None:
    store.materialize(start(8))
    wider = PAIRS.with_columns(clicks=pl.Series([1, 2]))
    feature_types = {"rows": "Int64", "clicks": "Int64"}
    wider_view = view("pairs", {"user": "Int64", "tab": "String"}, feature_types, wider)
    changed_store = apply_changed(tmp_path, {"pairs": wider}, [VIEWS[0], wider_view, *VIEWS[2:]])
    assert changed_store.materialize(start(8))["pairs"] == 2
    assert changed_store.online(pl.DataFrame({"user": [1], "tab": ["a"]}), ["pairs"])["pairs:clicks"][0] == 1


def test_applying_again_keeps_online_values_and_removes_undeclared_views(store: FeastStore, tmp_path: Path) -> None:
    store.materialize(start(8))
    changed_store = apply_changed(tmp_path, {}, VIEWS[:1])
    assert rows(changed_store) == 3
    assert [online_view.name for online_view in changed_store.online_views] == ["clicks"]
    tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
    with sqlite3.connect(tmp_path / "store" / "online.db") as online:
        assert [name for (name,) in online.execute(tables)] == ["my_spec_clicks"]
    online.close()


def test_another_process_reads_the_applied_store(store: FeastStore, views: Path, tmp_path: Path) -> None:
    store.materialize(start(8))
    assert rows(connect(views, tmp_path / "store", "my-spec", SQLiteOnline())) == 3


def test_connecting_without_a_registry_names_the_step_to_run(views: Path, tmp_path: Path) -> None:
    with pytest.raises(ShortlistError, match="no Feast registry here; run the features step first"):
        connect(views, tmp_path / "nowhere", "my-spec", SQLiteOnline())


def test_the_feast_command_reads_the_same_definitions(
    views: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_module.import_feast()
    parse_repo = importlib.import_module("feast.repo_operations").parse_repo
    monkeypatch.chdir(project_root() / "feature_repo")
    monkeypatch.syspath_prepend(project_root() / "feature_repo")
    with temporary_environment(environment_variables(views, tmp_path / "store", "my-spec", SQLiteOnline(), "user")):
        repository = parse_repo(project_root() / "feature_repo")
    sys.modules.pop("definitions")
    assert {entity.name for entity in repository.entities} == {
        "everything",
        "tab",
        "user",
        "__dummy",
    }  # Feast adds its own
    assert sorted(view.name for view in repository.feature_views) == ["clicks", "overall", "pairs", "users"]
    assert [(service.name, len(service.feature_view_projections)) for service in repository.feature_services] == [
        ("my_spec", 4)
    ]


@pytest.mark.long
def test_feasts_own_commands_and_client_read_the_unchanged_store(views: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = apply(views, folder, "my-spec", SQLiteOnline(), user="user")
    store.materialize(start(8))
    assert "SHORTLIST" not in (folder / "feature_store.yaml").read_text()
    command = [str(Path(sys.executable).with_name("feast")), "-c", str(folder), "feature-views", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(view.name in listed.stdout for view in VIEWS)
    with silence_feast():
        from feast import FeatureStore as FeastClient

        client = FeastClient(repo_path=str(folder))
        online = client.get_online_features([f"{VIEWS[0].name}:rows"], [{"user": 1}]).to_dict()
        moment = {"user": [1], "event_timestamp": [start(6)]}
        past = client.get_historical_features(pl.DataFrame(moment).to_pandas(), [f"{VIEWS[0].name}:rows"]).to_df()
    assert online["rows"] == [rows(store)] == [3]
    assert past["rows"].to_list() == [2]


@pytest.mark.long
def test_feasts_ui_shows_the_views(views: Path, tmp_path: Path) -> None:
    pytest.importorskip("grpc_health", reason="Feast's page needs grpcio-health-checking")
    folder = tmp_path / "store"
    apply(views, folder, "my-spec", SQLiteOnline(), user="user")
    (port,) = free_ports(1)
    url, feast = f"http://127.0.0.1:{port}", str(Path(sys.executable).with_name("feast"))
    command = [feast, "-c", str(folder), "ui", "--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "ui.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 240
        while True:
            try:
                page = httpx.get(url)
                break
            except httpx.TransportError:
                assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "ui.log").read_text()
                time.sleep(0.2)
        listed_views = httpx.get(f"{url}/api/v1/feature_views/all").text
    finally:
        process.terminate()
        process.wait(timeout=60)
    assert page.status_code == 200 and "<html" in page.text
    assert all(view.name in listed_views for view in VIEWS)


def test_a_server_of_features_is_named_by_its_variable(
    views: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shortlist.features.feast.store import _public_configuration

    monkeypatch.setenv("SHORTLIST_PROJECT", "demo")
    monkeypatch.setenv("SHORTLIST_REGISTRY", json.dumps("sqlite:///registry.db"))
    monkeypatch.setenv("SHORTLIST_ONLINE_STORE", json.dumps({"type": "redis", "connection_string": "secret"}))
    text = _public_configuration(feast_store_location(tmp_path), RedisOnline(kind="redis"))
    assert "secret" not in text and "online_store: ${SHORTLIST_ONLINE_STORE}" in text and "project: demo" in text


def test_an_integer_that_feast_would_round_is_refused(store: FeastStore, tmp_path: Path) -> None:
    rounded = CLICKS.with_columns(fill=pl.Series([None, BIG, None, None]))
    with pytest.raises(
        ShortlistError,
        match=r"view 'clicks': 'fill' holds nulls and integers beyond 2\*\*53.*declare .* `type: string`",
    ):
        apply_changed(tmp_path, {"clicks": rounded}).materialize(start(8))


def test_a_spec_without_views_has_an_empty_store(store: FeastStore, tmp_path: Path) -> None:
    assert apply_changed(tmp_path, {}, []).materialize(start(8)) == {}


def test_a_large_view_is_kept_online_only_when_its_key_is_the_user() -> None:
    large = VIEWS[0].model_copy(update={"newest_keys": 50_001})
    assert is_online_view(large, "user")
    assert not is_online_view(large, "item")
    assert not is_online_view(VIEWS[1].model_copy(update={"newest_keys": 50_001}), "user")
    assert is_online_view(VIEWS[1].model_copy(update={"newest_keys": 50_000}), "user")


def test_a_large_view_is_refused_online_and_read_from_its_snapshot(tmp_path: Path) -> None:
    large = VIEWS[1].model_copy(update={"newest_keys": 50_001})
    store = apply(write(tmp_path / "views", FRAMES, [large]), tmp_path / "store", "my-spec", SQLiteOnline(), "user")
    assert store.materialize(start(8)) == {}
    with pytest.raises(
        ShortlistError, match=r"view 'pairs' is too large for the online store; read ViewIndex\.snapshot"
    ):
        store.online(pl.DataFrame({"user": [1], "tab": ["a"]}), ["pairs"])
    assert store.views.snapshot("pairs", start(6)).rows() == [(1, "a", 5)]
    asking = pl.DataFrame({"user": [1], "tab": ["a"], "event_time": moments(8)})
    assert store.historical(asking, ["pairs"])["pairs:rows"].to_list() == [5]


def test_a_snapshot_holds_the_latest_values_of_every_key(views: Path) -> None:
    index = ViewIndex.read(views)
    assert index.snapshot("clicks", start(7)).sort("user").rows() == [(1, 3, None, BIG + 2, None), (2, 1, 0.1, 5, None)]
    assert index.snapshot("clicks", start(6)).rows() == [(1, 2, 0.5, BIG, None)]


def test_an_unknown_view_suggests_a_similar_name(store: FeastStore) -> None:
    with pytest.raises(ShortlistError, match="no view 'click'; did you mean 'clicks'"):
        store.online(pl.DataFrame({"user": [1]}), ["click"])


@pytest.mark.parametrize("change", [lambda rows: rows.head(1), lambda rows: pl.concat([rows, rows.head(1)])])
def test_lost_or_doubled_rows_are_refused(change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    asking = pl.DataFrame({"user": [1, 2]})
    with pytest.raises(
        DataError, match=r"Feast answered 2 rows of view 'clicks' with [13]\. Rows were lost or doubled"
    ):
        with_answers(asking, VIEWS[0], lambda view, key_rows: change(key_rows.select(ROW, rows=pl.lit(1))))


def test_a_day_begins_at_midnight_of_the_logs_own_clock(views: Path) -> None:
    index = ViewIndex.read(views)
    assert index.start_of(date(2026, 1, 7)) == datetime(2026, 1, 6, 16, tzinfo=UTC)
    assert index.day_of(datetime(2026, 1, 6, 16, tzinfo=UTC)) == date(2026, 1, 7)
    assert index.day_of(datetime(2026, 1, 6, 15, 59, tzinfo=UTC)) == date(2026, 1, 6)


def test_redis_takes_its_connection_from_the_named_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    redis = RedisOnline(kind="redis", connection_variable="MY_REDIS")
    monkeypatch.setenv("MY_REDIS", 'cache:6379,password=a"b#c: d$e')
    value = environment_variables(tmp_path, tmp_path, "my-spec", redis)["SHORTLIST_ONLINE_STORE"]
    assert json.loads(value) == {
        "type": "redis",
        "connection_string": 'cache:6379,password=a"b#c: d$e',
        "skip_dedup": True,
    }


@pytest.mark.parametrize(("value", "problem"), [("", "is not set"), ("password=secret", "does not hold one")])
def test_a_missing_redis_connection_names_the_variable_and_never_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, problem: str
) -> None:
    monkeypatch.setenv("MY_REDIS", value)
    with pytest.raises(
        ShortlistError,
        match=rf"wanted `host:port\[,password=\.\.\.\]`, but the environment variable MY_REDIS {problem}\.",
    ) as refused:
        apply(tmp_path, tmp_path / "store", "my-spec", RedisOnline(kind="redis", connection_variable="MY_REDIS"))
    assert "secret" not in str(refused.value)


def test_an_unreachable_redis_is_reported(views: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHORTLIST_REDIS", "127.0.0.1:1,retry=null,password=secret")  # nothing listens there
    store = apply(views, tmp_path / "store", "my-spec", RedisOnline(kind="redis"))
    with pytest.raises(ShortlistError, match=r"runtime\.online_store: Redis says: .*127\.0\.0\.1:1") as refused:
        store.materialize(start(8))
    assert "secret" not in str(refused.value)
    assert store.valid_until("clicks") is None


@pytest.mark.long
def test_a_killed_materialisation_can_be_repeated(store: FeastStore, views: Path, tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import os, signal
        from datetime import datetime
        from pathlib import Path
        from shortlist.features.online_stores.sqlite import SQLiteOnline
        from shortlist.features.feast import store as module
        store = module.connect(Path({str(views)!r}), Path({str(tmp_path / "store")!r}), "my-spec", SQLiteOnline())
        written = store._feast._get_provider().online_store.online_write_batch
        def killed(*args, **kwargs):
            written(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)
        store._feast._get_provider().online_store.online_write_batch = killed
        store.materialize(datetime.fromisoformat({start(8).isoformat()!r}))
        """
    )
    killed = subprocess.run([sys.executable, "-c", program], check=False, env={**os.environ, "PYTHONPATH": "."})
    assert killed.returncode == -signal.SIGKILL
    assert store.valid_until("clicks") is None
    assert rows(store) == 3  # serving goes on with what is there
    assert store.materialize(start(8)) == {"clicks": 2, "pairs": 2, "overall": 1, "users": 2}
    assert rows(store, 2) == 2


def test_feast_is_silent(store: FeastStore, capfd: pytest.CaptureFixture[str]) -> None:
    store.materialize(start(8))
    store.historical(pl.DataFrame({"user": [1], "event_time": moments(8)}), ["clicks"])
    assert capfd.readouterr() == ("", "")


class ElsewhereOnline(OnlineStore):
    """An online store of this file: Feast's SQLite store in a file that the spec names."""

    kind: Literal["elsewhere"]
    """A file."""
    path: Path
    """The file."""

    is_shared: ClassVar[bool] = False

    def configuration(self, file: FileOf) -> dict[str, Any]:
        return {"type": "feast.infra.online_stores.sqlite.SqliteOnlineStore", "path": str(self.path)}

    def files(self, file: FileOf) -> tuple[Path, ...]:
        return (self.path,)

    def prepare(self, file: FileOf) -> None:
        self.path.with_suffix(".prepared").touch()

    @classmethod
    def explain_error(cls, error: Exception) -> str:
        return f"the file says: {error}" if isinstance(error, sqlite3.OperationalError) else ""


def test_a_registered_online_store_is_filled_and_answers(
    views: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ONLINE_STORES, "elsewhere", ElsewhereOnline)
    path, place = tmp_path / "mine.db", tmp_path / "own"
    runtime = Runtime.model_validate({"online_store": {"kind": "elsewhere", "path": str(path)}})
    online = Runtime.model_validate_json(runtime.model_dump_json()).online_store  # as steps and servers are told of it
    store = apply(views, place, "my-spec", online, user="user")
    assert path.with_suffix(".prepared").exists()
    assert not (place / "online.db").exists()
    assert store.materialize(start(8)) == {"clicks": 2, "pairs": 2, "overall": 1, "users": 2}
    answers = connect(views, place, "my-spec", online).online(pl.DataFrame({"user": [2, 1, 3]}), ["clicks"])
    assert answers["clicks:rows"].to_list() == [2, 3, None]
    assert user_reader(place, "my-spec", online, "user").rows([1], ["clicks:last_time"]) == {
        "clicks:last_time": [BIG + 2]
    }
    path.unlink()
    with pytest.raises(ShortlistError, match=r"mine\.db: does not exist; run the features step first"):
        user_reader(place, "my-spec", online, "user")


def test_a_registered_online_store_explains_its_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ONLINE_STORES, "elsewhere", ElsewhereOnline)
    with (
        pytest.raises(ShortlistError, match=r"runtime\.online_store: the file says: database is locked"),
        silence_feast(),
    ):
        raise sqlite3.OperationalError("database is locked")
