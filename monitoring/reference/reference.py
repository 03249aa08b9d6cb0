"""The reference: the frozen distributions of a model's training data, and its scores and quality on its test days."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final, Self

import polars as pl
from pydantic import BaseModel, ConfigDict, ValidationError

from monitoring.reference.model_quality import measure_models
from monitoring.reference.reference_log import ReferenceLog
from monitoring.reference.reference_parts import ColumnReference, ModelReference
from shortlist.contracts import Files
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.monitoring import Monitoring
from shortlist.storage.artefacts import (
    IntegrityError,
    atomic_folder,
    read_json,
    verify_manifest,
    write_manifest,
    write_text,
)
from shortlist.storage.tables import DayTable

__all__ = ["ColumnReference", "ModelReference", "Reference", "build_reference"]

RECORD: Final = "reference.json"
SAMPLE: Final = "sample.parquet"


class _Saved(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    spec: str
    days: tuple[date, ...]
    columns: dict[str, ColumnReference]
    unknown: dict[str, float]
    models: dict[str, ModelReference]


@dataclass(frozen=True)
class Reference:
    """What live traffic is compared with."""

    spec: str
    days: tuple[date, ...]
    """Training, validation and test days, in order."""
    columns: Mapping[str, ColumnReference]
    """By declared name, in declared order."""
    unknown: Mapping[str, float]
    """Share of the values without an id of their own on the days after those that the vocabulary was fitted on."""
    models: Mapping[str, ModelReference]
    """By name; a model whose scores could not be measured is not there."""
    sample: pl.DataFrame
    """At most 20 000 rows of whole users: user, day, event_time, label, the compared columns, and `score:<model>` with
    a score on the validation and test days."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the reference in a folder, verified.

        Raises:
            IntegrityError: There is none, or a file was changed after it was written.
        """
        if not (folder / Files.MANIFEST).is_file():
            raise IntegrityError(
                f"{folder}: there is no reference of the training data, so drift is unknown; train the model again"
            )
        verify_manifest(folder)
        try:
            saved = _Saved.model_validate(read_json(folder / RECORD))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise IntegrityError(f"{folder / RECORD}: {where}: {first['msg']}; train the model again") from None
        parts: dict[str, Any] = {name: getattr(saved, name) for name in _Saved.model_fields}
        return cls(**parts, sample=pl.read_parquet(folder / SAMPLE))

    def save(self, staging: Path) -> None:
        """Write the reference and its manifest into an empty folder."""
        saved = _Saved(
            spec=self.spec,
            days=self.days,
            columns=dict(self.columns),
            unknown=dict(self.unknown),
            models=dict(self.models),
        )
        write_text(staging / RECORD, saved.model_dump_json() + "\n")
        self.sample.write_parquet(staging / SAMPLE, compression="zstd")
        write_manifest(staging)


def build_reference(
    spec: str, data: Data, features: Features, settings: Monitoring, log: Path, fitted: Path,
    scores: Mapping[str, Path], out: Path,
) -> Reference:  # fmt: skip
    """Write the reference of a training, part by part of the log, and return it.

    Args:
        spec: Its name.
        data: The spec's section.
        features: The spec's section.
        settings: The spec's section.
        log: Folder of the valid log.
        fitted: Folder of the fitted features: their split and vocabularies.
        scores: File of scores, or its folder, by model.
        out: Folder to write: `reference.json`, `sample.parquet` and their manifest.

    Raises:
        ShortlistError: The log has no day that the features were fitted on.
    """
    read = ReferenceLog(data, features, settings, log, fitted)
    models = measure_models(scores, DayTable.open(log, Files.LOG), data, settings)
    counts, sample = read.count({model: scores[model] for model in models})
    reference = Reference(
        spec=spec,
        days=read.days,
        columns=counts.columns(),
        unknown=counts.unknown(),
        models=models,
        sample=sample,
    )
    with atomic_folder(out) as staging:
        reference.save(staging)
    return reference
