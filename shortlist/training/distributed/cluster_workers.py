"""Distributed training on a cluster: publishes the inputs, creates a TrainJob, waits for it, and fetches the model.

The call is idempotent: the job's name contains a digest of its inputs, and a retried step finds the TrainJob that it
created.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from shortlist.contracts import ShortlistError
from shortlist.pods.failure import JobFailure
from shortlist.pods.job import JobState, StepJob
from shortlist.spec.cluster import Cluster, Workers
from shortlist.storage.artefacts import folder_digest, sha256
from shortlist.storage.objects import ObjectStore
from shortlist.system.kubernetes_api import KubernetesAPI, Object, ResourceKind
from shortlist.training.distributed.job import MODEL, DistributedJob
from shortlist.training.distributed.train_job import train_job

TRAIN_JOB: Final = ResourceKind("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")


class TrainJobContext(NamedTuple):
    """Cluster, object store and workers of a training."""

    kubernetes: KubernetesAPI
    objects: ObjectStore
    cluster: Cluster
    workers: Workers
    sleep: Callable[[float], None] = time.sleep


def train_on_cluster(context: TrainJobContext, job: DistributedJob, out_model: Path) -> None:
    """Train a job's model on the cluster; the model's folder appears whole or not at all.

    Args:
        context: Cluster, object store, and how many pods and processes.
        job: The distributed job.
        out_model: Folder to write.

    Raises:
        IncompatibleModelError: The training cannot continue the champion.
        ShortlistError: The cluster refuses the job, a worker failed or died, or the deadline passed.
    """
    name = job_name(job)
    key = f"trainings/{name}"
    if context.objects.read(f"{key}/{MODEL}/published.json") is None:
        manifest = train_job(name, context.cluster, context.workers, context.objects.root, key)
        step_job = StepJob(context.kubernetes, TRAIN_JOB, manifest, _read_state, context.sleep)
        failure = f"{key}/failed.json"
        _publish(context.objects, key, job)
        step_job.start(lambda: context.objects.write(failure, b""))
        state = step_job.wait()
        if state.outcome == "failed":
            raise _failure_error(step_job, state.text, context.objects.read(failure))
    context.objects.fetch_folder(f"{key}/{MODEL}", out_model)


def job_name(job: DistributedJob) -> str:
    """Return a DNS label with a digest of all inputs of the training."""
    job_json = job.model_dump_json(exclude={"table", "champion", "wait_seconds"})
    files = [sha256(Path(job.table) / name) for share in job.shares for name in share]
    champion = folder_digest(Path(job.champion)) if job.champion else ""
    digest = hashlib.sha256("\0".join([job_json, *files, champion]).encode()).hexdigest()
    return f"train-{job.kind.replace('_', '-')}-{digest[:16]}"


def _publish(objects: ObjectStore, key: str, job: DistributedJob) -> None:
    """Upload the job, every worker's share of the table, and the champion below a key; existing files are kept."""
    with TemporaryDirectory(prefix="shortlist-shares-", dir=Path(job.table).parent) as scratch:
        folder = Path(scratch) / "job"
        folder.mkdir()
        # Paths of this machine mean nothing on others.
        champion = Path(job.champion).name if job.champion else ""
        job.model_copy(update={"table": "table", "champion": champion}).write(folder)
        objects.put_folder(folder, f"{key}/job")
        for rank, names in enumerate(job.shares):
            share = Path(scratch) / f"share-{rank}"
            for name in names:
                (share / name).parent.mkdir(parents=True, exist_ok=True)
                (share / name).hardlink_to(Path(job.table) / name)
            objects.put_folder(share, f"{key}/{share.name}")
    if job.champion:
        objects.put_folder(Path(job.champion), f"{key}/champion")


def _read_state(train_job: Object) -> JobState:
    if _find_condition(train_job, "Complete"):
        return JobState("complete", "")
    if (condition := _find_condition(train_job, "Failed")) is not None:
        return JobState("failed", f"{condition['reason']}: {condition['message']}")
    return JobState("running", _describe_progress(train_job))


def _find_condition(train_job: dict[str, Any], kind: str) -> dict[str, Any] | None:
    conditions: list[dict[str, Any]] = train_job.get("status", {}).get("conditions", [])
    return next(
        (condition for condition in conditions if condition["type"] == kind and condition["status"] == "True"), None
    )


def _describe_progress(train_job: dict[str, Any]) -> str:
    jobs = train_job.get("status", {}).get("jobsStatus", [])
    counts = {state: sum(job[state] for job in jobs) for state in ("active", "ready", "failed", "succeeded")}
    pod_counts = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
    return pod_counts or (
        "suspended: waiting for a place" if _find_condition(train_job, "Suspended") else "waiting for pods"
    )


def _failure_error(job: StepJob, reason: str, worker_failure: bytes | None) -> ShortlistError:
    """Return the error that a worker reported, else the cluster's."""
    if worker_failure:
        return JobFailure.model_validate_json(worker_failure).error()
    namespace = job.kubernetes.namespace
    return ShortlistError(
        f"TrainJob {job.name} in namespace {namespace} failed: {reason}{job.recent_events()}"
        f"\nAll its workers were stopped; no model was written. Look at: kubectl -n {namespace} logs"
        f" -l jobset.sigs.k8s.io/jobset-name={job.name} --prefix"
    )
