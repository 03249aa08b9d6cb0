"""The record of a training, saved beside the model's weights."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from shortlist.contracts import Files
from shortlist.ranking.hash_collisions import HashCollisions
from shortlist.ranking.inputs import TableFeature
from shortlist.ranking.row_weighting import RowWeighting
from shortlist.storage.artefacts import IntegrityError, read_json, verify_manifest


class TrainedModel(BaseModel):
    """The content of a model's `model.json`."""

    model_config = ConfigDict(frozen=True)

    kind: str
    name: str
    features: tuple[TableFeature, ...]
    params: dict[str, Any]
    """The model's section of the spec."""
    compared_as_baseline: bool = False
    """Whether other candidates are compared with it as with a baseline."""
    rounds: int | None = None
    """Trees in the model."""
    epochs: int | None = None
    """Number of passes over the training days."""
    best_epoch: int | None = None
    """The epoch (the number of trees) whose weights were kept."""
    history: tuple[dict[str, float | int | None], ...] = ()
    """Metrics of every epoch or tree."""
    importance: dict[str, float] = {}
    """Share of the total gain per feature, largest first; only for trees."""
    hashed: dict[str, HashCollisions] = {}
    """Bucket occupancy of every hashed feature on the training days; only for networks over embedded ids."""
    cached_rows: int | None = None
    """Embedding rows that the device held while training; null: all. Only for networks; `history` has the hit
    rates."""
    weighting: RowWeighting | None = None
    """How training rows were weighted; null: all the same."""
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
    """Name of the champion's folder, when the training started from the champion."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Further labels that the model scores."""
        return tuple(self.params.get("labels", ()))

    def has_learnt(self, day: date) -> bool:
        """Whether the weights were fitted on the rows of a day."""
        learnt_days = (*self.train_days, *(self.validation_days if self.params.get("refit") else ()))
        return str(day) in learnt_days


def read_record(folder: Path) -> TrainedModel:
    """Return the record in `model.json`, after checking every file's digest.

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
