"""A store that does not answer raises the error after which a step is run again; one that refuses does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shortlist.contracts import ShortlistError, StoreUnavailableError
from shortlist.features.online_stores.redis import RedisOnline
from shortlist.storage.objects import open_object_store
from shortlist.storage.records.postgres_server import Server
from shortlist.storage.storage_config import StorageConfig
from shortlist.tracking.store_access import quiet_mlflow

NOBODY = "127.0.0.1:9"
"""An address where nothing listens."""


def read_bucket() -> None:
    open_object_store(StorageConfig(objects="s3://models/shortlist")).read("cluster.json")


def query_postgres() -> None:
    server = Server(f"postgresql://me:pa55@{NOBODY}/db", patience_seconds=0.1)
    server.transact(lambda connection: connection.exec_driver_sql("SELECT 1"))


def connect_to_redis() -> None:
    RedisOnline(kind="redis").check_reachable()


def ask_mlflow() -> None:
    from mlflow import MlflowClient

    with quiet_mlflow(f"http://{NOBODY}"):
        MlflowClient(f"http://{NOBODY}").search_experiments()


@pytest.fixture(autouse=True)
def _nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{NOBODY}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "pa55")
    monkeypatch.setenv("SHORTLIST_REDIS", f"{NOBODY},password=pa55")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


@pytest.mark.parametrize("call", [read_bucket, query_postgres, connect_to_redis, ask_mlflow])
def test_a_store_that_does_not_answer_is_unavailable(call: Callable[[], None]) -> None:
    with pytest.raises(StoreUnavailableError) as caught:
        call()
    assert "pa55" not in str(caught.value)


def test_a_store_without_credentials_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    with pytest.raises(ShortlistError, match="refuses the credentials, or there are none") as caught:
        read_bucket()
    assert not isinstance(caught.value, StoreUnavailableError)
