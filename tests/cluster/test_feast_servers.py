"""Feast with its registry in PostgreSQL, its online store in Redis, and the servers' files in S3; no shared folder."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from shortlist.contracts import ShortlistError
from shortlist.features.feast.feast_store_location import FeastStoreLocation, spec_feast_store_location
from shortlist.features.feast.store import apply, connect, user_reader
from shortlist.features.fits.previous_fit import newest_fit
from shortlist.features.fits.publish import announce_views
from shortlist.features.online_stores.redis import RedisOnline
from shortlist.features.online_stores.sqlite import SQLiteOnline
from shortlist.serving.server.runtime.settings import ServerSettings
from shortlist.storage.artefacts import IntegrityError, write_json
from shortlist.storage.objects import local_copy
from shortlist.storage.storage_config import StorageConfig

ONLINE = RedisOnline(kind="redis")
START = datetime(2026, 1, 5, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
def stores(s3: Any, postgres: str, redis: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StorageConfig:
    for name, value in (("SHORTLIST_DATABASE", postgres), ("SHORTLIST_REDIS", redis)):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SHORTLIST_CACHE", str(tmp_path / "cache"))
    return StorageConfig(cluster="test", objects=s3.url, database_variable="SHORTLIST_DATABASE")


@pytest.fixture
def place(stores: StorageConfig) -> FeastStoreLocation:
    return spec_feast_store_location(stores, "my-spec")


def fit(folder: Path, rows: list[tuple[int, datetime, int]]) -> Path:
    """A fit of one view: clicks of a user, from a moment on."""
    views = folder / "views"
    views.mkdir(parents=True)
    frame = pl.DataFrame(rows, schema=["user", "event_timestamp", "clicks"], orient="row").with_columns(
        pl.col("event_timestamp").cast(pl.Datetime("us", "UTC"))
    )
    frame.write_parquet(views / "users.parquet")
    view = {
        "name": "users", "keys": [{"name": "user", "dtype": "Int64"}],
        "features": [{"name": "clicks", "dtype": "Int64"}], "path": "users.parquet", "static": False,
        "rows": len(rows), "newest_keys": frame["user"].n_unique(),
    }  # fmt: skip
    write_json(
        views / "views.json", {"views": [view], "first_day": "2026-01-05", "last_day": "2026-01-06", "timezone": "UTC"}
    )
    return views


FIRST = [(1, START, 3), (2, START, 5), (1, START + DAY, 4)]


def test_everything_is_on_servers(place: FeastStoreLocation, tmp_path: Path) -> None:
    files_before = set(Path.cwd().iterdir())
    views = fit(tmp_path / "fit", FIRST)
    store = apply(views, place, "my-spec", ONLINE, "user", "s3://bucket/fits/1/views")
    assert store.materialize(START) == {"users": 2}
    assert store.materialize(START) == {"users": 0}  # noted on a server
    assert store.materialize(START + DAY) == {"users": 1}
    users = pl.DataFrame({"user": [2, 1, 9]})
    assert store.online(users, ["users"])["users:clicks"].to_list() == [5, 4, None]
    moments = pl.DataFrame({"user": [1, 1], "event_time": [START + DAY / 2, START + 2 * DAY]})
    moments = moments.with_columns(pl.col("event_time").cast(pl.Datetime("us", "UTC")))
    assert store.historical(moments, ["users"])["users:clicks"].to_list() == [3, 4]
    reconnected = connect(views, place, "my-spec", ONLINE)
    assert reconnected.valid_until("users") == START + DAY
    (view,) = reconnected._feast.list_feature_views()
    assert view.batch_source.tags == {"published": "s3://bucket/fits/1/views/users.parquet"}
    assert set(Path.cwd().iterdir()) == files_before


def test_keys_that_are_gone_lose_their_answers(place: FeastStoreLocation, tmp_path: Path) -> None:
    apply(fit(tmp_path / "one", FIRST), place, "my-spec", ONLINE, "user").materialize(START + DAY)
    store = apply(fit(tmp_path / "two", FIRST[:1]), place, "my-spec", ONLINE, "user")
    store.materialize(START + DAY)
    assert store.online(pl.DataFrame({"user": [1, 2]}), ["users"])["users:clicks"].to_list() == [3, None]


def test_servers_find_users_views_and_log_by_address(
    place: FeastStoreLocation, stores: StorageConfig, tmp_path: Path
) -> None:
    views = fit(tmp_path / "fit", FIRST)
    (tmp_path / "log").mkdir()
    (tmp_path / "log/log.json").write_text("{}")
    with pytest.raises(IntegrityError, match=r"serving\.json: missing"):
        place.require_announcement()
    assert newest_fit(place) == ""
    apply(views, place, "my-spec", ONLINE, "user").materialize(START + DAY)
    announce_views(views, place, START + DAY, tmp_path / "log")
    elsewhere = spec_feast_store_location(stores, "my-spec")
    announced = elsewhere.require_announcement()
    assert sorted(path.name for path in local_copy(announced["views"]).iterdir()) == ["users.parquet", "views.json"]
    assert (local_copy(announced["log"]) / "log.json").read_text() == "{}"
    assert (local_copy(newest_fit(elsewhere)) / "views/views.json").exists()
    reader = user_reader(elsewhere, "my-spec", ONLINE, "user")
    assert reader.rows([2, 1, 9], ["users:clicks"]) == {"users:clicks": [5, 4, None]}


def test_specs_share_the_servers_and_nothing_else(
    place: FeastStoreLocation, stores: StorageConfig, tmp_path: Path
) -> None:
    other_location = spec_feast_store_location(stores, "other")
    apply(fit(tmp_path / "one", FIRST), place, "my-spec", ONLINE, "user").materialize(START + DAY)
    store = apply(fit(tmp_path / "two", [(1, START, 8)]), other_location, "other", ONLINE, "user")
    store.materialize(START + DAY)
    assert store.online(pl.DataFrame({"user": [1, 2]}), ["users"])["users:clicks"].to_list() == [8, None]
    own_store = connect(tmp_path / "one/views", place, "my-spec", ONLINE)
    assert own_store.online(pl.DataFrame({"user": [1, 2]}), ["users"])["users:clicks"].to_list() == [4, 5]


def test_sqlite_needs_a_disk_that_is_shared(place: FeastStoreLocation, tmp_path: Path) -> None:
    with pytest.raises(ShortlistError, match=r"runtime\.online_store: `kind: sqlite` is a file.*declare `kind: redis`"):
        apply(fit(tmp_path / "fit", FIRST), place, "my-spec", SQLiteOnline(), "user")


def test_an_unreachable_redis_is_named(
    place: FeastStoreLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHORTLIST_REDIS", "127.0.0.1:9,password=pa55-of-redis")
    store = apply(fit(tmp_path / "fit", FIRST), place, "my-spec", ONLINE, "user")
    with pytest.raises(ShortlistError, match=r"runtime\.online_store: Redis says: .*127\.0\.0\.1:9") as caught:
        store.materialize(START)
    assert "pa55" not in str(caught.value)


def test_a_refused_password_is_not_repeated(
    stores: StorageConfig, postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHORTLIST_DATABASE", postgres.replace("pa55-of-the-database", "wrong-pa55"))
    with pytest.raises(ShortlistError, match="authentication failed") as caught:
        apply(fit(tmp_path / "fit", FIRST), spec_feast_store_location(stores, "my-spec"), "my-spec", ONLINE, "user")
    assert "pa55" not in str(caught.value)
    assert "SHORTLIST_REGISTRY" not in os.environ


def test_a_servers_settings_name_the_stores(stores: StorageConfig, place: FeastStoreLocation) -> None:
    said = {"model": "my-spec", "version": 1, "model_folder": "/model", "predictor": "127.0.0.1:1", "http_port": 1}
    said |= {"grpc_port": 2, "project": "my-spec", "predictions": "/log"}
    settings = ServerSettings.model_validate_json(json.dumps(said | {"store": stores.model_dump(mode="json")}))
    assert settings.store_location is not None and settings.store_location.registry == place.registry
    assert settings.store_location.objects.root == f"{stores.objects}/feast/my-spec"
    assert "pa55" not in settings.model_dump_json()
    server_settings = ServerSettings.model_validate(said | {"store": "/runs/stores/feast/my-spec"})
    location = server_settings.store_location
    assert location is not None and location.folder == Path("/runs/stores/feast/my-spec")
