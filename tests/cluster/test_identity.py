"""Stores of two clusters are never mixed: another cluster's bucket or database is refused and left unchanged."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shortlist.contracts import ShortlistError
from shortlist.storage.objects import open_object_store
from shortlist.storage.records import identity
from shortlist.storage.records.identity import MARKER, claim
from shortlist.storage.records.postgres import open_postgres
from shortlist.storage.storage_config import StorageConfig


@pytest.fixture
def stores(s3: Any, postgres: str, monkeypatch: pytest.MonkeyPatch) -> StorageConfig:
    monkeypatch.setenv("SHORTLIST_DATABASE", postgres)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", postgres)
    return StorageConfig(
        cluster="blue",
        objects=s3.url,
        database_variable="SHORTLIST_DATABASE",
        tracking_variable="MLFLOW_TRACKING_URI",
    )


def test_an_identity_is_made_once(stores: StorageConfig, s3: Any, postgres: str) -> None:
    with ThreadPoolExecutor(3) as pool:
        (identity,) = set(pool.map(claim, [stores] * 3))
    marker = json.loads(open_object_store(stores).read(MARKER) or b"")
    assert marker == {"cluster": "blue", "identity": identity, "objects": s3.url}
    assert json.loads(open_postgres(postgres, "", "identity", "").read(MARKER) or "") == marker


def test_a_concurrent_claim_gets_the_identity_of_the_first(
    stores: StorageConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    won: list[str] = []
    bucket = open_object_store(stores)
    read = bucket.read

    def overtaken(key: str) -> bytes | None:
        stored = read(key)
        if not won:
            won.append("")
            won[0] = claim(stores)
        return stored

    monkeypatch.setattr(bucket, "read", overtaken)
    monkeypatch.setattr(identity, "open_object_store", lambda _: bucket)
    assert claim(stores) == won[0] == claim(stores)


def test_a_bucket_of_another_cluster_is_refused(stores: StorageConfig, postgres: str) -> None:
    claim(stores.model_copy(update={"database_variable": "", "tracking_variable": ""}))
    green = stores.model_copy(update={"cluster": "green"})
    with pytest.raises(ShortlistError, match=r"runtime\.objects: s3://.* belongs to the cluster 'blue'.*'green'"):
        claim(green)
    assert open_postgres(postgres, "", "identity", "").read(MARKER) is None


def test_a_database_of_another_cluster_is_refused(stores: StorageConfig) -> None:
    claim(stores)
    green = stores.model_copy(update={"cluster": "green", "objects": f"{stores.objects}/green"})
    with pytest.raises(ShortlistError, match=r"the database of 127\.0\.0\.1.*belongs to the cluster 'blue'"):
        claim(green)
    assert open_object_store(green).read(MARKER) is None


def test_an_mlflow_database_of_another_cluster_is_refused(
    stores: StorageConfig, postgres: str, postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(stores)
    monkeypatch.setenv("SHORTLIST_DATABASE", f"{postgres_server}/postgres")
    green = stores.model_copy(update={"cluster": "green", "objects": f"{stores.objects}/green"})
    with pytest.raises(ShortlistError, match="belongs to the cluster 'blue'"):
        claim(green)


def test_a_database_goes_with_one_bucket(stores: StorageConfig) -> None:
    claim(stores)
    moved = stores.model_copy(update={"objects": f"{stores.objects}/moved"})
    with pytest.raises(ShortlistError, match=r"belongs with s3://\S+/shortlist, and s3://\S+/moved has no state yet"):
        claim(moved)
    claim(moved.model_copy(update={"database_variable": "", "tracking_variable": ""}))  # with a database of its own
    with pytest.raises(ShortlistError, match=r"/moved has the state of others"):
        claim(moved)


def test_another_ones_marker_is_not_overwritten(stores: StorageConfig) -> None:
    open_object_store(stores).write(MARKER, b"[]")
    with pytest.raises(ShortlistError, match=r"cluster\.json is not one that Shortlist wrote"):
        claim(stores)


def test_a_missing_variable_is_named(stores: StorageConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHORTLIST_DATABASE")
    with pytest.raises(ShortlistError, match=r"runtime\.database: the environment variable SHORTLIST_DATABASE is not"):
        claim(stores)


def test_a_folder_needs_no_identity() -> None:
    assert claim(StorageConfig(folder="/nowhere/stores")) == ""
