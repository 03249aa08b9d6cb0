"""Submits a spec's training to a cluster, once for the same spec, code and data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monitoring.windows.records import RetrainDecision
from shortlist.contracts import ShortlistError
from shortlist.features.fits.previous_fit import DayRange
from shortlist.kubeflow.client import KubeflowClient
from shortlist.kubeflow.cluster_compile import CompiledGraphs, GraphName
from shortlist.runs.local_training import graph_arguments
from shortlist.runs.refresh_runs import backfill_arguments
from shortlist.spec.data import GeneratedSource
from shortlist.spec.runtime import Runtime, ServerTracking
from shortlist.spec.spec import Spec
from shortlist.storage.objects_source import is_remote
from shortlist.storage.storage_config import StorageConfig


@dataclass(frozen=True)
class SubmittedRun:
    """The run of a submission."""

    run_id: str
    name: str
    state: str
    """Kubeflow's state, such as RUNNING; PENDING for a run just started."""
    new: bool
    """Whether it was started now; False when it had been started before."""
    page: str
    """URL of its page."""

    def __str__(self) -> str:
        if self.new:
            return f"started run {self.name} ({self.run_id}): {self.page}"
        hint = " Start it again with AGAIN=2." if self.state in ("FAILED", "CANCELED") else ""
        return f"already started: run {self.name} ({self.run_id}) is {self.state}: {self.page}.{hint}"


@dataclass(frozen=True)
class Submission:
    """All that a submission sends, computed before any call to the cluster."""

    compiled: CompiledGraphs
    graph: GraphName
    arguments: Mapping[str, Any]
    name: str
    """Name of the run: the same for the same spec, code and data, or for the same decision."""

    def __str__(self) -> str:
        version, file = self.compiled.version_name(self.graph), self.compiled.path(self.graph)
        return f"run {self.name} of pipeline version {version} ({file})"


def prepare_training(
    spec: Spec,
    data: str,
    compiled_folder: Path,
    *,
    decision: RetrainDecision | None = None,
    read_later: bool = False,
    attempt: int = 1,
) -> Submission:
    """Return what a submission of a training would send.

    Args:
        spec: The spec, with the profile of a cluster.
        data: `s3://...` or `gs://...` with the user's files; empty for a generated log.
        compiled_folder: Folder into which compiled graphs are written.
        decision: Decision that starts the training; None when a person starts it.
        read_later: Whether only the run reads the data, because this machine cannot; nothing is then cached.
        attempt: 1 for the first run of the same spec, code and data, 2 for a second one, and so on.

    Raises:
        ShortlistError: The spec is not one for a cluster, or the data do not exist.
    """
    location, stores = remote_location(spec, data), str(storage_config(spec.runtime))
    reads_data_later = read_later or decision is not None
    values = graph_arguments(spec, location, stores, decision=decision, read_later=reads_data_later)
    compiled = CompiledGraphs.compile(spec, compiled_folder)
    graph: GraphName = "retraining" if reads_data_later else "training"
    arguments = compiled.arguments(graph, values)
    suffix = f"-{attempt}" if attempt > 1 else ""
    # A decision is carried out once: its run is found after a crash, too, even if the code or the text of its reasons
    # has changed since.
    ident = decision.key if decision else submission_digest(compiled.digest, arguments)
    if decision is None:
        # The run itself claims this key among all retrainings, for this machine may not reach their store.
        key = ident if attempt == 1 else submission_digest(ident, {"again": attempt})
        arguments["cause"] = {**arguments["cause"], "key": key}
    return Submission(compiled, graph, arguments, f"{compiled.pipeline_name(graph)}-{ident}{suffix}")


def prepare_backfill(
    spec: Spec, data: str, compiled_folder: Path, corrected: DayRange, *, publish: bool
) -> Submission:  # fmt: skip
    """Return what a submission of a backfill would send; the same range of the same data has the same name.

    Args:
        spec: The spec, with the profile of a cluster.
        data: `s3://...` or `gs://...` with the user's files; empty for a generated log.
        compiled_folder: Folder into which compiled graphs are written.
        corrected: The days whose rows, or the rules for them, were corrected.
        publish: Whether the result is published to the servers.

    Raises:
        ShortlistError: The spec is not one for a cluster, or the data do not exist.
    """
    location, stores = remote_location(spec, data), str(storage_config(spec.runtime))
    values = graph_arguments(spec, location, stores) | backfill_arguments(corrected, publish=publish)
    compiled = CompiledGraphs.compile(spec, compiled_folder)
    arguments = compiled.arguments("backfill", values)
    return Submission(
        compiled,
        "backfill",
        arguments,
        f"{compiled.pipeline_name('backfill')}-{submission_digest(compiled.digest, arguments)}",
    )


def submit_run(submission: Submission, spec: Spec, kubeflow: KubeflowClient) -> SubmittedRun:
    """Upload the pipeline version where it is missing, and start the run unless it was started before.

    Args:
        submission: Result of `prepare_training` or `prepare_backfill`.
        spec: The spec.
        kubeflow: Client of the cluster's Kubeflow Pipelines.

    Raises:
        KubeflowError: It cannot be reached, or refuses; a repeated call starts nothing twice.
    """
    cluster = spec.runtime.cluster
    experiment = kubeflow.ensure_experiment(cluster.kfp_experiment)
    run, new = kubeflow.find_run(experiment, submission.name), False
    if run is None:
        body = {
            "experiment_id": experiment,
            "display_name": submission.name,
            "pipeline_version_reference": ensure_pipeline_version(submission.compiled, submission.graph, kubeflow),
            "runtime_config": {"parameters": dict(submission.arguments)},
            "service_account": cluster.service_account,
        }
        run, new = kubeflow.start_run(body)
    return SubmittedRun(run.run_id, submission.name, str(run.state or "PENDING"), new, kubeflow.run_url(run.run_id))


def ensure_pipeline_version(compiled: CompiledGraphs, graph: GraphName, kubeflow: KubeflowClient) -> dict[str, str]:
    """Return the reference of a graph's version in Kubeflow, which is uploaded when missing.

    Raises:
        KubeflowError: Kubeflow cannot be reached, or refuses.
    """
    pipeline = kubeflow.ensure_pipeline(compiled.pipeline_name(graph))
    version, _ = kubeflow.ensure_version(pipeline, compiled.version_name(graph), compiled.path(graph))
    return {"pipeline_id": pipeline, "pipeline_version_id": version}


def storage_config(runtime: Runtime) -> StorageConfig:
    """Return the stores that the pods share.

    Raises:
        ShortlistError: A store is a file or a folder of a single machine.
    """
    tracking = runtime.tracking.uri_variable if isinstance(runtime.tracking, ServerTracking) else ""
    on_servers = {
        "online_store": runtime.online_store.is_shared,
        "tracking": bool(tracking),
        "database": bool(runtime.database.address_variable) and runtime.database.keeps_feast_registry,
        "objects": bool(runtime.objects.address),
    }
    if all(on_servers.values()):
        return StorageConfig(
            cluster=runtime.cluster.name,
            objects=runtime.objects.address,
            tracking_variable=tracking,
            database_variable=runtime.database.address_variable,
        )
    local = [f"{section}: {getattr(runtime, section).kind}" for section, shared in on_servers.items() if not shared]
    raise ShortlistError(
        f"runtime: got {', '.join(local)}, on one machine's disk, which pods do not share; set runtime.profile: cluster"
        " and runtime.objects: {kind: bucket, url: ...}"
    )


def remote_location(spec: Spec, data: str) -> str:
    """Return the location of the user's files for pods; empty for a generated log.

    Raises:
        ShortlistError: The spec reads files, and no location is given, or it is on this machine.
    """
    if isinstance(spec.data.source, GeneratedSource):
        return ""
    if not data:
        raise ShortlistError(f"spec '{spec.name}' reads files: name their location, e.g. DATA=s3://bucket/folder")
    if not is_remote(data):
        raise ShortlistError(
            f"DATA: '{data}' is on this machine, and no pod can read it; copy the files into an object store and set"
            " DATA=s3://bucket/folder"
        )
    return data.rstrip("/")


def submission_digest(code: str, arguments: Mapping[str, Any]) -> str:
    """Return a digest of a run's graph, code and parameters; 16 hexadecimal digits."""
    text = json.dumps([code, arguments], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
