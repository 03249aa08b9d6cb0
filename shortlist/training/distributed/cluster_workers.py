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
from shortlist.spec.cluster import Cluster, Workers
from shortlist.storage.artefacts import folder_digest, sha256
from shortlist.storage.objects import ObjectStore
from shortlist.system.kubernetes_api import ClusterError, ConflictError, KubernetesAPI, ResourceKind
from shortlist.system.progress import emit
from shortlist.training.distributed.job import MODEL, DistributedJob, WorkerFailure
from shortlist.training.distributed.train_job import train_job

TRAIN_JOB: Final = ResourceKind("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
_POLL_SECONDS: Final = 5.0


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
        _publish(context.objects, key, job)
        _start(context, manifest, f"{key}/failed.json")
        _wait(context, name, f"{key}/failed.json")
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


def _start(context: TrainJobContext, manifest: dict[str, Any], failure: str) -> None:
    """Create the TrainJob unless it exists and has not failed; a failed one is deleted first."""
    name = manifest["metadata"]["name"]
    existing_job = context.kubernetes.get(TRAIN_JOB, name)
    if existing_job is not None and _find_condition(existing_job, "Failed"):
        context.kubernetes.delete(TRAIN_JOB, existing_job)
        while context.kubernetes.get(TRAIN_JOB, name) is not None:
            context.sleep(_POLL_SECONDS)
        existing_job = None
    if existing_job is None:
        context.objects.write(failure, b"")
        try:
            context.kubernetes.create(TRAIN_JOB, manifest)
        except ConflictError:  # an earlier attempt, or the same step elsewhere, created it
            return


def _wait(context: TrainJobContext, name: str, failure: str) -> None:
    """Wait for a TrainJob to end, and report its progress."""
    last_text = ""
    while True:
        train_job = context.kubernetes.get(TRAIN_JOB, name)
        if train_job is None:
            raise ShortlistError(f"TrainJob {name}: somebody deleted it while it was training; run the step again")
        if _find_condition(train_job, "Complete"):
            return
        if (failed_condition := _find_condition(train_job, "Failed")) is not None:
            raise _failure_error(context, name, failed_condition, failure)
        text = _describe_progress(train_job)
        if text != last_text:
            emit({"event": "progress", "label": f"TrainJob {name}", "done": 0, "total": None, "unit": "", "text": text})
            last_text = text
        context.sleep(_POLL_SECONDS)


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


def _failure_error(context: TrainJobContext, name: str, condition: dict[str, Any], failure: str) -> ShortlistError:
    """Return the error that a worker reported, else the cluster's."""
    worker_failure = context.objects.read(failure)
    if worker_failure:
        return WorkerFailure.model_validate_json(worker_failure).error()
    return ShortlistError(
        f"TrainJob {name} in namespace {context.cluster.namespace} failed: {condition['reason']}:"
        f" {condition['message']}{_recent_events(context, name)}"
        f"\nAll its workers were stopped; no model was written. Look at: kubectl -n {context.cluster.namespace} logs"
        f" -l jobset.sigs.k8s.io/jobset-name={name} --prefix"
    )


def _recent_events(context: TrainJobContext, name: str) -> str:
    """Return the latest events of the cluster; empty where this account may not read them."""
    try:
        events = context.kubernetes.events(name)[-3:]
    except ClusterError:
        return ""
    return "".join(f"\n  {event.get('reason')}: {event.get('message')}" for event in events)
