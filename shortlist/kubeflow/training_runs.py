"""Starts a spec's training on a cluster, once for the same declaration, code and data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monitoring.windows.records import RetrainDecision
from shortlist.contracts import ShortlistError
from shortlist.features.previous_fit import DayRange
from shortlist.kubeflow.cluster_compile import CompiledGraphs, GraphName
from shortlist.kubeflow.server import Kubeflow
from shortlist.runs.refresh_runs import backfill_arguments
from shortlist.runs.submit import training_arguments
from shortlist.spec.data import GeneratedSource
from shortlist.spec.runtime import Runtime, ServerTracking
from shortlist.spec.spec import Spec
from shortlist.storage.objects_source import is_remote
from shortlist.storage.storage_config import StorageConfig


@dataclass(frozen=True)
class SubmittedRun:
    """The run that a submission means."""

    run_id: str
    name: str
    state: str
    """Kubeflow's word, such as RUNNING; PENDING for one just started."""
    new: bool
    """Whether it was started now; False when it had been before."""
    page: str
    """Address of its page."""

    def __str__(self) -> str:
        if self.new:
            return f"started run {self.name} ({self.run_id}): {self.page}"
        again = " Start it again with AGAIN=2." if self.state in ("FAILED", "CANCELED") else ""
        return f"already started: run {self.name} ({self.run_id}) is {self.state}: {self.page}.{again}"


@dataclass(frozen=True)
class Submission:
    """All that a submission sends, decided before anything is asked of the cluster."""

    compiled: CompiledGraphs
    graph: GraphName
    arguments: Mapping[str, Any]
    name: str
    """Of the run: the same for the same declaration, code and data, or for the same decision."""

    def __str__(self) -> str:
        version, file = self.compiled.version(self.graph), self.compiled.path(self.graph)
        return f"run {self.name} of pipeline version {version} ({file})"


def prepare(
    spec: Spec,
    data: str,
    compiled_folder: Path,
    *,
    decision: RetrainDecision | None = None,
    read_later: bool = False,
    again: int = 1,
) -> Submission:
    """Return what a submission of a training would send.

    Args:
        spec: The declaration, for a cluster.
        data: `s3://...` or `gs://...` with the user's files; empty for a generated log.
        compiled_folder: Where compiled graphs are written.
        decision: What starts the training; None: a person does.
        read_later: Whether only the run looks at the data, because this machine may not; nothing is then cached.
        again: 1 for the first run of the same declaration, code and data, 2 for a second one, and so on.

    Raises:
        ShortlistError: The spec is not one for a cluster, or the data are not there.
    """
    location, stores = remote_location(spec, data), str(storage_config(spec.runtime))
    later = read_later or decision is not None
    arguments = training_arguments(spec, location, stores, decision=decision, read_later=later)
    compiled = CompiledGraphs.of(spec, compiled_folder)
    graph: GraphName = "retraining" if later else "training"
    suffix = f"-{again}" if again > 1 else ""
    # A decision is carried out once: whoever finds it unfinished after a crash finds its run too, whatever the code or
    # the wording of the reasons has become since.
    ident = decision.key if decision else digest_of(compiled.digest, arguments)
    if decision is None:
        # The run itself claims this key among all retrainings: who submits may not reach the store that they are in.
        key = ident if again == 1 else digest_of(ident, {"again": again})
        arguments["cause"] = {**arguments["cause"], "key": key}
    return Submission(compiled, graph, arguments, f"{compiled.pipeline(graph)}-{ident}{suffix}")


def prepare_backfill(
    spec: Spec, data: str, compiled_folder: Path, corrected: DayRange, *, publish: bool
) -> Submission:  # fmt: skip
    """Return what a submission of a backfill would send; the same range of the same data has the same name.

    Args:
        spec: The declaration, for a cluster.
        data: As for `prepare`.
        compiled_folder: Likewise.
        corrected: The days whose rows, or their rules, were corrected.
        publish: Whether servers are to read the result.

    Raises:
        ShortlistError: The spec is not one for a cluster, or the data are not there.
    """
    location, stores = remote_location(spec, data), str(storage_config(spec.runtime))
    arguments = backfill_arguments(spec, location, stores, corrected, publish=publish)
    compiled = CompiledGraphs.of(spec, compiled_folder)
    return Submission(
        compiled, "backfill", arguments, f"{compiled.pipeline('backfill')}-{digest_of(compiled.digest, arguments)}"
    )


def start(submission: Submission, spec: Spec, kubeflow: Kubeflow) -> SubmittedRun:
    """Upload the pipeline version where it is missing, and start the run unless it was started before.

    Args:
        submission: What `prepare` returned.
        spec: The declaration.
        kubeflow: The cluster's Kubeflow Pipelines.

    Raises:
        KubeflowError: It cannot be reached, or refuses; asking again starts nothing twice.
    """
    cluster = spec.runtime.cluster
    experiment = kubeflow.experiment(cluster.kfp_experiment)
    run, new = kubeflow.run(experiment, submission.name), False
    if run is None:
        body = {
            "experiment_id": experiment,
            "display_name": submission.name,
            "pipeline_version_reference": uploaded(submission.compiled, submission.graph, kubeflow),
            "runtime_config": {"parameters": dict(submission.arguments)},
            "service_account": cluster.service_account,
        }
        run, new = kubeflow.start(body)
    return SubmittedRun(run.run_id, submission.name, str(run.state or "PENDING"), new, kubeflow.page_of(run.run_id))


def uploaded(compiled: CompiledGraphs, graph: GraphName, kubeflow: Kubeflow) -> dict[str, str]:
    """Return the reference of a graph's version in Kubeflow, uploaded when missing.

    Raises:
        KubeflowError: Kubeflow cannot be reached, or refuses.
    """
    pipeline = kubeflow.pipeline(compiled.pipeline(graph))
    version, _ = kubeflow.version(pipeline, compiled.version(graph), compiled.path(graph))
    return {"pipeline_id": pipeline, "pipeline_version_id": version}


def storage_config(runtime: Runtime) -> StorageConfig:
    """Return the stores that the pods share.

    Raises:
        ShortlistError: One is a file or a folder of a single machine.
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
        f"runtime: got {', '.join(local)}, on one machine's disk, and pods share none; say runtime.profile: cluster,"
        " with runtime.objects: {kind: bucket, url: ...}"
    )


def remote_location(spec: Spec, data: str) -> str:
    """Return where the pods find the user's files; empty for a generated log.

    Raises:
        ShortlistError: The spec reads files, and none are given, or they lie on this machine.
    """
    if isinstance(spec.data.source, GeneratedSource):
        return ""
    if not data:
        raise ShortlistError(f"spec '{spec.name}' reads files: say where they are, e.g. DATA=s3://bucket/folder")
    if not is_remote(data):
        raise ShortlistError(
            f"DATA: '{data}' is on this machine, and no pod can read it; copy the files into an object store and say"
            " DATA=s3://bucket/folder"
        )
    return data.rstrip("/")


def digest_of(code: str, arguments: Mapping[str, Any]) -> str:
    """Return a digest of what a run is asked for: graphs, code and parameters; 16 hexadecimal digits."""
    text = json.dumps([code, arguments], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
