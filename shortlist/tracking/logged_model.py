"""Details of a training for MLflow besides numbers: the tables it read, and how its model scores raw columns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

MODEL: Final = "model"
"""Folder of the model's files among the files of a run or of a logged model."""
LOGGED_MODEL: Final = "logged_model"
"""Tag with the id of the logged model that holds a registered version's files."""

InputType = Literal["long", "double", "string", "any", "vector", "longs", "strings"]
"""Type of a raw column: a number, a text, integers with missing values (`any`; the loader checks them), a list of
numbers (a `vector` or `tags` of integers) or of texts."""


class _FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TrackedDataset(_FrozenModel):
    """Rows that a training read, in Parquet files."""

    name: str
    context: Literal["training", "validation", "test"]
    """Part of the training for which the rows were read."""
    path: str
    """Folder of the files."""
    digest: str
    """Digest of the files' SHA-256 sums."""
    rows: int
    days: str
    """First and last day, such as "2026-01-06..2026-01-16"."""


class RawColumn(_FrozenModel):
    """An input column of a logged model."""

    name: str
    type: InputType
    required: bool


class ServableModel(_FrozenModel):
    """Loading of a model by MLflow: a module that reads the logged folder; no code and no pickle is logged."""

    loader: str
    """Importable module with `_load_pyfunc(folder)`."""
    columns: tuple[RawColumn, ...]
    """Input columns of `predict`, which returns one float per row."""
    folders: dict[str, Path]
    """Sub-folders of the logged folder, by name; the model's own files are added as `model`."""
    requirements: tuple[str, ...]
    """Pinned packages that the loader needs."""


class TrainingDetails(_FrozenModel):
    """Further details of a training."""

    started: datetime | None = None
    """Time at which it started; None: when it is logged."""
    datasets: tuple[TrackedDataset, ...] = ()
    servable: ServableModel | None = None
    """None: a model that cannot score raw columns; its files are the run's own."""


def logged_model_of(client: Any, run: Any) -> Any | None:
    """Return the logged model that a run has as its output, or None."""
    outputs: Sequence[Any] = run.outputs.model_outputs if run.outputs is not None else ()
    return client.get_logged_model(outputs[0].model_id) if outputs else None


def model_source(client: Any, run: Any) -> str:
    """Return the address of a run's model files, its manifest among them."""
    logged = logged_model_of(client, run)
    return f"{run.info.artifact_uri if logged is None else logged.artifact_location}/{MODEL}"
