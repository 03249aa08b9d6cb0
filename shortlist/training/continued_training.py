"""Continued training: finds and fetches the earlier model, and checks that a training can continue it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import polars as pl

from shortlist.contracts import Files
from shortlist.features.declared.feature_interfaces import declared_ids
from shortlist.features.declared.feature_kind import declared_kinds
from shortlist.features.values.columns import DeclaredColumns
from shortlist.ranking.heads import HEADS
from shortlist.ranking.inputs import split_of
from shortlist.ranking.ranker import IncompatibleModelError, Ranker
from shortlist.ranking.record import TrainedModel, read_record
from shortlist.spec.data import Data
from shortlist.spec.features import Features, streamed_columns
from shortlist.spec.models import ModelSection
from shortlist.storage.artefacts import IntegrityError, read_json
from shortlist.storage.tables import DayTable
from shortlist.tracking.lineage import ContinuedFrom, log_digest
from shortlist.tracking.mlflow_store import Tracker
from shortlist.tracking.steps import note
from shortlist.tracking.store_access import TrackingError
from shortlist.training.withdrawn_batches import versions_with_batch


def find_previous_run(
    name: str, section: ModelSection, tracker: Tracker, input_digest: str, until: str, withdrawn: Collection[int] = ()
) -> str:
    """Return the MLflow run of the model to continue; empty when the section continues none, or there is none.

    It is the champion if that has this name and kind, else the newest such model that passed its gates; never one that
    was held, whose version was retired, or that learnt from rows which were withdrawn since. A model of the same log as
    this run is not used, so that repeating a run gives the same model.

    Args:
        name: Name of the model.
        section: Section of the model.
        tracker: The spec's MLflow store.
        input_digest: Digest of the log that this run reads.
        until: End of the part of the log that this run reads, ISO 8601; may be empty.
        withdrawn: Numbers of the withdrawn batches of collected rows.
    """
    if section.continuation is None:
        return ""
    passed_runs = tracker.passed_runs(name, section.kind)
    run_ids = [run.run_id for run in passed_runs if not _reads_same_log(run.tags, input_digest, until)]
    if not run_ids:
        note(f"{name} was trained from scratch: no earlier model of this name has passed the gates yet.")
        return ""
    champion = tracker.registry.run_of("champion")
    run_ids.sort(key=lambda run: run != champion)
    return next((run for run in run_ids if _may_be_continued(run, tracker, withdrawn)), "")


def _may_be_continued(run: str, tracker: Tracker, withdrawn: Collection[int]) -> bool:
    version = tracker.registry.version_from(run)
    if version is None:  # nobody knows which rows it read
        return not withdrawn
    tainted = {name for number in withdrawn for name in versions_with_batch(tracker.registry, number)}
    return not tracker.registry.retirement_of(version) and version not in tainted


class PreviousModel(NamedTuple):
    """An earlier model, fetched to this machine."""

    run: str
    version: str
    folder: Path
    record: TrainedModel

    @classmethod
    @contextmanager
    def fetch(cls, run: str, tracker: Tracker) -> Iterator[Self]:
        """Yield the model of an MLflow run.

        Raises:
            IncompatibleModelError: Its files are missing, or were changed.
        """
        with TemporaryDirectory(prefix="shortlist-earlier-") as files:
            try:
                folder = tracker.fetch_model(run, Path(files))
                record = read_record(folder)
            except (IntegrityError, TrackingError) as problem:
                raise IncompatibleModelError(str(problem)) from None
            yield cls(run, str(tracker.registry.version_from(run) or ""), folder, record)

    def days_left_to_train(
        self, section: ModelSection, ranker: type[Ranker[Any]], table: DayTable, fitted: Path
    ) -> DayTable:
        """Return the table with only the training days that are to be learnt.

        Args:
            section: The model's section, which continues an earlier model.
            ranker: Ranker class of the kind.
            table: The feature table.
            fitted: Folder of the current fitted features.

        Raises:
            IncompatibleModelError: The model has other settings, has learnt validation or test days, or there is no new
                day.
        """
        continuation = section.continuation
        assert continuation is not None
        ranker.check_previous_model(self.record, section)
        for label in section.labels:  # labels with a model of their own, which has its own number of rounds
            if (head := self.folder / HEADS / label / Files.MODEL).exists():
                ranker.check_previous_model(read_record(head.parent), section)
        if continuation.learns_all_days:
            return table
        names = [feature.name for feature in self.record.features]
        check_feature_compatibility(names, self.folder / Files.PREPROCESSING, fitted)
        split = split_of(table)
        _check_unseen_days(self.record, split.validation, split.test)
        days = days_to_learn(split.train, self.record, continuation.overlap_days)
        days_by_part = {"warmup": [], "train": [day.isoformat() for day in days]}
        notes = {**table.notes, "split": {**table.notes["split"], **days_by_part}}
        return table.model_copy(update={"notes": notes})

    def describe(self, section: ModelSection, learnt: TrainedModel) -> ContinuedFrom:
        """Return the lineage entry of a training that continued this model."""
        assert section.continuation is not None
        days = f"{learnt.train_days[0]}..{learnt.train_days[-1]}"
        return ContinuedFrom(run=self.run, version=self.version, mode=section.continuation.retrain_mode, learnt=days)


def days_to_learn(train: tuple[date, ...], previous_model: TrainedModel, overlap: int) -> tuple[date, ...]:
    """Return the training days after the earlier model's last one, and some overlapping days before them.

    Raises:
        IncompatibleModelError: There is no day after it.
    """
    last = date.fromisoformat(previous_model.train_days[-1])
    new_days = [day for day in train if day > last]
    if not new_days:
        raise IncompatibleModelError(
            f"the earlier model has learnt up to {last}, and there is no training day after it"
        )
    return train[max(0, len(train) - len(new_days) - overlap) :]


def _reads_same_log(tags: Mapping[str, str], input_digest: str, until: str) -> bool:
    # A scheduled run reads the current log and has no digest beforehand: never the same log.
    has_same_digest = bool(input_digest) and log_digest(tags) == input_digest
    return has_same_digest and tags.get("until", "") == until


def _check_unseen_days(previous_model: TrainedModel, validation: tuple[date, ...], test: tuple[date, ...]) -> None:
    """Check that the earlier model has not learnt, or been chosen by, days that validate or test the new one."""
    learnt_days = previous_model.validation_days if previous_model.params.get("refit") else previous_model.train_days
    last_validation_day = previous_model.validation_days[-1]
    if date.fromisoformat(learnt_days[-1]) >= validation[0]:
        raise IncompatibleModelError(
            f"the earlier model has learnt {learnt_days[-1]}; validation begins on {validation[0]}"
        )
    if date.fromisoformat(last_validation_day) >= test[0]:
        raise IncompatibleModelError(
            f"the earlier model was chosen by its loss on {last_validation_day}; the test begins on {test[0]}"
        )


def check_feature_compatibility(features: Sequence[str], previous_fit: Path, current_fit: Path) -> None:
    """Refuse to continue weights whose features are computed differently now.

    Ids may have been appended, and the means of standardised numbers may have changed a little with the new days.

    Args:
        features: Names of the features that the earlier model reads.
        previous_fit: The preprocessing that it was trained with.
        current_fit: Folder of the current fitted features.

    Raises:
        IncompatibleModelError: A feature is computed differently; names the first difference.
    """
    previous_features, current_features = (read_json(folder / Files.FEATURES) for folder in (previous_fit, current_fit))
    for name in current_features["data"].keys() - _IGNORED_DATA_KEYS:
        if previous_features["data"].get(name) != current_features["data"][name]:
            raise IncompatibleModelError(f"data.{name} is declared otherwise than for the earlier model")
    previous_operations, current_operations = (
        _operation_by_feature(previous_features["features"]),
        _operation_by_feature(current_features["features"]),
    )
    vocabulary_columns = _vocabulary_columns(current_features)
    for name in features:
        if current_operations.get(name) != previous_operations.get(name):
            raise IncompatibleModelError(f"feature '{name}' is declared otherwise than for the earlier model")
        if vocabulary_columns[name]:
            _check_stable_ids(
                name, Path("vocabularies") / f"{vocabulary_columns[name]}.parquet", previous_fit, current_fit
            )


def _check_stable_ids(name: str, file: Path, previous_fit: Path, current_fit: Path) -> None:
    previous_vocabulary, current_vocabulary = pl.read_parquet(previous_fit / file), pl.read_parquet(current_fit / file)
    if not current_vocabulary.head(previous_vocabulary.height).equals(previous_vocabulary):
        raise IncompatibleModelError(
            f"ids of '{name}' mean other values than for the earlier model: its log had other days or rows"
        )


def _vocabulary_columns(saved: dict[str, Any]) -> dict[str, str]:
    """Return the column whose vocabulary defines each feature's ids; empty for other features."""
    declared = DeclaredColumns(Data.model_validate(saved["data"]))
    column_by_feature = {}
    for operation in declared_kinds(Features.model_validate(saved["features"])):
        for number, name in enumerate(operation.outputs):
            ids = declared_ids(operation, number, declared)
            column_by_feature[name] = ids.counted_column if ids is not None else ""
    return column_by_feature


def _operation_by_feature(features: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the operation that computes each feature, by the feature's name."""
    operations, declared = {}, Features.model_validate(features)
    for operation in declared.columns:
        columns = getattr(operation, "each", (None,) * len(operation.outputs))
        for name, column in zip(operation.outputs, columns, strict=True):
            operations[name] = operation.model_dump(mode="json", exclude={"each", *_IGNORED_FEATURE_KEYS}) | {
                "column": column
            }
            if streamed_columns(operation):
                operations[name]["streaming"] = declared.streaming and declared.streaming.delay
    return operations


_IGNORED_DATA_KEYS = {"source", "rules", "split"}
"""Keys of the data section that do not change the meaning of a row."""
_IGNORED_FEATURE_KEYS = {"admit_after", "evict_after_days"}
"""Keys of a feature that do not change its values, only how networks train on them."""
