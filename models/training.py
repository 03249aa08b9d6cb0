"""One training as a pipeline step: trained or not declared, packed with its preprocessing, tracked."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from models.checkpoints import CheckpointPlace, kept_at
from models.continuing import Beginning
from models.export import EXPORTED, export
from models.inputs import split_of
from models.packing import pack
from models.ranker import MisfitError
from models.record import TrainedModel
from models.spreading import spread_of
from models.train import ranker_class, train
from shortlist.artefacts import folder_digest, written_whole
from shortlist.config.base import Section
from shortlist.config.load import digest
from shortlist.config.models import DLRMModel, XGBoostModel
from shortlist.config.runtime import Runtime
from shortlist.contracts import Files
from shortlist.evaluation.figures import write_plots
from shortlist.evaluation.report import training_plots
from shortlist.objects import open_objects
from shortlist.stores import Stores
from shortlist.tables import DayTable
from shortlist.tracking.lineage import Cause, Continued, Lineage, git_commit
from shortlist.tracking.mlflow_store import Tracker
from shortlist.tracking.steps import note
from shortlist.tracking.store_access import tracking_place


class Origin(BaseModel):
    """Where a training belongs, as the graph's parameters say it."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Name of the spec."""
    stores: str
    """Where everything is that outlives a run; see `shortlist.stores`."""
    input_digest: str = ""
    """Of the raw log."""
    code: str = ""
    """Of this package."""
    cause: Cause = Cause()
    """Why it was started."""
    earlier: str = ""
    """MLflow run of the model to go on from, where its section says so; empty: none."""
    cluster: str = ""
    """`runtime.cluster` as JSON, which may declare that several processes train; empty: one does."""

    @property
    def tracker(self) -> Tracker:
        """The spec's MLflow store."""
        place = tracking_place(Stores.parse(self.stores), self.name)
        return Tracker(place.uri, self.name, place.files)


class Tracked(NamedTuple):
    """What a training leaves besides its files."""

    rows: int | None = None
    """Rows visited; None when the model is not declared."""
    run: str = ""
    """Id of its MLflow run."""
    begun: str = ""
    """What it went on from; empty: it started from scratch."""


class Made(NamedTuple):
    """What features were made of a log."""

    table: DayTable
    fitted: Path
    table_digest: str


def train_and_track(
    kind: str, section: str, runtime: Runtime, origin: Origin,
    fitted: Path, table: Path, out_model: Path, out_scores: Path,
) -> Tracked:  # fmt: skip
    """Train, score, pack, export and track a declared model.

    When the earlier model does not fit, training starts from scratch, and the user is told why. A model that is not
    declared leaves two empty folders: a graph's tasks are the same for every spec.

    Args:
        kind: A key of `models.train.KINDS`.
        section: The model's section as JSON; empty when it is not declared.
        runtime: Engine, memory budget and seed.
        origin: Spec, stores, log, code, cause, and the model to go on from.
        fitted: What the features were fitted to; its preprocessing travels with the model.
        table: The feature table.
        out_model: Model folder to write.
        out_scores: Folder that gets the scores of validation and test days.
    """
    if not section:
        for folder in (out_model, out_scores):
            with written_whole(folder):
                pass
        return Tracked()
    declared = ranker_class(kind).section_type.model_validate_json(section)
    made = Made(DayTable.open(table, Files.TABLE), fitted, folder_digest(table))
    record, continued = _train(kind, declared, runtime, origin, made, out_model, out_scores)
    for feature, found in record.hashed.items():
        if (warning := found.warning(feature)) is not None:
            note(warning)
    pack(out_model, fitted)
    if kind in EXPORTED:
        export(out_model, origin.name)
    lineage = Lineage(
        spec_digest=digest(declared),
        data_digest=f"{origin.input_digest}/{made.table_digest}",
        days={part: f"{days[0]}..{days[-1]}" for part, days in split_of(made.table).model_dump().items() if days},
        code_version=origin.code,
        git_commit=git_commit(),
        cause=origin.cause,
        continued=continued,
    )
    with TemporaryDirectory() as plots:
        write_plots(training_plots(record.model_dump(mode="json")), Path(plots))
        run = origin.tracker.log_training(out_model, kind, record.params, record.history, lineage, Path(plots))
    rows = round(record.train_rows_per_s * record.train_seconds)
    return Tracked(rows, run, str(continued) if continued else "")


def _train(
    kind: str, section: Section, runtime: Runtime, origin: Origin, made: Made, out_model: Path, out_scores: Path
) -> tuple[TrainedModel, Continued | None]:
    """Go on from the earlier model where it fits, else start from scratch and say why."""
    spread = spread_of(kind, origin.cluster, origin.stores)
    if origin.earlier and isinstance(section, XGBoostModel | DLRMModel):
        try:
            with Beginning.fetched(origin.earlier, origin.tracker) as begun:
                lessons = begun.lessons(section, made.table, made.fitted)
                with kept_at(_place(kind, section, runtime, origin, made, origin.earlier)):
                    record = train(kind, section, lessons, runtime, out_model, out_scores, begun.folder, spread)
                return record, begun.told(section, record)
        except MisfitError as reason:
            note(f"{kind} was trained from scratch: {reason}")
    with kept_at(_place(kind, section, runtime, origin, made, "")):
        return train(kind, section, made.table, runtime, out_model, out_scores, spread=spread), None


def _place(
    kind: str, section: Section, runtime: Runtime, origin: Origin, made: Made, earlier: str
) -> CheckpointPlace:  # fmt: skip
    """Return where this very training leaves checkpoints: a retried step finds its own and no other's."""
    means = [kind, section.model_dump_json(), runtime.seed, runtime.engine, made.table_digest, origin.code, earlier]
    name = hashlib.sha256(json.dumps(means).encode()).hexdigest()[:16]
    return CheckpointPlace(open_objects(Stores.parse(origin.stores)), f"checkpoints/{origin.name}/{name}.safetensors")
