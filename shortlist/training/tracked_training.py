"""Writes a training to MLflow: its files, plots and datasets, its lineage, and the form in which MLflow loads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from shortlist.features.stored_views.scored_views import write_views_from
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.ranking.inputs import split_of
from shortlist.ranking.record import TrainedModel
from shortlist.report.figures import write_plots
from shortlist.report.report import training_plots
from shortlist.serving.export.signature import FOLDER
from shortlist.serving.server import raw_scorer
from shortlist.serving.server.request_inputs.input_reader import InputSpec
from shortlist.serving.server.requests.tensors import BYTES, FLOATS
from shortlist.spec.load import digest
from shortlist.storage.artefacts import digest_of_files
from shortlist.storage.tables import DayTable
from shortlist.tracking.lineage import ContinuedFrom, Lineage, git_commit
from shortlist.tracking.logged_model import InputType, RawColumn, ServableModel, TrackedDataset, TrainingDetails
from shortlist.tracking.steps import note
from shortlist.training.training_inputs import TrainingInputs


def log_training(inputs: TrainingInputs, record: TrainedModel, continued: ContinuedFrom | None, out_model: Path) -> str:
    """Write a training and its files to MLflow; return the run's id.

    Args:
        inputs: What was trained, on what.
        record: Record of the trained model.
        continued: The earlier model that was continued; None: trained from scratch.
        out_model: The model folder.
    """
    model, context = inputs.model, inputs.context
    lineage = Lineage(
        spec_digest=digest(inputs.section),
        data_digest=f"{context.input_digest}/{inputs.table_digest}",
        days={part: f"{days[0]}..{days[-1]}" for part, days in split_of(inputs.table).model_dump().items() if days},
        code_version=context.code,
        git_commit=git_commit(),
        cause=context.cause,
        continued=continued,
    )
    datasets = tracked_datasets(inputs.table, inputs.table_files, context.name)
    with TemporaryDirectory() as plots, servable_model(out_model, inputs.fitted, inputs.table) as servable:
        write_plots(training_plots(record.model_dump(mode="json")), Path(plots))
        details = TrainingDetails(started=inputs.started, datasets=datasets, servable=servable)
        return context.tracker.log_training(
            out_model, model.kind, record.params, record.history, lineage, Path(plots), model.name, details
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
