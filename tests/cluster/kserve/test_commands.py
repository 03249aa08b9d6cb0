"""From a command, or a step of a run, to the cluster: which servers are driven, and what happens without any."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from kserve_world import CLUSTER, World
from kube_server import KubeServer
from prometheus_server import PrometheusServer
from test_judge_on_kserve import POLICY, Traffic, prometheus

import models.cluster_deployment
from models.cluster_deployment import ClusterDeployer
from models.deployers import deployer_of
from models.deployment import Deployer
from models.training import Origin
from pipelines.serving_cli import _on_target
from shortlist.config.gates import Gates
from shortlist.config.runtime import BucketObjects, Runtime
from shortlist.config.serving import Serving
from shortlist.contracts import ShortlistError
from shortlist.objects_folder import FolderObjects
from shortlist.serving.cluster.observer import KubeObserver
from shortlist.serving.rollout.phases import Phase
from shortlist.stores import Stores

__all__ = ["prometheus"]  # a fixture
BUCKET = BucketObjects(kind="bucket", url="s3://models/shortlist")


@pytest.fixture
def deployer(tmp_path: Path, prometheus: PrometheusServer, monkeypatch: pytest.MonkeyPatch) -> ClusterDeployer:
    """Everything is real but the bucket, which is a folder, and the registry, which is one too."""
    stores = Stores(folder=tmp_path / "stores", cluster="eu-1", objects=BUCKET.url, log_in_objects=True)
    cluster = CLUSTER.model_copy(update={"prometheus": prometheus.url})
    runtime = Runtime(target="kserve", objects=BUCKET, cluster=cluster)
    objects = FolderObjects(tmp_path / "objects")
    monkeypatch.setattr(models.cluster_deployment, "open_objects", lambda _: objects)
    monkeypatch.setattr(models.cluster_deployment, "place_in", lambda *_: SimpleNamespace(announced=lambda: None))
    monkeypatch.setattr(models.cluster_deployment, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(ClusterDeployer, "_prove", lambda *_: [])
    monkeypatch.setattr(models.cluster_deployment, "KubeObserver", partial(KubeObserver, settled_seconds=0))
    found = deployer_of(Origin(name="demo", stores=str(stores)), Serving(canary=POLICY), Gates(min_auc=0.6), runtime)
    assert isinstance(found, ClusterDeployer)
    return found


@pytest.fixture
def kubeconfig(kube: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubeServer:
    """What kubectl reads, too."""
    named = [
        ("clusters", "cluster", {"server": kube.url}),
        ("users", "user", {"token": "of-a-test"}),
        ("contexts", "context", {"cluster": "here", "user": "here"}),
    ]
    config = {plural: [{"name": "here", one: value}] for plural, one, value in named}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "here", **config}))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    return kube


def test_the_spec_names_the_servers(tmp_path: Path) -> None:
    origin = Origin(name="demo", stores=f"{tmp_path / 'stores'}#1")
    assert isinstance(deployer_of(origin, Serving(), Gates(min_auc=0.6), Runtime()), Deployer)


def test_a_judge_without_a_log_is_refused(tmp_path: Path) -> None:
    origin = Origin(name="demo", stores=f"{tmp_path / 'stores'}#1")
    runtime = Runtime(target="kserve", objects=BUCKET)
    with pytest.raises(ShortlistError, match=r"runtime\.prediction_log: got 'files'; the judge of a cluster reads"):
        deployer_of(origin, Serving(), Gates(min_auc=0.6), runtime)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("cluster", r"--target: got 'cluster', but spec 'demo' says runtime\.target: stack"),
        ("moon", r"--target: got 'moon'; wanted stack or cluster"),
    ],
)
def test_another_target_than_the_specs_is_refused(tmp_path: Path, target: str, message: str) -> None:
    with pytest.raises(ShortlistError, match=message):
        _on_target("demo", target, tmp_path)


def test_without_a_cluster_a_training_ends_with_a_sentence(
    deployer: ClusterDeployer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    ending = deployer.after_training("2")
    assert ending.state == "not_promoted"
    assert "no Kubernetes cluster is configured here" in ending.sentence
    assert deployer.after_training("").state == "held"


def test_a_trained_version_is_rolled_out_from_command_to_cluster(
    deployer: ClusterDeployer,
    kubeconfig: KubeServer,
    prometheus: PrometheusServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(tmp_path, kubeconfig.url)
    world.serve(1)
    traffic = Traffic(world, prometheus)
    monkeypatch.setattr(Origin, "tracker", property(lambda _: SimpleNamespace(registry=world.models)))
    observed: list[str] = []
    real = deployer._observer

    def observer(record: object) -> object:
        made = real(record)  # type: ignore[arg-type]
        look: Callable[[int, float], object] = made.look

        def watched(step: int, seconds: float) -> object:
            traffic.on_change(deployer.rollouts.read(record.id))  # type: ignore[attr-defined]
            observed.append(f"step {step}")
            return look(step, seconds)

        made.look = watched  # type: ignore[method-assign,assignment]
        return made

    monkeypatch.setattr(deployer, "_observer", observer)
    ending = deployer.after_training("2")
    assert ending.state == "promoted", ending.sentence
    assert (observed[0], observed[-1]) == ("step 0", "step 1")
    assert kubeconfig.wrong == []
    assert deployer.after_training("2").sentence == "Version 2 serves already"
    back = deployer.rollback()
    assert (back.state.phase, world.fleet().serving().stable) == (Phase.PROMOTED, 1)  # type: ignore[union-attr]
