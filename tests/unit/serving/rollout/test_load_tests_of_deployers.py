"""What the load test of a rollout asks: scores, and slates of a version that makes them, here and on a cluster."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shortlist.deployment import cluster_deployment, deployment
from shortlist.deployment.cluster_deployment import ClusterDeployer
from shortlist.deployment.deployers import make_deployer
from shortlist.deployment.deployment import Deployer
from shortlist.rollout.local.deployment import Deployment
from shortlist.spec.gates import Gates
from shortlist.spec.runtime import BucketObjects, Runtime
from shortlist.spec.serving import Serving
from shortlist.storage.storage_config import StorageConfig
from shortlist.training.training import RunContext

RELEASED = Deployment(
    version=2, kind="xgboost", model_folder=Path("model"), digest="", store=None, release=Path("stages")
)
SCORING = RELEASED.model_copy(update={"release": None})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Path | None]:
    """Collects the folder of stages that each load test was given; every one fails."""
    found: list[Path | None] = []

    def failures(*given: Any) -> list[str]:
        found.append(given[5])
        return ["too slow"]

    for module in (deployment, cluster_deployment):
        monkeypatch.setattr(module, "live_load_failures", failures)
    return found


def test_on_this_machine_slates_are_asked_for_where_a_version_makes_them(
    asked: list[Path | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = make_deployer(
        RunContext(name="demo", stores=f"{tmp_path / 'stores'}#1"), Serving(), Gates(min_auc=0.6), Runtime()
    )
    assert isinstance(here, Deployer)
    monkeypatch.setattr(Deployer, "_declared", lambda *_: None)
    monkeypatch.setattr(Deployer, "_log_folder", lambda _: tmp_path)
    stack: Any = SimpleNamespace(record=SimpleNamespace(versions={2: SimpleNamespace(ports=SimpleNamespace(http=1))}))
    assert [here._load_failures(stack, one) for one in (RELEASED, SCORING)] == [["too slow"]] * 2
    assert asked == [Path("stages"), None]


def test_on_a_cluster_slates_are_asked_for_where_a_version_makes_them(
    asked: list[Path | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = BucketObjects(kind="bucket", url="s3://models/shortlist")
    stores = StorageConfig(folder=tmp_path, cluster="eu-1", objects=bucket.url, log_in_objects=True)
    there = make_deployer(
        RunContext(name="demo", stores=str(stores)),
        Serving(),
        Gates(min_auc=0.6),
        Runtime(target="kserve", objects=bucket),
    )
    assert isinstance(there, ClusterDeployer)
    declared = SimpleNamespace(plan=SimpleNamespace(declared=SimpleNamespace(data=None)))
    fleet = SimpleNamespace(service_of=lambda version: f"demo-v{version}", owner=SimpleNamespace(namespace="ranking"))
    monkeypatch.setattr(cluster_deployment.Preprocessing, "load", lambda _: declared)
    monkeypatch.setattr(cluster_deployment, "local_copy", lambda _: tmp_path)
    monkeypatch.setattr(ClusterDeployer, "_feast", SimpleNamespace(expected=lambda: {"log": ""}))
    monkeypatch.setattr(ClusterDeployer, "_fleet", fleet)
    assert [there._load_failures(one) for one in (RELEASED, SCORING)] == [["too slow"]] * 2
    assert asked == [Path("stages"), None]
