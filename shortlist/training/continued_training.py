"""The earlier model that a training goes on from: found, fetched, and refused where it does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

from models.inputs import split_of
from models.ranker import IncompatibleModelError, Ranker
from models.record import TrainedModel, read_record
from shortlist.contracts import Files
from shortlist.spec.models import ModelSection
from shortlist.storage.artefacts import IntegrityError
from shortlist.storage.tables import DayTable
from shortlist.tracking.lineage import ContinuedFrom
from shortlist.tracking.mlflow_store import Tracker
from shortlist.tracking.steps import note
from shortlist.tracking.store_access import TrackingError
from shortlist.training.feature_compatibility import check_feature_compatibility


def find_earlier(name: str, section: ModelSection, tracker: Tracker, input_digest: str, until: str) -> str:
    """Return the MLflow run of the model to go on from; empty when none is wanted, or there is none.

    It is the champion if that has this name and kind, else the newest such model that passed its gates; never one that
    was held. A model of the very log that this run reads is not earlier: running the same again gives the same again.

    Args:
        name: Of the model.
        section: Its section.
        tracker: The spec's MLflow store.
        input_digest: Of the log that this run reads.
        until: From when on it does not read it, ISO 8601; may be empty.
    """
    if section.continuation is None:
        return ""
    passed = tracker.passed_runs(name, section.kind)
    runs = [run.run_id for run in passed if not _is_of_log(run.tags, input_digest, until)]
    if not runs:
        note(f"{name} was trained from scratch: no earlier model of this name has passed the gates yet.")
        return ""
    champion = tracker.registry.run_of("champion")
    return champion if champion in runs else runs[0]


class PreviousModel(NamedTuple):
    """An earlier model whose files are here."""

    run: str
    version: str
    folder: Path
    record: TrainedModel

    @classmethod
    @contextmanager
    def fetched(cls, run: str, tracker: Tracker) -> Iterator[Self]:
        """Give the model of an MLflow run.

        Raises:
            MisfitError: Its files are gone, or are not the ones that were trained.
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
        """Return the table with the training days that are to be learnt.

        Args:
            section: The model's section; it goes on from an earlier model.
            ranker: Of its kind.
            table: The feature table.
            fitted: What features are fitted to now.

        Raises:
            MisfitError: The model was made otherwise, knows too much already, or has nothing to learn.
        """
        how = section.continuation
        assert how is not None
        ranker.check_earlier(self.record, section)
        if how.learns_all_days:
            return table
        names = [feature.name for feature in self.record.features]
        check_feature_compatibility(names, self.folder / Files.PREPROCESSING, fitted)
        split = split_of(table)
        _check_unseen_days(self.record, split.validation, split.test)
        days = days_to_learn(split.train, self.record, how.overlap_days)
        learnt = {"warmup": [], "train": [day.isoformat() for day in days]}
        notes = {**table.notes, "split": {**table.notes["split"], **learnt}}
        return table.model_copy(update={"notes": notes})

    def told(self, section: ModelSection, learnt: TrainedModel) -> ContinuedFrom:
        """Return what the lineage says of a training that went on from here."""
        assert section.continuation is not None
        days = f"{learnt.train_days[0]}..{learnt.train_days[-1]}"
        return ContinuedFrom(run=self.run, version=self.version, how=section.continuation.how, learnt=days)


def days_to_learn(train: tuple[date, ...], earlier: TrainedModel, overlap: int) -> tuple[date, ...]:
    """Return the training days after the earlier model's last one, and so many before them.

    Raises:
        MisfitError: There is no day after it.
    """
    last = date.fromisoformat(earlier.train_days[-1])
    new = [day for day in train if day > last]
    if not new:
        raise IncompatibleModelError(
            f"the earlier model has learnt up to {last}, and there is no training day after it"
        )
    return train[max(0, len(train) - len(new) - overlap) :]


def _is_of_log(tags: Mapping[str, str], input_digest: str, until: str) -> bool:
    # What the clock starts reads the log as it is then and has no digest of it beforehand: never the same log.
    same = bool(input_digest) and tags.get("data_digest", "").partition("/")[0] == input_digest
    return same and tags.get("until", "") == until


def _check_unseen_days(earlier: TrainedModel, validation: tuple[date, ...], test: tuple[date, ...]) -> None:
    """Days that the earlier model saw can neither stop a training nor judge it."""
    learnt = earlier.validation_days if earlier.params.get("refit") else earlier.train_days
    chosen_on = earlier.validation_days[-1]
    if date.fromisoformat(learnt[-1]) >= validation[0]:
        raise IncompatibleModelError(f"the earlier model has learnt {learnt[-1]}; validation begins on {validation[0]}")
    if date.fromisoformat(chosen_on) >= test[0]:
        raise IncompatibleModelError(
            f"the earlier model was chosen by its loss on {chosen_on}; the test begins on {test[0]}"
        )
