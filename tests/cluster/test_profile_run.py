"""`make run PROFILE=cluster`: the same run on real PostgreSQL, Redis and S3, and the same rows as on a laptop."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from redis import Redis
from removal_program import remove

from models.registry import KINDS
from shortlist.contracts import ShortlistError
from shortlist.features.feast.feast_store_location import spec_feast_store_location
from shortlist.features.feast.store import user_reader
from shortlist.features.online_stores.redis import RedisOnline
from shortlist.runs.local_training import run_locally
from shortlist.spec.load import parse_spec
from shortlist.storage.artefacts import folder_digest, sha256
from shortlist.storage.objects import ObjectStore, local_copy
from shortlist.storage.records.opening import record_store_at
from shortlist.storage.storage_config import StorageConfig
from shortlist.tracking.run_context import RunContext

pytestmark = pytest.mark.long

SECRET = "pa55-of-the-database"  # noqa: S105 - see conftest


def on_cluster(spec: dict[str, Any], url: str, name: str = "test") -> dict[str, Any]:
    objects = {"kind": "bucket", "url": url}
    return spec | {"runtime": {"profile": "cluster", "objects": objects, "cluster": {"name": name}}}


@pytest.fixture
def servers(postgres: str, redis: str, s3: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """All three, named in the environment as a cluster's secrets would."""
    for name, value in (
        ("SHORTLIST_DATABASE", postgres),
        ("MLFLOW_TRACKING_URI", postgres),
        ("SHORTLIST_REDIS", redis),
    ):
        monkeypatch.setenv(name, value)
    return s3


def run(spec: dict[str, Any], runs: Path) -> dict[str, Any]:
    code = run_locally(parse_spec(yaml.safe_dump(spec)), None, runs)
    latest = (runs / "latest").resolve()
    summary: dict[str, Any] = json.loads((latest / "summary.json").read_text())
    assert code == 0, (latest / "pipeline.log").read_text()[-3000:]
    return summary


def read_artefacts(artefacts: Path) -> dict[str, Any]:
    """Digests of what a run's tasks made, and how far Feast's answers were from the table: by nothing."""
    skew = json.loads((artefacts / "materialize-features/skew/skew.json").read_text())
    assert (skew["historical_mismatches"], skew["online_mismatches"]) == (0, 0)
    (trees,) = artefacts.glob("for-loop-*/train/model/model.ubj")
    return {
        "features": folder_digest(artefacts / "fit-features/fitted"),
        "table": folder_digest(artefacts / "build-table/table"),
        "trees": sha256(trees),
        "serving": folder_digest(trees.parent / "serving"),
    }


def test_the_cluster_profile_gives_the_same_results_as_the_laptop(
    finished: Any, servers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_servers = run(on_cluster(finished.spec, servers.url), tmp_path / "there")
    stores = StorageConfig.parse(json.loads((tmp_path / "there/latest/arguments.json").read_text())["stores"])
    assert stores.folder is None and stores.epoch
    assert not [*(tmp_path / "there/stores").glob("*.db")]  # nothing is kept on this disk

    registry = RunContext(name="demo", stores=str(stores)).tracker.registry
    champion = registry.champion(tmp_path / "champion")
    assert champion is not None and champion.version == 1
    place = spec_feast_store_location(stores, "demo")
    announced = place.require_announcement()
    assert announced["views"].startswith(f"{servers.url}/feast/demo/fits/")
    monkeypatch.setenv("SHORTLIST_CACHE", str(tmp_path / "cache"))
    views = local_copy(announced["views"])
    users = pl.read_parquet(views / "by_user_id.parquet")["user_id"].head(5).to_list()
    assert (local_copy(announced["log"]) / "log.json").exists()
    reader = user_reader(place, "demo", RedisOnline(kind="redis"), "user_id")
    column = min(name for name in reader.columns if name.startswith("by_user_id:"))
    assert None not in reader.rows(users, [column])[column]
    keys = servers.keys()
    assert {key.split("/")[1] for key in keys} == {"cluster.json", "feast", "mlflow"}
    all_bytes = b"".join(
        path.read_bytes()
        for path in (tmp_path / "there").rglob("*")
        if path.suffix in {".json", ".log", ".html", ".jsonl"}
    )
    assert SECRET.encode() not in all_bytes and b"secret-of-the-test" not in all_bytes

    on_laptop = finished.summary
    timed = {"train_rows_per_s"}
    for kind in ("xgboost", "popularity", "logistic"):
        laptop_numbers, server_numbers = (
            {k: v for k, v in summary["models"][kind].items() if k not in timed} for summary in (on_laptop, on_servers)
        )
        assert laptop_numbers == server_numbers
    assert on_servers["blessed"] == on_laptop["blessed"]
    (artefacts,) = tmp_path.glob("there/cache/artefacts/*")
    assert read_artefacts(artefacts) == read_artefacts(finished.artefacts)

    host, _, port = os.environ["SHORTLIST_REDIS"].partition(":")
    others_records = record_store_at(os.environ["SHORTLIST_DATABASE"], "test", "features", "others")
    with Redis(host, int(port)) as online:
        online.set("of others", "1")
        others_records.create("note", "")
        ObjectStore(servers.url).write("feast/others/note", b"")
        assert online.dbsize() > 1 and len(servers.keys()) > 2
        remove(parse_spec(yaml.safe_dump(on_cluster(finished.spec, servers.url))))
        assert online.keys() == [b"of others"]
    keys_left = servers.keys()
    assert [key.partition("/")[2] for key in keys_left] == ["cluster.json", "feast/others/note"]
    assert others_records.names("") == ["note"]
    assert record_store_at(os.environ["SHORTLIST_DATABASE"], "test", "features", "demo").names("") == []
    assert registry.version_of("champion") is None


def test_a_bucket_deleted_during_a_run_is_a_clear_error(
    small_spec: dict[str, Any], servers: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs, spec = tmp_path / "runs", parse_spec(yaml.safe_dump(on_cluster(small_spec, servers.url)))

    def vanish() -> None:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            if any('"step": "validate"' in events.read_text() for events in runs.glob("2*/events.jsonl")):
                servers.delete_bucket()
                return
            time.sleep(0.05)

    thief = threading.Thread(target=vanish)
    thief.start()
    code = run_locally(spec, None, runs)
    thief.join()
    assert code == 1
    summary = json.loads((runs / "latest/summary.json").read_text())
    assert summary["failed"]["step"] in {"materialize_features", *(f"train_{kind}" for kind in KINDS)}
    assert summary["blessed"] is None
    captured = "".join(" ".join(capfd.readouterr()).split())  # whatever the width of the terminal
    assert f"thereisnobucket'{servers.bucket}'" in captured and "Traceback" not in captured
    assert SECRET not in captured and "secret-of-the-test" not in captured
    with pytest.raises(ShortlistError, match="there is no bucket"):  # and the next run does not begin
        run_locally(spec, None, runs)
