"""What a training tells MLflow besides numbers: the tables it read, and how its model scores raw columns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

MODEL: Final = "model"
"""Folder of the model's files, among a run's files or a logged model's."""
LOGGED_MODEL: Final = "logged_model"
"""Tag of a registered version whose files are those of a logged model: its id."""

InputType = Literal["long", "double", "string", "any", "vector", "longs", "strings"]
"""Of a raw column: a number, a text, integers of which some may be missing (`any`; the loader checks them), a list of
numbers (a `vector` or `tags` of integers) or of texts."""


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TrackedDataset(_Told):
    """Rows that a training read, in Parquet files."""

    name: str
    context: Literal["training", "validation", "test"]
    """What they were for."""
    path: str
    """Folder of the files."""
    digest: str
    """Of the files' SHA-256."""
    rows: int
    days: str
    """First and last, such as "2026-01-06..2026-01-16"."""


class RawColumn(_Told):
    """A column that a logged model takes."""

    name: str
    type: InputType
    required: bool


class ServableModel(_Told):
    """How MLflow loads a model: a module that reads the logged folder; no code and no pickle is logged."""

    loader: str
    """Importable module with `_load_pyfunc(folder)`."""
    columns: tuple[RawColumn, ...]
    """What `predict` takes; it returns one float per row."""
    folders: dict[str, Path]
    """What the loader finds in the folder, by name; the model's own files, `model`, are added."""
    requirements: tuple[str, ...]
    """Pinned packages that the loader needs."""


class TrainingDetails(_Told):
    """Further details of a training."""

    started: datetime | None = None
    """When it began; None: when it is logged."""
    datasets: tuple[TrackedDataset, ...] = ()
    servable: ServableModel | None = None
    """None: a model that cannot score raw columns; its files are the run's own."""


def logged_model_of(client: Any, run: Any) -> Any | None:
    """Return the logged model that a run has put out, or None."""
    outputs: Sequence[Any] = run.outputs.model_outputs if run.outputs is not None else ()
    return client.get_logged_model(outputs[0].model_id) if outputs else None


def model_source(client: Any, run: Any) -> str:
    """Return the address of a run's model files, its manifest among them."""
    logged = logged_model_of(client, run)
    return f"{run.info.artifact_uri if logged is None else logged.artifact_location}/{MODEL}"
