"""A trained model as MLflow logs it: the tables it read, and what scores raw columns by its exported graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from models.inputs import split_of
from shortlist.features.scored_views import write_views_from
from shortlist.features.view_index import ViewIndex
from shortlist.serving.export.signature import FOLDER
from shortlist.serving.server import raw_scorer
from shortlist.serving.server.inputs import Input
from shortlist.serving.server.tensors import BYTES, FLOATS
from shortlist.storage.artefacts import digest_of_files
from shortlist.storage.tables import DayTable
from shortlist.tracking.logged_model import InputType, RawColumn, ServableModel, TrackedDataset
from shortlist.tracking.steps import note

_LARGEST_VIEWS: Final = 2 * 1024**3
"""Bytes of views beyond which a model is logged without them, and so without what scores raw columns."""
_IMPORTED: Final = ("mlflow", "numpy", "onnxruntime", "pandas", "polars", "pyarrow", "pydantic")


def tracked_datasets(table: DayTable, digests: Mapping[str, str], name: str) -> tuple[TrackedDataset, ...]:
    """Return what a training read: the training, validation and test days of a feature table.

    Args:
        table: The feature table.
        digests: SHA-256 of its files by relative path.
        name: Of the spec.
    """
    split, found = split_of(table), []
    for context, days in (("training", split.train), ("validation", split.validation), ("test", split.test)):
        if not days:
            continue
        parts = [table.by_day[day] for day in days]
        files = {file: digests[file] for part in parts for file in part.files}
        found.append(
            TrackedDataset.model_validate(
                {
                    "name": f"{name} {context}",
                    "context": context,
                    "path": str(table.folder),
                    "digest": digest_of_files(files),
                    "rows": sum(part.rows for part in parts),
                    "days": f"{days[0]}..{days[-1]}",
                }
            )
        )
    return tuple(found)


@contextmanager
def servable_model(model: Path, fitted: Path, table: DayTable) -> Iterator[ServableModel | None]:
    """Give what MLflow is told to load a model by; None for one that was not exported, or whose views are too large.

    Args:
        model: The model's folder.
        fitted: What its features were fitted to.
        table: The feature table; rows of its validation and test days, and later ones, can be scored.
    """
    views = ViewIndex.read(fitted / "views")
    size = sum(views.path(view).stat().st_size for view in views.views)
    if not (model / FOLDER).is_dir() or size > _LARGEST_VIEWS:
        if size > _LARGEST_VIEWS:
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
            columns=tuple(_raw_column(one, one.name in keys) for one in inputs),
            folders={raw_scorer.LOOKUP: lookup},
            requirements=tuple(f"{name}=={version(name)}" for name in _IMPORTED),
        )


def _raw_column(one: Input, is_key: bool) -> RawColumn:
    several = len(one.shape) > 1
    kind: InputType
    if one.datatype in FLOATS:
        kind = "vector" if several else "double"
    elif one.datatype == BYTES:
        kind = "strings" if several else "string"
    else:
        # MLflow refuses a missing value in a column of `long`, and integers in one of `double`.
        kind = "longs" if several else ("long" if is_key else "any")
    return RawColumn(name=one.name, type=kind, required=not one.optional)
