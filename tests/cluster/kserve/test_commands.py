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

from shortlist.cli.serving import _target_deployer
from shortlist.contracts import ShortlistError
from shortlist.deployment.deployer import Deployer
from shortlist.rollout.fleet_connection import FleetContext
from shortlist.rollout.kserve import connection
from shortlist.rollout.kserve.observer import KubeObserver
from shortlist.rollout.record import RolloutRecord
from shortlist.rollout.states.phases import Phase
from shortlist.spec.gates import Gates
from shortlist.spec.runtime import BucketObjects, Runtime
from shortlist.spec.serving import Serving
from shortlist.storage.objects import ObjectStore
from shortlist.storage.storage_config import StorageConfig
from shortlist.system.kubernetes_api import TOKEN_VARIABLE, ClusterError, connect
from shortlist.tracking.run_context import RunContext

__all__ = ["prometheus"]  # a fixture
BUCKET = BucketObjects(kind="bucket", url="s3://models/shortlist")


@pytest.fixture
def deployer(tmp_path: Path, prometheus: PrometheusServer, monkeypatch: pytest.MonkeyPatch) -> Deployer:
    """Everything is real but the bucket, which is a folder, and the registry, which is one too."""
    stores = StorageConfig(folder=tmp_path / "stores", cluster="eu-1", objects=BUCKET.url, log_in_objects=True)
    cluster = CLUSTER.model_copy(update={"prometheus": prometheus.url, "keep_former_seconds": 0})
    runtime = Runtime(target="kserve", objects=BUCKET, cluster=cluster)
    objects = ObjectStore.in_folder(tmp_path / "objects")
    monkeypatch.setattr(connection, "open_object_store", lambda _: objects)
    monkeypatch.setattr(FleetContext, "served_store", None)
    monkeypatch.setattr(connection.KServeConnection, "poll_seconds", 0.01)
    monkeypatch.setattr(connection.KServeConnection, "load_failures", lambda *_: [])
    monkeypatch.setattr(FleetContext, "answer_failures", lambda *_: [])
    monkeypatch.setattr(connection, "KubeObserver", partial(KubeObserver, settled_seconds=0))
    return Deployer(RunContext(name="demo", stores=str(stores)), Serving(canary=POLICY), Gates(min_auc=0.6), runtime)


@pytest.fixture
def kubeconfig(kube: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubeServer:
    """What kubectl reads, too."""
    named = [
        ("clusters", "cluster", {"server": kube.url}),
        ("users", "user", {"token": "shortlist-rollout"}),
        ("contexts", "context", {"cluster": "here", "user": "here"}),
    ]
    config = {plural: [{"name": "here", setting: value}] for plural, setting, value in named}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "here", **config}))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    return kube


def test_a_remote_fleet_without_a_log_in_the_object_store_is_refused(tmp_path: Path) -> None:
    origin = RunContext(name="demo", stores=f"{tmp_path / 'stores'}#1")
    runtime = Runtime(target="kserve", objects=BUCKET)
    with pytest.raises(ShortlistError, match=r"runtime\.prediction_log: got 'files'; the canary analysis reads"):
        Deployer(origin, Serving(), Gates(min_auc=0.6), runtime)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("cluster", r"--target: got 'cluster', but spec 'demo' declares runtime\.target: stack"),
        ("moon", r"--target: got 'moon'; wanted stack or cluster"),
    ],
)
def test_another_target_than_the_specs_is_refused(tmp_path: Path, target: str, message: str) -> None:
    with pytest.raises(ShortlistError, match=message):
        _target_deployer("demo", target, tmp_path)


def test_without_a_cluster_a_training_ends_with_a_sentence(
    deployer: Deployer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    ending = deployer.after_training("2")
    assert ending.state == "not_promoted"
    assert "no Kubernetes cluster is configured here" in ending.sentence
    assert deployer.after_training("").state == "held"


def test_a_trained_version_is_rolled_out_from_command_to_cluster(
    deployer: Deployer,
    kubeconfig: KubeServer,
    prometheus: PrometheusServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(tmp_path, kubeconfig.url)
    world.serve(1)
    traffic = Traffic(world, prometheus, tmp_path / "disks")
    monkeypatch.setattr(RunContext, "tracker", property(lambda _: SimpleNamespace(registry=world.models)))
    observed: list[str] = []
    real = connection.KServeConnection.observe

    def observe(self: connection.KServeConnection, record: RolloutRecord) -> KubeObserver:
        observer = real(self, record)
        observe_step: Callable[[int, float], object] = observer.observe_step

        def watched(step: int, seconds: float) -> object:
            traffic.on_change(deployer.rollouts.read(record.id))
            observed.append(f"step {step}")
            return observe_step(step, seconds)

        observer.observe_step = watched  # type: ignore[method-assign,assignment]
        return observer

    monkeypatch.setattr(connection.KServeConnection, "observe", observe)
    unserved = deployer.after_training("2", with_rollout=False)
    assert (unserved.state, "was not rolled out, as --no-rollout says" in unserved.sentence) == ("not_promoted", True)
    assert (world.fleet().serving().stable, observed) == (1, [])  # type: ignore[union-attr]
    ending = deployer.after_training("2")
    assert ending.state == "promoted", ending.sentence
    assert (observed[0], observed[-1]) == ("step 0", "step 1")
    assert kubeconfig.wrong == []
    assert deployer.after_training("2").sentence == "Version 2 serves already"
    back = deployer.rollback()
    assert (back.state.phase, world.fleet().serving().stable) == (Phase.PROMOTED, 1)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text", ["clusters: [", "[]", "just words", "\x00", "apiVersion: v1\nclusters: 7\ncontexts: 3"]
)
def test_a_file_that_is_no_kubeconfig_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterError, match=r"is no kubeconfig|no Kubernetes cluster is configured here"):
        connect()


def test_a_cluster_that_is_too_old_gets_no_rollout(deployer: Deployer, kubeconfig: KubeServer, tmp_path: Path) -> None:
    kubeconfig.deployments["kserve", "kserve-controller-manager"]["metadata"]["labels"] = {
        "app.kubernetes.io/version": "v0.15.2"
    }
    ending = deployer.after_training("2")
    assert ending.state == "not_promoted"
    assert "version 0.15.2, and 0.20 or later is needed" in ending.sentence
    for command in (deployer.canary, deployer.promote):
        with pytest.raises(ClusterError, match=r"0\.15\.2, and 0\.20 or later"):
            command()
    assert kubeconfig.named("InferenceService") == []


def test_the_rollout_step_reads_its_own_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps of a run have one account; this token is read anew, for it may be replaced."""
    (tmp_path / "pod").write_text("of-the-pod")
    (tmp_path / "ca").write_text("certificate")
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_TOKEN_FILENAME", str(tmp_path / "pod"))
    monkeypatch.setattr("kubernetes.config.incluster_config.SERVICE_CERT_FILENAME", str(tmp_path / "ca"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(
        "kubernetes.client.ApiClient", lambda configuration: SimpleNamespace(configuration=configuration)
    )
    configuration = connect().configuration
    assert configuration.get_api_key_with_prefix("authorization").lower() == "bearer of-the-pod"
    monkeypatch.setenv(TOKEN_VARIABLE, str(tmp_path / "own"))
    with pytest.raises(ClusterError, match=r"SHORTLIST_KUBERNETES_TOKEN: .* runtime\.cluster\.rollout_token names"):
        connect()
    for token in ("first", "second"):
        (tmp_path / "own").write_text(f"{token}\n")
        configuration = connect().configuration
        assert configuration.get_api_key_with_prefix("authorization") == f"Bearer {token}"
    (tmp_path / "own").write_text("third")
    assert configuration.get_api_key_with_prefix("authorization") == "Bearer third"
