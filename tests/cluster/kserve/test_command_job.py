"""The commands of a rollout from outside the cluster: they run in a pod, where servers and stores have names."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from job_pods import JobPod
from kserve_world import CLUSTER, World
from kube_server import KubeServer
from kubernetes import client

from shortlist.cli import main
from shortlist.deployment.deployer import Deployer
from shortlist.rollout.deployment import Route
from shortlist.rollout.fleet_connection import FleetContext
from shortlist.rollout.kserve.command_job import INTERRUPTED, JobRun, command_job
from shortlist.spec.cluster import Cluster, Secret
from shortlist.system.kubernetes_api import ClusterError, KubernetesAPI

PROGRAM = Path(__file__).with_name("pod_program.py")
SECRET = Secret(name="stores", variables={"SHORTLIST_DATABASE": "database"})

Object = dict[str, Any]


def api(kube: KubeServer) -> KubernetesAPI:
    configuration = client.Configuration(host=kube.url)
    configuration.api_key = {"authorization": "Bearer operator"}
    return KubernetesAPI(client.ApiClient(configuration), "ml", 5.0, 0.02, 0.2)


def job_run(kube: KubeServer, start_seconds: float = 20.0) -> JobRun:
    return JobRun(api(kube), command_job(CLUSTER, "demo", "name: demo\n", ["rollback"]), start_seconds, 0.02)


def printing(folder: Path, script: str, **settings: Any) -> Callable[[Object], JobPod]:
    """Return what makes a pod that runs a Python script."""
    return lambda job: JobPod(job, folder, [sys.executable, "-u", "-c", script], **settings)


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def test_the_job_has_the_rollouts_account_and_only_references_to_secrets() -> None:
    cluster = CLUSTER.model_copy(update={"secrets": (SECRET,)})
    job = command_job(cluster, "demo", "name: demo\n", ["deploy-canary", "--version", "3"])
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["shortlist", "deploy-canary", "/etc/shortlist/spec.yaml", "--version", "3"]
    assert (pod["serviceAccountName"], container["image"]) == ("shortlist-rollout", CLUSTER.images.pipeline)
    assert {
        "name": "SHORTLIST_DATABASE",
        "valueFrom": {"secretKeyRef": {"name": "stores", "key": "database"}},
    } in container["env"]
    assert job["spec"]["backoffLimit"] == 0  # another pod would start another rollout


def test_a_spec_that_no_annotation_holds_is_refused() -> None:
    with pytest.raises(ClusterError, match="spec 'demo': 204801 bytes, and a pod's annotation may have 204800"):
        command_job(CLUSTER, "demo", "#" * 204_801, ["rollback"])


def test_an_image_without_digest_is_refused_before_anything_is_created() -> None:
    tagged = CLUSTER.model_copy(update={"images": CLUSTER.images.model_copy(update={"pipeline": "shortlist:1"})})
    with pytest.raises(ClusterError, match=r"runtime\.cluster\.images\.pipeline: got 'shortlist:1'; wanted it by dig"):
        command_job(tagged, "demo", "", ["rollback"])


@pytest.mark.parametrize("code", [0, 3])
def test_the_log_is_printed_the_exit_code_returned_and_the_job_deleted(
    kube: KubeServer, tmp_path: Path, capfd: pytest.CaptureFixture[str], code: int
) -> None:
    kube.make_job_pod = printing(tmp_path, f"import sys; print('one'); print('two'); sys.exit({code})")
    assert job_run(kube).run() == code
    assert capfd.readouterr().out == "one\ntwo\n"
    assert (kube.named("Job"), kube.wrong, kube.forbidden) == ([], [], [])


def test_a_lost_connection_neither_loses_nor_repeats_a_line(
    kube: KubeServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def make(job: Object) -> JobPod:
        pod = printing(tmp_path, "for number in range(5): print(number)")(job)
        pod.cut_after = 2
        return pod

    kube.make_job_pod = make
    assert job_run(kube).run() == 0
    assert capfd.readouterr().out == "0\n1\n2\n3\n4\n"
    assert len([path for _, path in kube.requests if "/log" in path]) >= 2


def test_an_image_that_cannot_be_pulled_is_named_at_once(kube: KubeServer, tmp_path: Path) -> None:
    kube.make_job_pod = lambda job: JobPod(job, tmp_path, waiting="ErrImagePull")
    started = time.monotonic()
    with pytest.raises(ClusterError, match=r"its pod does not start: pod .*, command: ErrImagePull: not found"):
        job_run(kube, start_seconds=600).run()
    assert time.monotonic() - started < 60  # of the ten minutes that a node may take
    assert kube.named("Job") == []


def test_a_pod_that_no_quota_allows_is_named_and_its_job_deleted(kube: KubeServer) -> None:
    with pytest.raises(ClusterError, match="its pod does not start: FailedCreate: pods is forbidden: exceeded quota"):
        job_run(kube).run()
    assert kube.named("Job") == []


def test_a_pod_that_was_evicted_is_no_success(kube: KubeServer, tmp_path: Path) -> None:
    def make(job: Object) -> JobPod:
        pod = printing(tmp_path, "print('begun'); import time; time.sleep(60)")(job)

        def evict() -> None:
            while not pod.lines:
                time.sleep(0.01)
            pod.is_evicted = True
            pod.kill()

        threading.Thread(target=evict, daemon=True).start()
        return pod

    kube.make_job_pod = make
    with pytest.raises(ClusterError, match=r"ended without an exit code \(Evicted\)\. make canary-status SPEC="):
        job_run(kube).run()


ABORTING = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("users are sent back", flush=True), sys.exit(1)))
print("begun", flush=True)
time.sleep(60)
"""


def test_control_c_ends_the_command_in_its_pod_like_a_local_process(
    kube: KubeServer, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kube.make_job_pod = printing(tmp_path, ABORTING)
    real, interrupted = sys.stdout.write, []

    def write(text: str) -> int:
        if text == "begun\n" and not interrupted:
            interrupted.append(text)
            real(text)
            raise KeyboardInterrupt  # as Ctrl-C does; workers of pytest-xdist ignore the signal
        return real(text)

    monkeypatch.setattr(sys.stdout, "write", write)
    assert job_run(kube).run() in (1, INTERRUPTED)  # the pod may be gone before it is looked at
    assert "users are sent back" in capfd.readouterr().out
    assert (kube.named("Job"), kube.wrong) == ([], [])


@pytest.fixture
def spec_file(kube: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec for KServe, and a kubeconfig of a person who may roll out."""
    text = (Path(__file__).parents[3] / "deploy/k8s/specs/demo.yaml").read_text()
    spec = yaml.safe_load(text)
    cluster: Object = Cluster.model_validate(CLUSTER.model_dump() | {"keep_former_seconds": 0}).model_dump(mode="json")
    spec["runtime"]["cluster"] |= {
        name: cluster[name] for name in ("name", "images", "namespace", "keep_former_seconds")
    }
    spec["serving"] = {"canary": {"drain_seconds": 0, "steps": [5, 100]}}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(spec))
    named = [
        ("clusters", "cluster", {"server": kube.url}),
        ("users", "user", {"token": "operator"}),
        ("contexts", "context", {"cluster": "here", "user": "here"}),
    ]
    config = {plural: [{"name": "here", setting: value}] for plural, setting, value in named}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "here", **config}))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    return file


def shortlist(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["shortlist", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture
def _nothing_is_asked_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A healthy version was withdrawn, for its servers were asked by a name that this machine cannot resolve."""
    for owner, name in ((FleetContext, "load_failures"), (FleetContext, "answer_failures"), (Deployer, "__init__")):
        monkeypatch.setattr(owner, name, lambda *_: pytest.fail("asked from outside the cluster"))


@pytest.mark.usefixtures("_nothing_is_asked_from_here")
@pytest.mark.parametrize(
    "command",
    [("deploy-canary", "--version", "7"), ("canary-status",), ("promote",), ("rollback",)],
    ids=lambda c: c[0],
)
def test_each_command_of_a_rollout_runs_in_a_pod(
    kube: KubeServer,
    spec_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    command: tuple[str, ...],
) -> None:
    script = (
        "import sys, yaml; print(sys.argv[1], yaml.safe_load(open(sys.argv[2]))['name'], *sys.argv[3:]); sys.exit(1)"
    )
    kube.make_job_pod = printing(tmp_path, script)
    name, *options = command
    assert shortlist(monkeypatch, name, str(spec_file), "--target", "cluster", *options) == 1
    assert capfd.readouterr().out.split() == [name, "demo", *options]
    assert (kube.named("Job"), kube.forbidden) == ([], [])


@pytest.mark.long
@pytest.mark.usefixtures("_nothing_is_asked_from_here")
def test_commands_from_outside_ask_nothing_that_only_the_cluster_knows(
    world: World,
    kube: KubeServer,
    spec_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    pods = tmp_path / "pods"
    pods.mkdir()
    kube.make_job_pod = lambda job: JobPod(job, pods, [sys.executable, str(PROGRAM), str(tmp_path), kube.url])
    target = (str(spec_file), "--target", "cluster")
    assert shortlist(monkeypatch, "deploy-canary", *target) == 0
    output = capfd.readouterr().out
    assert f"load test of {world.name(2)}-transformer.ml" in output
    assert "watching version 2 at 5 %" in output
    assert "Promoted" in output
    assert shortlist(monkeypatch, "canary-status", *target) == 0
    assert "Promoted" in capfd.readouterr().out
    assert shortlist(monkeypatch, "rollback", *target) == 0
    assert world.fleet().serving() == Route(stable=1)
    assert shortlist(monkeypatch, "promote", *target) == 0
    assert world.fleet().serving() == Route(stable=2)
    assert (kube.named("Job"), kube.wrong, kube.forbidden) == ([], [], [])
