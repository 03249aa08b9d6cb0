"""The RayJob that asks KubeRay for a cluster of Ray, runs a program on its head, and ends the cluster with it."""

from __future__ import annotations

import math
from importlib.metadata import version
from typing import Final, NamedTuple

from shortlist.pods.job import JobState, StepJob
from shortlist.pods.settings import LABEL, declared_variables, job_pod, resources, whole_cores
from shortlist.spec.cluster import Task
from shortlist.spec.feature_job import JobEnvironment
from shortlist.spec.text.quantity import quantity_value
from shortlist.system.accelerator import EngineError
from shortlist.system.kubernetes_api import KubernetesAPI, Object, ResourceKind, connect

RAY_JOB: Final = ResourceKind("ray.io", "v1", "rayjobs", "RayJob")
_HEADROOM_BYTES: Final = 1_000_000_000
"""Memory of Ray's own processes in a pod."""
_SUBMITTER: Final = Task(cpu="500m", memory="1Gi")
_KEEP_CLUSTER_SECONDS: Final = 60
"""How long the pods of an ended job stay, for collectors of logs."""
_OPERATOR_SECONDS: Final = 300
"""How much longer than its deadline a job is waited for: KubeRay itself stops it, unless KubeRay is away."""
_VOLUME: Final = "features"
_POD_LABEL: Final = "shortlist.dev/ray"
"""Label of the pods, which a network policy selects."""


class RayWorkers(NamedTuple):
    """The workers of a job; see `shortlist.features.engines.ray.section`."""

    workers: int
    workers_per_pod: int
    memory_bytes: int
    object_store_bytes: int
    volume_claim: str
    timeout_minutes: int


def ray_job(name: str, program: str, declared: RayWorkers, environment: JobEnvironment) -> Object:
    """Return the manifest of a job.

    Args:
        name: Name of the RayJob, a DNS label of at most 47 characters.
        program: Command line that does the step's work, on the head.
        declared: The workers.
        environment: Image, cluster, and the resources of the step's work.
    """
    pods = math.ceil(declared.workers / declared.workers_per_pod)
    workers = math.ceil(declared.workers / pods)
    task, store = environment.task, declared.object_store_bytes
    pod_bytes = workers * declared.memory_bytes + store + _HEADROOM_BYTES
    worker = task.model_copy(update={"cpu": str(workers), "memory": str(pod_bytes), "gpus": 0})
    head_bytes = math.ceil(quantity_value(task.memory)) + store + _HEADROOM_BYTES
    head = task.model_copy(update={"memory": str(head_bytes), "gpus": 0})
    # Tasks run on the workers alone: the head has the program, and what it fetches.
    head_start = {"num-cpus": "0", "object-store-memory": str(store)}
    worker_start = {
        "num-cpus": str(workers), "memory": str(workers * declared.memory_bytes), "object-store-memory": str(store)
    }  # fmt: skip
    template = {"metadata": {"labels": {LABEL: "shortlist", _POD_LABEL: "pod"}}}
    group = {"groupName": "workers", "replicas": pods, "minReplicas": pods, "maxReplicas": pods}
    placement = {"node_selector": task.node_selector, "tolerations": task.tolerations}
    submitter = _pod("ray-job-submitter", environment, _SUBMITTER.model_copy(update=placement))
    return {
        "apiVersion": RAY_JOB.api_version,
        "kind": RAY_JOB.name,
        "metadata": {
            "name": name, "namespace": environment.cluster.namespace, "labels": {LABEL: "shortlist"}
        },
        "spec": {
            "entrypoint": program,
            "activeDeadlineSeconds": declared.timeout_minutes * 60,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": _KEEP_CLUSTER_SECONDS,
            "submitterPodTemplate": {**template, "spec": {**submitter, "restartPolicy": "Never"}},
            "rayClusterSpec": {
                "rayVersion": version("ray"),
                # Without a token, which KubeRay makes, whoever reaches the head runs programs there.
                "authOptions": {"mode": "token"},
                "headGroupSpec": {
                    "rayStartParams": head_start,
                    "template": {**template, "spec": _pod("ray-head", environment, head, declared)},
                },
                "workerGroupSpecs": [
                    {
                        **group,
                        "rayStartParams": worker_start,
                        "template": {**template, "spec": _pod("ray-worker", environment, worker, declared)},
                    }
                ],
            },
        },
    }  # fmt: skip


def _pod(name: str, environment: JobEnvironment, task: Task, declared: RayWorkers | None = None) -> Object:
    """Return a pod; one that belongs to the cluster has the volume, and no secrets: its work reads nothing else."""
    volumes: dict[str, tuple[str, Object]] = {"tmp": ("/tmp", {"emptyDir": {}})}  # noqa: S108 - the pod's own
    variables = [{"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}]
    if declared is not None:
        memory = {"medium": "Memory", "sizeLimit": str(declared.object_store_bytes)}
        volumes["shm"] = "/dev/shm", {"emptyDir": memory}  # noqa: S108
        volumes[_VOLUME] = environment.folder, {"persistentVolumeClaim": {"claimName": declared.volume_claim}}
        cores = str(whole_cores(task))
        variables += [{"name": f"{library}_THREADS", "value": cores} for library in ("OMP_NUM", "POLARS_MAX")]
        variables += declared_variables(environment.cluster.model_copy(update={"secrets": ()}))
    container = {"name": name, "image": environment.image, "env": variables, "resources": resources(task)}
    pod = job_pod(environment.cluster, task, container, volumes)
    return {**pod, "automountServiceAccountToken": False}


def run_ray_job(
    name: str, program: str, declared: RayWorkers, environment: JobEnvironment, *, is_finished: bool
) -> None:  # fmt: skip
    """Run a program as a RayJob; see `FeatureEngine.run_job`."""
    kubernetes = KubernetesAPI(connect(), environment.cluster.namespace)
    if not kubernetes.knows(RAY_JOB.api_version, RAY_JOB.name):
        raise EngineError(
            "runtime.features.engine is ray, but this cluster knows no RayJob of ray.io/v1. Install KubeRay"
            " (docs/cluster.md), or declare runtime.features: {engine: local}, or the address of a running Ray cluster"
        )
    job = StepJob(kubernetes, RAY_JOB, ray_job(name, program, declared, environment), read_state)
    if not is_finished:
        job.start()
        _wait(job, declared.timeout_minutes)
    job.delete()


def _wait(job: StepJob, timeout_minutes: int) -> None:
    state = job.wait(timeout_minutes * 60 + _OPERATOR_SECONDS)
    if state.outcome == "running" or state.text.startswith("DeadlineExceeded"):
        job.delete()
        raise EngineError(
            f"RayJob {job.name} took longer than runtime.features.timeout_minutes ({timeout_minutes}) and was deleted;"
            f" nothing was written. Its last state: {state.text}. Declare more minutes or more workers; where pods"
            " waited for a place, fewer workers_per_pod or less memory_gb"
        )
    if state.outcome == "failed":
        namespace = job.kubernetes.namespace
        raise EngineError(
            f"RayJob {job.name} in namespace {namespace} failed: {state.text}{job.recent_events()}"
            f"\nIts cluster was stopped; nothing was written. Look at: kubectl -n {namespace} logs job/{job.name}"
        )


def read_state(job: Object) -> JobState:
    """Return what the status of a RayJob says."""
    status = job.get("status", {})
    phase, outcome = status.get("jobDeploymentStatus", ""), status.get("jobStatus", "")
    if phase == "Complete" and outcome == "SUCCEEDED":
        return JobState("complete", "")
    if phase in ("Complete", "Failed", "ValidationFailed"):
        reason = status.get("reason") or outcome or phase
        return JobState("failed", f"{reason}: {status.get('message', 'no message')}")
    return JobState("running", " ".join(filter(None, (phase or "waiting for KubeRay", outcome))))
