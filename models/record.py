"""The record of a training that lies beside a model's weights."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from models.hash_collisions import HashCollisions
from models.inputs import FeatureColumn
from shortlist.contracts import Files
from shortlist.storage.artefacts import IntegrityError, read_json, verify_manifest


class TrainedModel(BaseModel):
    """What `model.json` says about a model."""

    model_config = ConfigDict(frozen=True)

    kind: str
    name: str
    features: tuple[FeatureColumn, ...]
    params: dict[str, Any]
    """The model's section of the spec."""
    compared_as_baseline: bool = False
    """Whether its kind is one that other candidates should be above, as a baseline is."""
    rounds: int | None = None
    """Trees in the model."""
    epochs: int | None = None
    """Passes over the training days that were made."""
    best_epoch: int | None = None
    """The epoch (the number of trees) whose weights were kept."""
    history: tuple[dict[str, float | int | None], ...] = ()
    """One line per epoch or tree."""
    importance: dict[str, float] = {}
    """Share of the total gain per feature, largest first; only of trees."""
    hashed: dict[str, HashCollisions] = {}
    """How full the buckets of every hashed feature are on the training days; only of a network over embedded ids."""
    cached_rows: int | None = None
    """Embedding rows that the device held while training; null: all. Only of a network; its history has the hit
    rates."""
    base_rate: float
    train_days: tuple[str, ...]
    validation_days: tuple[str, ...]
    train_rows: int
    validation_rows: int
    train_seconds: float
    train_rows_per_s: float
    """Rows visited (training rows times epochs, or times trees) per second of fitting, all phases included."""
    seed: int
    champion: str | None = None
    """Name of the champion's folder when training started from it."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Further labels that it gives scores for."""
        return tuple(self.params.get("labels", ()))

    def has_learnt(self, day: date) -> bool:
        """Whether the weights were fitted on the rows of a day."""
        learnt = (*self.train_days, *(self.validation_days if self.params.get("refit") else ()))
        return str(day) in learnt


def read_record(folder: Path) -> TrainedModel:
    """Return what `model.json` says, after checking every file's digest.

    Raises:
        IntegrityError: A file is missing or was changed after training.
    """
    verify_manifest(folder)
    try:
        return TrainedModel.model_validate(read_json(folder / Files.MODEL))
    except ValidationError as error:
        raise IntegrityError(
            f"{folder / Files.MODEL}: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}"
        ) from None
