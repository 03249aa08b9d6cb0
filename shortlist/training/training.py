"""One training as a pipeline step: trained, packed with its preprocessing, exported and tracked."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict

from models.base import DeclaredModel
from models.checkpoints import CheckpointLocation, checkpoint_to
from models.inputs import split_of
from models.ranker import DivergedError, IncompatibleModelError, MemberFiles
from models.record import TrainedModel
from models.registry import kind_of
from shortlist.contracts import Files
from shortlist.features.scored_views import write_views_from
from shortlist.features.view_index import ViewIndex
from shortlist.report.figures import write_plots
from shortlist.report.report import training_plots
from shortlist.serving.export.signature import FOLDER
from shortlist.serving.server import raw_scorer
from shortlist.serving.server.inputs import InputSpec
from shortlist.serving.server.tensors import BYTES, FLOATS
from shortlist.spec.cluster import Cluster
from shortlist.spec.load import digest
from shortlist.spec.models import ModelSection
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import atomic_folder, digest_of_files, file_digests, write_json, write_manifest
from shortlist.storage.objects import open_object_store
from shortlist.storage.storage_config import StorageConfig
from shortlist.storage.tables import DayTable
from shortlist.tracking.lineage import ContinuedFrom, Lineage, TrainingTrigger, git_commit
from shortlist.tracking.logged_model import InputType, RawColumn, ServableModel, TrackedDataset, TrainingDetails
from shortlist.tracking.mlflow_store import Tracker
from shortlist.tracking.steps import note
from shortlist.tracking.store_access import tracking_location
from shortlist.training.continued_training import PreviousModel
from shortlist.training.export import export, pack
from shortlist.training.local_workers import train_locally
from shortlist.training.train import DistributedLaunch, ranker_class, train


class RunContext(BaseModel):
    """Spec, stores, log and cause of a run, from the graph's parameters."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Name of the spec."""
    stores: str
    """Stores that outlive a run; see `shortlist.storage.storage_config`."""
    input_digest: str = ""
    """Digest of the raw log."""
    code: str = ""
    """Version of this package's code."""
    cause: TrainingTrigger = TrainingTrigger()
    """Trigger of the run."""

    @property
    def tracker(self) -> Tracker:
        """The spec's MLflow store."""
        place = tracking_location(StorageConfig.parse(self.stores), self.name)
        return Tracker(place.uri, self.name, place.files)


class TrackedRun(NamedTuple):
    """MLflow run of a training, and the model that it continued."""

    run: str
    """Id of its MLflow run."""
    continued_from: str
    """The earlier model that was continued; empty: trained from scratch."""


class FeatureArtifacts(NamedTuple):
    """Feature table and fitted features of a log."""

    table: DayTable
    fitted: Path
    digests: Mapping[str, str]
    """SHA-256 of the table's files by relative path."""
    started: datetime
    """When the training began."""

    @property
    def table_digest(self) -> str:
        """One digest of the table."""
        return digest_of_files(self.digests)


def train_and_track(
    model: DeclaredModel, runtime: Runtime, context: RunContext,
    fitted: Path, table: Path, out_model: Path, out_scores: Path,
    members: Mapping[str, MemberFiles] = MappingProxyType({}),
) -> TrackedRun:  # fmt: skip
    """Train, score, pack and track a declared model; export it when it is a candidate.

    When the earlier model is incompatible, training starts from scratch, and a note gives the reason.

    Args:
        model: The declared model, with the earlier model to continue.
        runtime: Engine, memory budget and seed.
        context: Spec, stores, log, code and cause.
        fitted: Folder of the fitted features; the preprocessing is copied into the model folder.
        table: The feature table.
        out_model: Model folder to write.
        out_scores: Folder that gets the scores of validation and test days.
        members: Files of an ensemble's members, by name.
    """
    section = kind_of(model.kind).section.model_validate(model.section)
    started = datetime.now(UTC)
    features = FeatureArtifacts(DayTable.open(table, Files.TABLE), fitted, file_digests(table), started)
    try:
        record, continued = _train(model, section, runtime, context, features, out_model, out_scores, members)
    except DivergedError as reason:
        note(f"{model.name} is held: {reason}")
        record = _write_unusable_model(model, section, runtime, features, str(reason), out_model, out_scores)
        return TrackedRun(_track(model, section, context, features, record, None, out_model), "")
    for feature, collisions in record.hashed.items():
        if (warning := collisions.warning(feature)) is not None:
            note(warning)
    pack(out_model, fitted)
    if section.role == "candidate":
        export(out_model, context.name)
    run = _track(model, section, context, features, record, continued, out_model)
    return TrackedRun(run, str(continued) if continued else "")


def _track(
    model: DeclaredModel, section: ModelSection, context: RunContext, features: FeatureArtifacts, record: TrainedModel,
    continued: ContinuedFrom | None, out_model: Path,
) -> str:  # fmt: skip
    """Write a training and its files to MLflow; return the run's id."""
    lineage = Lineage(
        spec_digest=digest(section),
        data_digest=f"{context.input_digest}/{features.table_digest}",
        days={part: f"{days[0]}..{days[-1]}" for part, days in split_of(features.table).model_dump().items() if days},
        code_version=context.code,
        git_commit=git_commit(),
        cause=context.cause,
        continued=continued,
    )
    datasets = tracked_datasets(features.table, features.digests, context.name)
    with TemporaryDirectory() as plots, servable_model(out_model, features.fitted, features.table) as servable:
        write_plots(training_plots(record.model_dump(mode="json")), Path(plots))
        details = TrainingDetails(started=features.started, datasets=datasets, servable=servable)
        return context.tracker.log_training(
            out_model, model.kind, record.params, record.history, lineage, Path(plots), model.name, details
        )


def _write_unusable_model(
    model: DeclaredModel, section: ModelSection, runtime: Runtime, features: FeatureArtifacts, reason: str,
    out_model: Path, out_scores: Path,
) -> TrainedModel:  # fmt: skip
    """Write a candidate without weights and scores: the gates hold it for the reason, and the run continues."""
    split = split_of(features.table)
    record = TrainedModel(
        kind=model.kind, name=model.name, features=(), params=section.model_dump(mode="json"), base_rate=0.0,
        train_days=tuple(map(str, split.train)), validation_days=tuple(map(str, split.validation)),
        train_rows=0, validation_rows=0, train_seconds=0.0, train_rows_per_s=0.0, seed=runtime.seed,
    )  # fmt: skip
    shutil.rmtree(out_model, ignore_errors=True)  # weights that were saved before they gave NaN
    with atomic_folder(out_model) as staging:
        write_json(staging / Files.MODEL, record.model_dump(mode="json"))
        write_manifest(staging)
    with atomic_folder(out_scores) as staging:
        write_json(staging / Files.PROBLEM, {"problem": reason})
    return record


def _train(
    model: DeclaredModel,
    section: ModelSection,
    runtime: Runtime,
    context: RunContext,
    features: FeatureArtifacts,
    out_model: Path,
    out_scores: Path,
    members: Mapping[str, MemberFiles],
) -> tuple[TrainedModel, ContinuedFrom | None]:
    """Continue the earlier model where it is compatible; else train from scratch and note the reason."""
    kind, name, outputs = model.kind, model.name, (out_model, out_scores)
    launch = distributed_launch_for(name, model.cluster, context.stores)
    if model.previous_run and section.continuation is not None:
        try:
            with PreviousModel.fetch(model.previous_run, context.tracker) as previous_model:
                days_left = previous_model.days_left_to_train(
                    section, ranker_class(kind), features.table, features.fitted
                )
                with checkpoint_to(
                    _checkpoint_location(model, section, runtime, context, features, model.previous_run)
                ):
                    record = train(kind, section, days_left, runtime, *outputs, previous_model.folder, launch, name)
                return record, previous_model.describe(section, record)
        except IncompatibleModelError as reason:
            note(f"{name} was trained from scratch: {reason}")
    with checkpoint_to(_checkpoint_location(model, section, runtime, context, features, "")):
        return train(kind, section, features.table, runtime, *outputs, launch=launch, name=name, members=members), None


def _checkpoint_location(
    model: DeclaredModel, section: ModelSection, runtime: Runtime, context: RunContext, features: FeatureArtifacts,
    previous_run: str,
) -> CheckpointLocation:  # fmt: skip
    """Return the location of this training's checkpoint, which a retried step finds by a digest of its inputs."""
    inputs = [
        model.kind,
        section.model_dump_json(),
        runtime.seed,
        runtime.engine,
        features.table_digest,
        context.code,
        previous_run,
    ]
    name = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]
    return CheckpointLocation(
        open_object_store(StorageConfig.parse(context.stores)), f"checkpoints/{context.name}/{name}.safetensors"
    )


_MAX_VIEWS_BYTES: Final = 2 * 1024**3
"""Size of views above which a model is logged without them, and so without the scorer of raw columns."""
_IMPORTED: Final = ("mlflow", "numpy", "onnxruntime", "pandas", "polars", "pyarrow", "pydantic")


def tracked_datasets(table: DayTable, digests: Mapping[str, str], name: str) -> tuple[TrackedDataset, ...]:
    """Return the datasets of a training: the training, validation and test days of a feature table.

    Args:
        table: The feature table.
        digests: SHA-256 of its files by relative path.
        name: Name of the spec.
    """
    split, datasets = split_of(table), []
    for part, days in (("training", split.train), ("validation", split.validation), ("test", split.test)):
        if not days:
            continue
        parts = [table.by_day[day] for day in days]
        files = {file: digests[file] for part in parts for file in part.files}
        datasets.append(
            TrackedDataset.model_validate(
                {
                    "name": f"{name} {part}",
                    "context": part,
                    "path": str(table.folder),
                    "digest": digest_of_files(files),
                    "rows": sum(part.rows for part in parts),
                    "days": f"{days[0]}..{days[-1]}",
                }
            )
        )
    return tuple(datasets)


@contextmanager
def servable_model(model: Path, fitted: Path, table: DayTable) -> Iterator[ServableModel | None]:
    """Yield the description by which MLflow loads a model; None for a model without export or with too large views.

    Args:
        model: The model's folder.
        fitted: Folder of the fitted features.
        table: The feature table; rows of its validation and test days, and later rows, can be scored.
    """
    views = ViewIndex.read(fitted / "views")
    size = sum(views.path(view).stat().st_size for view in views.views)
    if not (model / FOLDER).is_dir() or size > _MAX_VIEWS_BYTES:
        if size > _MAX_VIEWS_BYTES:
            note(f"The statistics of {size / 1024**3:.1f} GiB are not copied to MLflow: pyfunc cannot load the model.")
        yield None
        return
    split = split_of(table)
    with TemporaryDirectory(prefix="shortlist-lookup-") as scratch:
        lookup = Path(scratch) / raw_scorer.LOOKUP
        write_views_from(views, min((*split.validation, *split.test)), lookup)
        inputs, keys = raw_scorer.raw_inputs(model)
        yield ServableModel(
            loader=raw_scorer.__name__,
            columns=tuple(_raw_column(column, column.name in keys) for column in inputs),
            folders={raw_scorer.LOOKUP: lookup},
            requirements=tuple(f"{name}=={version(name)}" for name in _IMPORTED),
        )


def _raw_column(column: InputSpec, is_key: bool) -> RawColumn:
    is_list = len(column.shape) > 1
    kind: InputType
    if column.datatype in FLOATS:
        kind = "vector" if is_list else "double"
    elif column.datatype == BYTES:
        kind = "strings" if is_list else "string"
    else:
        # MLflow refuses a missing value in a column of `long`, and integers in one of `double`.
        kind = "longs" if is_list else ("long" if is_key else "any")
    return RawColumn(name=column.name, type=kind, required=not column.optional)


def distributed_launch_for(name: str, cluster: str, stores: str) -> DistributedLaunch | None:
    """Return the launcher of a distributed training; None when one process trains.

    Args:
        name: Name of the declared model.
        cluster: `runtime.cluster` as JSON; empty: nothing is declared there.
        stores: Stores, from the graph's parameter.
    """
    declared = Cluster.model_validate_json(cluster) if cluster else Cluster()
    workers = declared.workers.get(name)
    world = workers.nodes * workers.processes if workers else 1
    if workers is None or world == 1:
        return None
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        return DistributedLaunch(world, train_locally, workers.wait_seconds)
    from shortlist.rollout.kserve.api import KubernetesAPI, connect
    from shortlist.training.cluster_workers import TrainJobContext, train_on_cluster  # loads the cluster's client

    kubernetes = KubernetesAPI(connect(), declared.namespace)
    return DistributedLaunch(
        world,
        partial(
            train_on_cluster,
            TrainJobContext(kubernetes, open_object_store(StorageConfig.parse(stores)), declared, workers),
        ),
        workers.wait_seconds,
    )
