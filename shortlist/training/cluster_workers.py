"""Several pods that train one model together: inputs published, a TrainJob made and waited for, the model fetched.

Asked twice for the same, the work is done once: the job is named after everything that goes into it, and a step that
was killed finds the TrainJob it made.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from shortlist.contracts import ShortlistError
from shortlist.rollout.kserve.api import Kind, KubernetesAPI
from shortlist.rollout.kserve.errors import ClusterError, ConflictError
from shortlist.spec.cluster import Cluster, Workers
from shortlist.storage.artefacts import folder_digest, sha256
from shortlist.storage.objects import ObjectStore
from shortlist.system.progress import emit
from shortlist.training.job import MODEL, Failure, Job
from shortlist.training.train_job import train_job

TRAIN_JOB: Final = Kind("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
_SECONDS_BETWEEN_LOOKS: Final = 5.0


class TrainJobContext(NamedTuple):
    """Where a training happens."""

    kubernetes: KubernetesAPI
    objects: ObjectStore
    cluster: Cluster
    workers: Workers
    sleep: Callable[[float], None] = time.sleep


def train_on_cluster(place: TrainJobContext, job: Job, out_model: Path) -> None:
    """Train a job's model on the cluster; the model's folder appears whole or not at all.

    Args:
        place: Cluster, object store, and how many pods and processes.
        job: What to train.
        out_model: Folder to write.

    Raises:
        MisfitError: The champion does not fit.
        ShortlistError: The cluster refuses, a worker stopped or died, or time was up.
    """
    name = job_name(job)
    key = f"trainings/{name}"
    if place.objects.read(f"{key}/{MODEL}/published.json") is None:
        manifest = train_job(name, place.cluster, place.workers, place.objects.root, key)
        _publish(place.objects, key, job)
        _start(place, manifest, f"{key}/failed.json")
        _wait(place, name, f"{key}/failed.json")
    place.objects.fetch_folder(f"{key}/{MODEL}", out_model)


def job_name(job: Job) -> str:
    """Return a DNS label that says what is trained from what."""
    said = job.model_dump_json(exclude={"table", "champion", "wait_seconds"})
    files = [sha256(Path(job.table) / name) for share in job.shares for name in share]
    champion = folder_digest(Path(job.champion)) if job.champion else ""
    digest = hashlib.sha256("\0".join([said, *files, champion]).encode()).hexdigest()
    return f"train-{job.kind.replace('_', '-')}-{digest[:16]}"


def _publish(objects: ObjectStore, key: str, job: Job) -> None:
    """Put what workers read below a key: the job, every share of the table, and the champion; what is there stays."""
    with TemporaryDirectory(prefix="shortlist-shares-", dir=Path(job.table).parent) as scratch:
        folder = Path(scratch) / "job"
        folder.mkdir()
        # Where the table and the champion are on this machine says nothing to others.
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


def _start(place: TrainJobContext, manifest: dict[str, Any], failure: str) -> None:
    """Make the TrainJob, unless it is there and has not failed; one that failed is made anew."""
    name = manifest["metadata"]["name"]
    known = place.kubernetes.get(TRAIN_JOB, name)
    if known is not None and _condition(known, "Failed"):
        place.kubernetes.delete(TRAIN_JOB, known)
        while place.kubernetes.get(TRAIN_JOB, name) is not None:
            place.sleep(_SECONDS_BETWEEN_LOOKS)
        known = None
    if known is None:
        place.objects.write(failure, b"")
        try:
            place.kubernetes.create(TRAIN_JOB, manifest)
        except ConflictError:  # an earlier try, or the same step elsewhere, got through
            return


def _wait(place: TrainJobContext, name: str, failure: str) -> None:
    """Follow a TrainJob to its end, and say how it goes."""
    last_text = ""
    while True:
        found = place.kubernetes.get(TRAIN_JOB, name)
        if found is None:
            raise ShortlistError(f"TrainJob {name}: somebody deleted it while it was training; run the step again")
        if _condition(found, "Complete"):
            return
        if (failed := _condition(found, "Failed")) is not None:
            raise _why(place, name, failed, failure)
        text = _progress(found)
        if text != last_text:
            emit({"event": "progress", "label": f"TrainJob {name}", "done": 0, "total": None, "unit": "", "text": text})
            last_text = text
        place.sleep(_SECONDS_BETWEEN_LOOKS)


def _condition(found: dict[str, Any], kind: str) -> dict[str, Any] | None:
    conditions: list[dict[str, Any]] = found.get("status", {}).get("conditions", [])
    return next((one for one in conditions if one["type"] == kind and one["status"] == "True"), None)


def _progress(found: dict[str, Any]) -> str:
    jobs = found.get("status", {}).get("jobsStatus", [])
    counts = {state: sum(one[state] for one in jobs) for state in ("active", "ready", "failed", "succeeded")}
    said = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
    return said or ("suspended: waiting for a place" if _condition(found, "Suspended") else "waiting for pods")


def _why(place: TrainJobContext, name: str, failed: dict[str, Any], failure: str) -> ShortlistError:
    """Return a worker's own words where it had time for them, else the cluster's."""
    written = place.objects.read(failure)
    if written:
        return Failure.model_validate_json(written).error()
    return ShortlistError(
        f"TrainJob {name} in namespace {place.cluster.namespace} failed: {failed['reason']}: {failed['message']}"
        f"{_noted(place, name)}"
        f"\nAll its workers were stopped; no model was written. Look at: kubectl -n {place.cluster.namespace} logs"
        f" -l jobset.sigs.k8s.io/jobset-name={name} --prefix"
    )


def _noted(place: TrainJobContext, name: str) -> str:
    """Return what the cluster noted last; nothing where this account may not read it."""
    try:
        events = place.kubernetes.events(name)[-3:]
    except ClusterError:
        return ""
    return "".join(f"\n  {one.get('reason')}: {one.get('message')}" for one in events)
