"""One training as a pipeline step: trained, packed with its preprocessing, exported and tracked."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from shortlist.contracts import Files
from shortlist.ranking.checkpoints import checkpoint_to
from shortlist.ranking.inputs import split_of
from shortlist.ranking.kind import DeclaredModel
from shortlist.ranking.ranker import DivergedError, IncompatibleModelError, MemberFiles
from shortlist.ranking.record import TrainedModel
from shortlist.ranking.saved_models import ranker_class
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import atomic_folder, write_json, write_manifest
from shortlist.tracking.lineage import ContinuedFrom
from shortlist.tracking.run_context import RunContext
from shortlist.tracking.steps import note
from shortlist.training.continued_training import PreviousModel
from shortlist.training.distributed_launch import distributed_launch_for
from shortlist.training.export import export, pack
from shortlist.training.tracked_training import log_training
from shortlist.training.train import DistributedLaunch, train
from shortlist.training.training_inputs import TrainingInputs


class TrackedRun(NamedTuple):
    """MLflow run of a training, and the model that it continued."""

    run: str
    """Id of its MLflow run."""
    continued_from: str
    """The earlier model that was continued; empty: trained from scratch."""


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
    inputs = TrainingInputs.read(model, runtime, context, fitted, table, members)
    try:
        record, continued = _continue_or_start(inputs, out_model, out_scores)
    except DivergedError as reason:
        note(f"{model.name} is held: {reason}")
        record = _write_unusable_model(inputs, str(reason), out_model, out_scores)
        return TrackedRun(log_training(inputs, record, None, out_model), "")
    for feature, collisions in record.hashed.items():
        if (warning := collisions.warning(feature)) is not None:
            note(warning)
    pack(out_model, fitted)
    if inputs.section.role == "candidate":
        export(out_model, context.name)
    run = log_training(inputs, record, continued, out_model)
    return TrackedRun(run, str(continued) if continued else "")


def _continue_or_start(
    inputs: TrainingInputs, out_model: Path, out_scores: Path
) -> tuple[TrainedModel, ContinuedFrom | None]:
    """Continue the earlier model where it is compatible; else train from scratch and note the reason."""
    model = inputs.model
    launch = distributed_launch_for(model.name, model.cluster, inputs.context.stores)
    if model.previous_run and inputs.section.continuation is not None:
        try:
            return _continue_training(inputs, launch, out_model, out_scores)
        except IncompatibleModelError as reason:
            note(f"{model.name} was trained from scratch: {reason}")
    with checkpoint_to(inputs.checkpoint_location(previous_run="")):
        record = train(
            model.kind, inputs.section, inputs.table, inputs.runtime, out_model, out_scores,
            launch=launch, name=model.name, members=inputs.members,
        )  # fmt: skip
    return record, None


def _continue_training(
    inputs: TrainingInputs, launch: DistributedLaunch | None, out_model: Path, out_scores: Path
) -> tuple[TrainedModel, ContinuedFrom]:
    """Train the earlier model further on the days that it has not learnt.

    Raises:
        IncompatibleModelError: The earlier model does not fit the section, the features or the days.
    """
    model, section = inputs.model, inputs.section
    with PreviousModel.fetch(model.previous_run, inputs.context.tracker) as previous_model:
        days_left = previous_model.days_left_to_train(section, ranker_class(model.kind), inputs.table, inputs.fitted)
        with checkpoint_to(inputs.checkpoint_location(model.previous_run)):
            record = train(
                model.kind, section, days_left, inputs.runtime, out_model, out_scores,
                previous_model.folder, launch, model.name,
            )  # fmt: skip
        return record, previous_model.describe(section, record)


def _write_unusable_model(inputs: TrainingInputs, reason: str, out_model: Path, out_scores: Path) -> TrainedModel:
    """Write a candidate without weights and scores: the gates hold it for the reason, and the run continues."""
    model, split = inputs.model, split_of(inputs.table)
    record = TrainedModel(
        kind=model.kind, name=model.name, features=(), params=inputs.section.model_dump(mode="json"), base_rate=0.0,
        train_days=tuple(map(str, split.train)), validation_days=tuple(map(str, split.validation)),
        train_rows=0, validation_rows=0, train_seconds=0.0, train_rows_per_s=0.0, seed=inputs.runtime.seed,
    )  # fmt: skip
    shutil.rmtree(out_model, ignore_errors=True)  # weights that were saved before they gave NaN
    with atomic_folder(out_model) as staging:
        write_json(staging / Files.MODEL, record.model_dump(mode="json"))
        write_manifest(staging)
    with atomic_folder(out_scores) as staging:
        write_json(staging / Files.PROBLEM, {"problem": reason})
    return record
