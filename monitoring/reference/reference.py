"""The reference profile: distributions of a model's training data, and its scores and quality on its test days."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, Final, Self

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from monitoring.reference.model_quality import measure_models
from monitoring.reference.reference_log import ReferenceLog
from monitoring.reference.reference_parts import ColumnReference, ModelReference, ShownReference
from monitoring.reference.shown_slates import ReplayedRelease, ReplayedRows, SlateReplay, show_slates
from shortlist.contracts import Files
from shortlist.slates.release import open_release
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
SHOWN: Final = "shown.parquet"


class _SavedReference(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    spec: str
    days: tuple[date, ...]
    columns: dict[str, ColumnReference]
    unknown_shares: dict[str, float] = Field(alias="unknown")
    models: dict[str, ModelReference]
    shown: dict[str, ShownReference] = Field(default_factory=dict)


@dataclass(frozen=True)
class Reference:
    """The reference profile that live traffic is compared with."""

    spec: str
    days: tuple[date, ...]
    """Training, validation and test days, in order."""
    columns: Mapping[str, ColumnReference]
    """Distributions by declared column name, in declared order."""
    unknown_shares: Mapping[str, float]
    """Share of values without an id of their own, by column, on the days after the vocabulary was fitted."""
    models: Mapping[str, ModelReference]
    """Test-day quality by model name; a model whose scores could not be measured is left out."""
    sample: pl.DataFrame
    """At most 20 000 rows of whole users: user, day, event_time, label, the compared columns, and `score:<model>` with
    a score on the validation and test days."""
    shown: Mapping[str, ShownReference] = field(default_factory=dict)
    """What the release of each model would show, by model name; empty without retrieval."""
    shown_sample: pl.DataFrame = field(default_factory=pl.DataFrame)
    """Rows of these slates: model, user, day, event_time, score and compared columns."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the reference in a folder after verifying its manifest.

        Raises:
            IntegrityError: There is none, or a file was changed after it was written.
        """
        if not (folder / Files.MANIFEST).is_file():
            raise IntegrityError(
                f"{folder}: there is no reference of the training data, so drift is unknown; train the model again"
            )
        verify_manifest(folder)
        try:
            saved = _SavedReference.model_validate(read_json(folder / RECORD))
        except ValidationError as error:
            problem = error.errors()[0]
            field_path = ".".join(map(str, problem["loc"]))
            raise IntegrityError(f"{folder / RECORD}: {field_path}: {problem['msg']}; train the model again") from None
        fields: dict[str, Any] = {name: getattr(saved, name) for name in _SavedReference.model_fields}
        shown = pl.read_parquet(folder / SHOWN) if saved.shown else pl.DataFrame()
        return cls(**fields, sample=pl.read_parquet(folder / SAMPLE), shown_sample=shown)

    def of_slates(self, model: str) -> Self:
        """Return the reference of live slates of a model: columns of items as its release would show them.

        Columns of the request and of the user keep the distributions of the log. Without replayed slates it is this
        reference.
        """
        shown = self.shown.get(model)
        if shown is None:
            return self
        return replace(
            self,
            columns={**self.columns, **shown.columns},
            unknown_shares={**self.unknown_shares, **shown.unknown_shares},
            sample=self.shown_sample.filter(pl.col("model") == model),
        )

    def of_columns(self, names: Container[str]) -> Self:
        """Return this reference without the columns that are not named."""
        columns = {name: column for name, column in self.columns.items() if name in names}
        shares = {name: share for name, share in self.unknown_shares.items() if name in names}
        return replace(self, columns=columns, unknown_shares=shares)

    def save(self, staging: Path) -> None:
        """Write the reference and its manifest into an empty folder."""
        saved = _SavedReference(
            spec=self.spec,
            days=self.days,
            columns=dict(self.columns),
            unknown=dict(self.unknown_shares),
            models=dict(self.models),
            shown=dict(self.shown),
        )
        write_text(staging / RECORD, saved.model_dump_json(by_alias=True) + "\n")
        self.sample.write_parquet(staging / SAMPLE, compression="zstd")
        if self.shown:
            self.shown_sample.write_parquet(staging / SHOWN, compression="zstd")
        write_manifest(staging)


def build_reference(  # noqa: PLR0913 - the sections and folders of one step
    spec: str, data: Data, features: Features, settings: Monitoring, log: Path, fitted: Path,
    scores: Mapping[str, Path], out: Path, *, release: ReplayedRelease | None = None,
) -> Reference:  # fmt: skip
    """Build, write and return the reference of a training; the log is read in parts.

    Args:
        spec: Name of the spec.
        data: The spec's `data` section.
        features: The spec's `features` section.
        settings: The spec's `monitoring` section.
        log: Folder of the valid log.
        fitted: Folder of the fitted features: their split and vocabularies.
        scores: File of scores, or its folder, by model.
        out: Folder to write: `reference.json`, `sample.parquet` and their manifest; with a release `shown.parquet`.
        release: The release whose slates are replayed; None: requests bring their candidates.

    Raises:
        ShortlistError: The log has no day that the features were fitted on.
    """
    reference_log = ReferenceLog(data, features, settings, log, fitted)
    models = measure_models(scores, DayTable.open(log, Files.LOG), data, settings)
    counts, sample = reference_log.count({model: scores[model] for model in models})
    shown = ReplayedRows({}, pl.DataFrame())
    if release is not None:
        stages, table = open_release(release.folder, data), DayTable.open(log, Files.LOG)
        replay = SlateReplay(stages, data, table, fitted, release.seed)
        described = reference_log.days, reference_log.compared, reference_log.vocabularies, settings.drift
        shown = show_slates(replay, release.models, data, log, *described)
    reference = Reference(
        spec=spec,
        days=reference_log.days,
        columns=counts.columns(),
        unknown_shares=counts.unknown_shares(),
        models=models,
        sample=sample,
        shown=shown.references,
        shown_sample=shown.sample,
    )
    with atomic_folder(out) as staging:
        reference.save(staging)
    return reference
