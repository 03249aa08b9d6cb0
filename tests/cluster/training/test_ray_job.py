"""Features as RayJobs: the manifest against the published schema, real steps on a real Ray, and what goes wrong."""

from __future__ import annotations

import copy
import errno
import importlib.util
import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crd_schemas import problems
from job_server import Object, running
from kube_rbac import NAMESPACE, is_allowed, verb_of
from kubernetes import client
from ray_job_server import RayJobs, ended

pytest.importorskip("ray", reason="requirements/cluster.txt is not installed")

from kfp import dsl

from components.features import build_table, fit_features
from shortlist.contracts import DataError, ShortlistError
from shortlist.features.engines import work
from shortlist.features.engines.ray import ray_job as ray_job_module
from shortlist.features.engines.ray.ray_job import RayWorkers, ray_job
from shortlist.features.fits.fit import fit
from shortlist.pods import job as job_module
from shortlist.pods.failure import JobFailure
from shortlist.spec.cluster import Cluster, Task
from shortlist.spec.feature_job import VARIABLE, JobEnvironment
from shortlist.spec.features import Features
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import file_digests, write_json
from shortlist.system.accelerator import EngineError
from shortlist.tracking.pipeline_run import RUN_ID_VARIABLE

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("ray")]

IMAGE = "registry.example/shortlist@sha256:" + "a" * 64
CLUSTER = Cluster.model_validate(
    {
        "secrets": [{"name": "store", "variables": {"AWS_SECRET_ACCESS_KEY": "secret"}}],
        "variables": {"AWS_REGION": "eu-1"},
    }
)
WORKERS = RayWorkers(100, 16, 4 * 10**9, 10 * 10**9, "shortlist-features", timeout_minutes=90)
TASK = Task(cpu="4", memory="8Gi", node_selector={"pool": "memory"}, tolerations=({"key": "big"},))
COLUMNS = [
    {"kind": "vocabulary", "each": ["user_id"], "min_rows": 2},
    {"kind": "target", "key": ["user_id"], "name": "rate", "prior": 3.0},
    {"kind": "numeric", "each": "price", "standardise": True},
]


def environment(folder: Path | str = "/mnt/features") -> JobEnvironment:
    return JobEnvironment(folder=str(folder), image=IMAGE, cluster=CLUSTER, task=TASK)


def manifest(workers: RayWorkers = WORKERS) -> Object:
    return ray_job("features-1", "python3 -m program /mnt/features/1", workers, environment())


def pods(job: Object) -> dict[str, Object]:
    spec = job["spec"]
    cluster = spec["rayClusterSpec"]
    templates = [cluster["headGroupSpec"]["template"], cluster["workerGroupSpecs"][0]["template"]]
    templates.append(spec["submitterPodTemplate"])
    return dict(zip(("head", "worker", "submitter"), (template["spec"] for template in templates), strict=True))


def test_manifest_is_what_the_published_schema_wants() -> None:
    job = manifest()
    assert problems(job) == []
    spec = job["spec"]
    assert (spec["activeDeadlineSeconds"], spec["shutdownAfterJobFinishes"]) == (5_400, True)
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (7, 7, 7)  # ceil(100 / 16)
    assert group["rayStartParams"] == {"num-cpus": "15", "memory": "60000000000", "object-store-memory": "10000000000"}
    assert spec["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert spec["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    amounts = {name: pod["containers"][0]["resources"]["limits"] for name, pod in pods(job).items()}
    assert amounts["worker"] == {"cpu": "15", "memory": str(15 * 4 * 10**9 + 10 * 10**9 + 10**9)}
    assert amounts["head"] == {"cpu": "4", "memory": str(8 * 2**30 + 10 * 10**9 + 10**9)}
    for name, pod in pods(job).items():
        (container,) = pod["containers"]
        assert container["image"] == IMAGE
        assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("shortlist-pipeline", False)
        assert pod["securityContext"]["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]
        assert (pod["nodeSelector"], pod["tolerations"]) == ({"pool": "memory"}, [{"key": "big", "operator": "Exists"}])
        variables = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert "AWS_SECRET_ACCESS_KEY" not in variables and None not in variables.values()  # none from a secret
        if name != "submitter":
            mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            volumes = {volume["name"]: volume for volume in pod["volumes"]}
            shared_memory = volumes[mounts["/dev/shm"]]["emptyDir"]  # noqa: S108 - in a pod
            assert shared_memory == {"medium": "Memory", "sizeLimit": "10000000000"}
            assert volumes[mounts["/mnt/features"]]["persistentVolumeClaim"] == {"claimName": "shortlist-features"}
            assert variables["AWS_REGION"] == "eu-1"


@pytest.mark.parametrize(("workers", "per_pod"), [(1, 8), (8, 8), (9, 8), (128, 16)])
def test_pods_have_as_many_workers_as_are_declared(workers: int, per_pod: int) -> None:
    declared = WORKERS._replace(workers=workers, workers_per_pod=per_pod)
    (group,) = manifest(declared)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    cores = int(group["rayStartParams"]["num-cpus"])
    assert group["replicas"] == math.ceil(workers / per_pod)
    assert cores <= per_pod and workers <= cores * group["replicas"] < workers + group["replicas"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda spec: spec["rayClusterSpec"].pop("headGroupSpec"),
        lambda spec: spec["rayClusterSpec"]["workerGroupSpecs"][0].update(replicas="7"),
        lambda spec: spec.update(timeoutSeconds=4),
        lambda spec: spec["rayClusterSpec"]["headGroupSpec"]["rayStartParams"].update({"num-cpus": 0}),
        lambda spec: spec["submitterPodTemplate"]["spec"]["containers"][0].update(volumes=[]),
    ],
)
def test_the_schema_refuses_spoilt_manifests(spoil: Callable[[Object], Any]) -> None:
    job = copy.deepcopy(manifest())
    spoil(job["spec"])
    assert problems(job)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The small shop of the unit tests of features."""
    spec = importlib.util.spec_from_file_location("small_shop", Path(__file__).parents[2] / "unit/features/conftest.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "small_shop", module)  # for its dataclasses
    spec.loader.exec_module(module)
    return module.World(tmp_path, {}, {"warmup_days": 0, "validation_days": 1, "test_days": 1})


class Pod:
    """A step's pod that mounts a volume, in a cluster whose RayJobs run here."""

    def __init__(self, world: Any, volume: Path, cluster: RayJobs) -> None:
        self.volume, self.cluster = volume, cluster
        self.log = world.log([world.row(day, user_id=user, price=1.0) for day in range(4) for user in (1, 2, 1, 3)])
        self.data, self.features = world.data, Features.model_validate({"columns": COLUMNS})
        self.out = world.folder / "fitted"

    def fit(self, minutes: int = 1) -> None:
        features = {"engine": "ray", "workers": 2, "object_store_gb": 0.1, "timeout_minutes": minutes}
        fit(self.data, self.features, None, Runtime(engine="cpu", features=features), self.log, self.out)


@pytest.fixture
def pod(world: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    volume = world.folder / "volume"
    volume.mkdir()
    with running(RayJobs()) as cluster:
        api = client.ApiClient(client.Configuration(host=f"http://127.0.0.1:{cluster.port}"))
        monkeypatch.setattr(ray_job_module, "connect", lambda: api)
        monkeypatch.setattr(job_module, "_POLL_SECONDS", 0.05)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv(VARIABLE, environment(volume).model_dump_json())
        yield Pod(world, volume, cluster)


def test_steps_make_the_same_features_as_the_engine_local(pod: Pod, world: Any) -> None:
    folders = {}
    for engine in ({"engine": "local"}, {"engine": "ray", "workers": 2, "object_store_gb": 0.1}):
        runtime = Runtime(engine="cpu", features=engine).model_dump_json()
        declared = {"data": pod.data.model_dump_json(), "features": pod.features.model_dump_json(), "slices": ["page"]}
        log = dsl.Dataset(uri=str(pod.log))
        fitted, table = (dsl.Dataset(uri=str(world.folder / engine["engine"] / name)) for name in ("fitted", "table"))
        for artefact in (fitted, table):
            Path(artefact.path).parent.mkdir(exist_ok=True)
        fit_features(**declared, runtime=runtime, previous="", code="", valid_log=log, fitted=fitted)
        rows = build_table(**declared, runtime=runtime, code="", valid_log=log, fitted=fitted, table=table)
        assert rows == 16
        folders[engine["engine"]] = file_digests(world.folder / str(engine["engine"]))
    assert folders["ray"] == folders["local"]
    assert len(pod.cluster.created) == 2
    assert pod.cluster.jobs == {} and list(pod.volume.iterdir()) == []
    for method, path in pod.cluster.requests:
        if "/namespaces/" in path:
            name = path.partition("/rayjobs")[2].strip("/") or None
            verb = verb_of(method, name)
            assert is_allowed("shortlist-pipeline", verb, "ray.io", "rayjobs", NAMESPACE, name), (method, path)


def finish_by_hand(job: Object) -> Object:
    """Do what the program of a job does, without Ray."""
    folder = Path(shlex.split(job["spec"]["entrypoint"])[-1])
    call = json.loads((folder / "call.json").read_text())
    assert call["function"] == "shortlist.features.fits.fit:fit" and (folder / "log").is_dir()
    assert call["values"]["runtime"]["features"]["address"] == "auto"  # the job submits no job
    (folder / "out").mkdir()
    (folder / "out/features.json").write_text("{}")
    return ended("Complete", "SUCCEEDED")


def test_a_step_that_runs_again_finds_its_job_and_its_result(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    class LostPodError(Exception):
        """The step's pod was deleted."""

    def lose_pod(*_: object) -> None:
        raise LostPodError

    pod.cluster.status = ended("Running", "RUNNING")
    with monkeypatch.context() as patch, pytest.raises(LostPodError):
        patch.setattr(job_module.StepJob, "wait", lose_pod)
        pod.fit()
    (job,) = pod.cluster.jobs.values()
    job["status"] = finish_by_hand(job)
    with monkeypatch.context() as patch, pytest.raises(LostPodError):
        patch.setattr(work, "atomic_folder", lose_pod)
        pod.fit()
    assert pod.cluster.jobs == {}
    pod.cluster.status = None
    pod.fit()
    assert (len(pod.cluster.created), (pod.out / "features.json").read_text()) == (1, "{}")
    assert list(pod.volume.iterdir()) == []


def test_an_output_whose_deletion_was_interrupted_is_no_result(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    class LostPodError(Exception):
        """The step's pod was deleted."""

    def lose_pod(path: Path, **_: object) -> None:
        if Path(path).parent == pod.volume and not Path(path).name.endswith(".partial"):
            (Path(path) / "out/features.json").unlink()
            raise LostPodError

    monkeypatch.setattr(pod.cluster, "run", finish_by_hand)
    with monkeypatch.context() as patch, pytest.raises(LostPodError):
        patch.setattr("shutil.rmtree", lose_pod)
        pod.fit()
    pod.fit()
    assert (len(pod.cluster.created), (pod.out / "features.json").read_text()) == (2, "{}")
    assert list(pod.volume.iterdir()) == []


def test_files_that_cannot_be_deleted_yet_fail_no_step(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty")  # NFS keeps a file that is open elsewhere

    monkeypatch.setattr(pod.cluster, "run", finish_by_hand)
    with monkeypatch.context() as patch:
        patch.setattr("os.rmdir", refuse)
        pod.fit()
    assert (pod.out / "features.json").read_text() == "{}"
    assert [path.suffix for path in pod.volume.iterdir()] == [".deleted"]
    pod.fit()
    assert list(pod.volume.iterdir()) == []


def test_the_name_of_a_job_is_the_same_in_each_process() -> None:
    program = """
from datetime import date
from shortlist.features.engines import work
from shortlist.features.rows.table import build_table
from shortlist.spec.runtime import Runtime
days = frozenset(date(2026, 3, day) for day in range(1, 20))
runtime = Runtime(features={"engine": "ray"})
call = work.FeatureCall.of(build_table.__wrapped__, {"runtime": runtime, "only_days": days})
print(work._job_name(call, {}, "image"))
"""
    first_name, second_name = (
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True,
            text=True, check=True,
        ).stdout
        for hash_seed in ("1", "2")
    )  # fmt: skip
    assert first_name == second_name != ""


def test_another_run_has_jobs_of_its_own(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod.cluster, "run", finish_by_hand)
    for run in ("1", "2", "2"):
        monkeypatch.setenv(RUN_ID_VARIABLE, run)
        pod.fit()
    assert len(set(pod.cluster.created)) == 2


def test_a_mistake_of_the_user_in_the_job_is_raised_as_itself(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(job: Object) -> Object:
        folder = Path(shlex.split(job["spec"]["entrypoint"])[-1])
        write_json(folder / "failed.json", JobFailure.from_error(DataError("too few days")).model_dump())
        return ended("Failed", "FAILED", "AppFailed", "Job entrypoint command failed with exit code 1")

    monkeypatch.setattr(pod.cluster, "run", fail)
    with pytest.raises(DataError, match=r"^too few days$"):
        pod.fit()
    assert list(pod.volume.iterdir()) == []
    assert pod.cluster.jobs == {}  # the step may go on without this work
    assert not pod.out.exists()


def test_a_failed_job_is_reported_and_created_anew(pod: Pod) -> None:
    message = "Job entrypoint command failed with exit code 137, last available logs: Killed"
    pod.cluster.ends = [ended("Failed", "FAILED", "AppFailed", message)] * 2
    for tries in (1, 2):
        with pytest.raises(EngineError, match=r"failed: AppFailed: Job entrypoint .*\n.*logs job/features-") as caught:
            pod.fit()
        assert "last available logs: Killed" in str(caught.value)
        assert len(pod.cluster.created) == tries
        assert len(pod.cluster.jobs) == 1  # to be looked at
    assert list(pod.volume.iterdir()) == []


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (ended("Failed", "", "DeadlineExceeded", "passed the activeDeadlineSeconds"), "DeadlineExceeded: passed"),
        (ended("Initializing"), "Initializing"),  # KubeRay is away, or no node has room
    ],
)
def test_a_job_that_takes_too_long_is_deleted(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, status: Object, state: str
) -> None:
    monkeypatch.setattr(ray_job_module, "_OPERATOR_SECONDS", 0.5 - 60)
    pod.cluster.status = status
    with pytest.raises(EngineError, match=rf"longer than runtime\.features\.timeout_minutes \(1\).*state: {state}"):
        pod.fit(minutes=1)
    assert (len(pod.cluster.created), pod.cluster.jobs) == (1, {})


def test_a_stopped_job_is_no_success(pod: Pod) -> None:
    pod.cluster.ends = [ended("Complete", "STOPPED")]
    with pytest.raises(EngineError, match="failed: STOPPED: no message"):
        pod.fit()


def test_a_cluster_without_kuberay_is_named(pod: Pod) -> None:
    pod.cluster.is_installed = False
    with pytest.raises(EngineError, match=r"knows no RayJob of ray\.io/v1\. Install KubeRay"):
        pod.fit()
    assert list(pod.volume.iterdir()) == []


def test_a_deleted_job_is_noticed(pod: Pod) -> None:
    pod.cluster.forget = True
    with pytest.raises(ShortlistError, match="somebody deleted it before it ended"):
        pod.fit()


@pytest.mark.parametrize("declared", [True, False])
def test_a_pod_without_the_volume_is_refused(pod: Pod, monkeypatch: pytest.MonkeyPatch, declared: bool) -> None:
    monkeypatch.setenv(VARIABLE, environment(pod.volume / "missing").model_dump_json() if declared else "")
    with pytest.raises(
        ShortlistError, match=r"volume_claim: the pod of this step has no folder /.* shortlist-features"
    ):
        pod.fit()
    assert pod.cluster.requests == []


def test_a_volume_that_cannot_be_written_is_named(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, to: Path) -> None:
        raise PermissionError(13, "Permission denied", str(to))

    monkeypatch.setattr("shutil.copytree", refuse)
    with pytest.raises(ShortlistError, match=r"log cannot be written \(Permission denied\); wanted .* user 1000"):
        pod.fit()
