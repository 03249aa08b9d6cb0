"""MLflow in PostgreSQL with files in S3: tables created once, files fetched and verified, no secret shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shortlist.contracts import ShortlistError
from shortlist.storage.artefacts import IntegrityError, write_json, write_manifest
from shortlist.storage.storage_config import StorageConfig
from shortlist.tracking.lineage import Lineage
from shortlist.tracking.mlflow_store import Tracker
from shortlist.tracking.store_access import TrackingError, tracking_location

LINEAGE = Lineage(spec_digest="5" * 16, data_digest="d" * 16, days={}, code_version="c" * 16)


@pytest.fixture
def stores(s3: Any, postgres: str, monkeypatch: pytest.MonkeyPatch) -> StorageConfig:
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", postgres)
    return StorageConfig(cluster="test", objects=s3.url, tracking_variable="MLFLOW_TRACKING_URI")


def tracker_of(stores: StorageConfig, spec: str = "demo") -> Tracker:
    place = tracking_location(stores, spec)
    return Tracker(place.uri, spec, place.files)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "trained"
    folder.mkdir()
    write_json(folder / "model.json", {"kind": "dlrm"})
    (folder / "weights.safetensors").write_text("weights")
    write_manifest(folder)
    return folder


def test_a_model_goes_to_the_bucket_and_comes_back_verified(
    stores: StorageConfig, s3: Any, model: Path, tmp_path: Path
) -> None:
    tracker = tracker_of(stores)
    run = tracker.log_training(model, "dlrm", {"width": 16}, [{"epoch": 1, "loss": 0.7}], LINEAGE)
    assert tracker.log_training(model, "dlrm", {"width": 16}, [], LINEAGE) == run
    version = tracker.registry.register(run)
    fetched = tracker_of(stores).registry.fetch(version, tmp_path / "files")
    assert fetched.folder.is_relative_to(tmp_path / "files")
    assert (fetched.folder / "weights.safetensors").read_text() == "weights"
    (weights,) = [key for key in s3.keys() if key.endswith("weights.safetensors")]  # noqa: SIM118 - no mapping
    assert weights.startswith("shortlist/mlflow/demo/")
    s3.client().put_object(Bucket=s3.bucket, Key=weights, Body=b"evil")
    with pytest.raises(IntegrityError, match="changed after it was written"):
        tracker_of(stores).registry.fetch(version, tmp_path / "again")


@pytest.mark.long
def test_processes_that_begin_at_once_make_the_tables_once(stores: StorageConfig) -> None:
    program = (
        "import sys; from shortlist.storage.storage_config import StorageConfig;"
        " from shortlist.tracking.mlflow_store import Tracker;"
        " from shortlist.tracking.store_access import tracking_location;"
        " place = tracking_location(StorageConfig.parse(sys.argv[1]), sys.argv[2]);"
        " Tracker(place.uri, sys.argv[2], place.files)"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(stores), f"spec-{number}"], stderr=subprocess.PIPE)
        for number in range(2)
    ]
    for process in processes:
        _, output = process.communicate(timeout=240)
        assert process.returncode == 0, output.decode()[-2000:]


def test_a_deleted_bucket_is_a_clear_error_of_the_training(stores: StorageConfig, s3: Any, model: Path) -> None:
    tracker = tracker_of(stores)
    s3.delete_bucket()
    with pytest.raises(TrackingError, match=r"NoSuchBucket|bucket does not exist") as caught:
        tracker.log_training(model, "dlrm", {}, [], LINEAGE)
    assert "pa55" not in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("user", "database", "message"),
    [("shortlist:wrong-pa55", "postgres", "authentication failed"), (None, "nowhere", "does not exist")],
)
def test_a_database_that_refuses_is_named_without_its_password(
    stores: StorageConfig, postgres: str, user: str | None, database: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, address_text = postgres.partition("//")
    credentials, _, host = address_text.partition("@")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"postgresql://{user or credentials}@{host.partition('/')[0]}/{database}")
    with pytest.raises(ShortlistError, match=message) as caught:
        tracker_of(stores)
    assert "pa55" not in str(caught.value) and host.partition("/")[0] in str(caught.value)


def test_an_address_of_another_kind_is_not_repeated(stores: StorageConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "mysql://me:pa55@host/db")
    with pytest.raises(ShortlistError, match=r"wanted http\(s\)://.*MLFLOW_TRACKING_URI has another value") as caught:
        tracking_location(stores, "demo")
    assert "pa55" not in str(caught.value)


def test_a_server_knows_where_its_files_go(stores: StorageConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example")
    assert tracking_location(stores, "demo") == ("https://mlflow.example", None)
