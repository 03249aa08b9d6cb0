"""The earlier model that a training goes on from: found, fetched, and refused where it does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Self

from models.inputs import split_of
from models.meaning import refuse_other_meaning
from models.ranker import MisfitError
from models.record import TrainedModel, read_record
from shortlist.artefacts import IntegrityError
from shortlist.config.models import DLRMModel, XGBoostModel
from shortlist.contracts import Files
from shortlist.tables import DayTable
from shortlist.tracking.lineage import Continued
from shortlist.tracking.mlflow_store import Tracker
from shortlist.tracking.steps import note
from shortlist.tracking.store_access import TrackingError

Section = XGBoostModel | DLRMModel


def find_earlier(kind: str, section: Section | None, tracker: Tracker, input_digest: str, until: str) -> str:
    """Return the MLflow run of the model to go on from; empty when none is wanted, or there is none.

    It is the champion if that is of the kind, else the newest model of the kind that passed its gates; never one that
    was held. A model of the very log that this run reads is not earlier: running the same again gives the same again.

    Args:
        kind: `xgboost` or `dlrm`.
        section: The model's section; None when it is not declared.
        tracker: The spec's MLflow store.
        input_digest: Of the log that this run reads.
        until: From when on it does not read it, ISO 8601; may be empty.
    """
    if section is None or section.retrain == "scratch":
        return ""
    runs = [run.run_id for run in tracker.passed_runs(kind) if not _is_of_log(run.tags, input_digest, until)]
    if not runs:
        note(f"{kind} was trained from scratch: no earlier {kind} model has passed the gates yet.")
        return ""
    champion = tracker.registry.run_of("champion")
    return champion if champion in runs else runs[0]


class Beginning(NamedTuple):
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
                raise MisfitError(str(problem)) from None
            yield cls(run, str(tracker.registry.version_from(run) or ""), folder, record)

    def lessons(self, section: Section, table: DayTable, fitted: Path) -> DayTable:
        """Return the table with the training days that are to be learnt.

        Raises:
            MisfitError: The model was made otherwise, knows too much already, or has nothing to learn.
        """
        if section.retrain == "refit":
            _refuse_other_trees(self.record, section)
            return table
        names = [feature.name for feature in self.record.features]
        refuse_other_meaning(names, self.folder / Files.PREPROCESSING, fitted)
        if isinstance(section, XGBoostModel):
            _refuse_more_trees(self.record, section)
        split = split_of(table)
        _refuse_seen_days(self.record, split.validation, split.test)
        days = days_to_learn(split.train, self.record, section.retrain_days or 0)
        notes = {**table.notes, "split": {**table.notes["split"], "train": [day.isoformat() for day in days]}}
        return table.model_copy(update={"notes": notes})

    def told(self, section: Section, learnt: TrainedModel) -> Continued:
        """Return what the lineage says of a training that went on from here."""
        days = f"{learnt.train_days[0]}..{learnt.train_days[-1]}"
        return Continued(run=self.run, version=self.version, how=section.retrain, learnt=days)


def days_to_learn(train: tuple[date, ...], earlier: TrainedModel, overlap: int) -> tuple[date, ...]:
    """Return the training days after the earlier model's last one, and so many before them.

    Raises:
        MisfitError: There is no day after it.
    """
    last = date.fromisoformat(earlier.train_days[-1])
    new = [day for day in train if day > last]
    if not new:
        raise MisfitError(f"the earlier model has learnt up to {last}, and there is no training day after it")
    return train[max(0, len(train) - len(new) - overlap) :]


def _is_of_log(tags: Mapping[str, str], input_digest: str, until: str) -> bool:
    # What the clock starts reads the log as it is then and has no digest of it beforehand: never the same log.
    same = bool(input_digest) and tags.get("data_digest", "").partition("/")[0] == input_digest
    return same and tags.get("until", "") == until


def _refuse_other_trees(earlier: TrainedModel, section: Section) -> None:
    """The best number of trees is that of trees grown alike."""
    now = section.model_dump(mode="json", exclude=_MAY_CHANGE)
    changed = [name for name, value in now.items() if earlier.params.get(name, value) != value]
    if changed:
        raise MisfitError(f"models.xgboost: {', '.join(changed)} changed, so the earlier number of trees says nothing")


def _refuse_more_trees(earlier: TrainedModel, section: XGBoostModel) -> None:
    trees, more = earlier.rounds or 0, section.retrain_rounds or 0
    if trees + more > section.rounds:
        raise MisfitError(
            f"the earlier model has {trees} trees; {more} more are beyond models.xgboost.rounds ({section.rounds})"
        )


def _refuse_seen_days(earlier: TrainedModel, validation: tuple[date, ...], test: tuple[date, ...]) -> None:
    """Days that the earlier model saw can neither stop a training nor judge it."""
    learnt = earlier.validation_days if earlier.params.get("refit") else earlier.train_days
    chosen_on = earlier.validation_days[-1]
    if date.fromisoformat(learnt[-1]) >= validation[0]:
        raise MisfitError(f"the earlier model has learnt {learnt[-1]}; validation begins on {validation[0]}")
    if date.fromisoformat(chosen_on) >= test[0]:
        raise MisfitError(f"the earlier model was chosen by its loss on {chosen_on}; the test begins on {test[0]}")


_MAY_CHANGE = {"rounds", "early_stopping_rounds", "retrain", "retrain_rounds", "retrain_days"}
"""Keys that do not change how a tree is grown."""
