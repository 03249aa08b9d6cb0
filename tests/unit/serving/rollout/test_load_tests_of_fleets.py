"""What the load test of a rollout asks: scores, and slates of a version that makes them, here and on a cluster."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client import ApiClient

from shortlist.rollout import fleet_connection
from shortlist.rollout.deployment import Deployment
from shortlist.rollout.fleet_connection import FleetConnection, FleetContext
from shortlist.rollout.kserve.connection import KServeConnection
from shortlist.rollout.local.connection import StackConnection
from shortlist.spec.cluster import Cluster
from shortlist.spec.gates import Gates
from shortlist.spec.runtime import Runtime
from shortlist.spec.serving import Serving
from shortlist.storage.storage_config import StorageConfig

RELEASED = Deployment(
    version=2, kind="xgboost", model_folder=Path("model"), digest="", store=None, release=Path("stages")
)
SCORING = RELEASED.model_copy(update={"release": None})


def local_connection(context: FleetContext, monkeypatch: pytest.MonkeyPatch) -> FleetConnection:
    stack: Any = SimpleNamespace(record=SimpleNamespace(versions={2: SimpleNamespace(ports=SimpleNamespace(http=81))}))
    return StackConnection(context, stack)


def kserve_connection(context: FleetContext, monkeypatch: pytest.MonkeyPatch) -> FleetConnection:
    monkeypatch.setattr("shortlist.rollout.kserve.connection.connect", ApiClient)
    connection = KServeConnection(context)
    connection.fleet = SimpleNamespace(  # type: ignore[assignment]
        service_of=lambda version: f"demo-v{version}", owner=SimpleNamespace(namespace="ranking")
    )
    return connection


@pytest.mark.parametrize(
    ("connect", "address"), [(local_connection, ("127.0.0.1", 81)), (kserve_connection, ("demo-v2.ranking", 80))]
)
def test_a_version_with_a_release_is_load_tested_with_slates(
    connect: Any, address: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_tests: list[tuple[str, int, Path | None]] = []

    def failures(
        port: int, model: str, data_section: Any, log: Path, limits: Any, release: Path | None, host: str
    ) -> list[str]:
        load_tests.append((host, port, release))
        return ["too slow"]

    declared = SimpleNamespace(plan=SimpleNamespace(declared=SimpleNamespace(data=None)))
    monkeypatch.setattr(fleet_connection, "live_load_failures", failures)
    monkeypatch.setattr(fleet_connection.Preprocessing, "load", lambda _: declared)
    monkeypatch.setattr(FleetContext, "log_folder", lambda _: tmp_path)
    stores = StorageConfig(folder=tmp_path / "stores")
    context = FleetContext("demo", stores, Serving(), Gates(min_auc=0.6), Runtime())
    connection = connect(context, monkeypatch)
    assert [connection.load_failures(deployment) for deployment in (RELEASED, SCORING)] == [["too slow"]] * 2
    assert load_tests == [(*address, Path("stages")), (*address, None)]


def test_on_a_cluster_a_row_is_scored_after_the_endpoints_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is read once: the row is sent at every check."""
    declared = SimpleNamespace(plan=SimpleNamespace(declared=SimpleNamespace(data=None)))
    rows, requests, readiness = [], [], ["no ready endpoint"]

    def live_row(data_section: Any, log: Path) -> dict[str, Any]:
        rows.append(log)
        return {"price": 3}

    def row_failures(port: int, model: str, inputs: Any, host: str) -> list[str]:
        requests.append((host, port, inputs))
        return ["status 503"]

    monkeypatch.setattr(fleet_connection, "live_row", live_row)
    monkeypatch.setattr(fleet_connection, "live_row_failures", row_failures)
    monkeypatch.setattr(fleet_connection.Preprocessing, "load", lambda _: declared)
    monkeypatch.setattr(FleetContext, "log_folder", lambda _: tmp_path)
    runtime = Runtime(cluster=Cluster(keep_former_seconds=7))
    stores = StorageConfig(folder=tmp_path / "stores")
    connection: Any = kserve_connection(
        FleetContext("demo", stores, Serving(), Gates(min_auc=0.6), runtime), monkeypatch
    )
    connection.fleet.readiness_failures = lambda version: readiness
    assert connection.answer_failures(SCORING) == ["no ready endpoint"]
    readiness.clear()
    assert [connection.answer_failures(SCORING) for _ in range(2)] == [["status 503"]] * 2
    assert (rows, requests) == ([tmp_path], [("demo-v2.ranking", 80, {"price": 3})] * 2)
    assert connection.keep_former_seconds == 7
