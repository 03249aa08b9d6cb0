"""The value of a model's slates and of the lists beside them: the file of an evaluation, and its estimates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from pydantic import Field, ValidationError

from shortlist.evaluation.metrics.records import Record
from shortlist.evaluation.value.base import Contributions
from shortlist.evaluation.value.estimate import (
    LogExtent,
    ValueDifference,
    ValueEstimate,
    estimate_difference,
    estimate_value,
)
from shortlist.evaluation.value.estimators import DEFAULT_ESTIMATOR, ESTIMATORS
from shortlist.evaluation.value.evidence import Floats, Ints, ValueEvidence
from shortlist.evaluation.value.support import NO_SUPPORT, Support
from shortlist.storage.artefacts import IntegrityError, read_json, write_json

VALUE_FILE: Final = "value.json"
REQUESTS_FILE: Final = "value_requests.parquet"
"""Contribution of each request to each list's value."""
SLATES: Final = "slates"
POPULAR: Final = "popular"
CHANCE: Final = "chance"
BEST_POSSIBLE: Final = "best_possible"
"""Names of lists: what users would see, the most popular items, random items, the best of a generated world."""
_USER: Final = "user"


class EvaluatedValue(Record):
    """What one list earns, but for its requests."""

    name: str
    bias: float = Field(ge=0)
    """Largest bias of the estimate; 0 for a list without support, whose value is unknown."""
    shrinkage: float = 0.0
    effective_samples: float = Field(default=0.0, ge=0)
    unsupported: float = Field(default=1.0, ge=0, le=1)
    evident_unsupported: float = Field(default=1.0, ge=0, le=1)
    truth: float | None = None
    """Planted value in a generated world."""

    @property
    def support(self) -> Support:
        """How much the log says of the list."""
        return Support(self.effective_samples, self.unsupported, self.evident_unsupported)


class ValueEvaluation(Record):
    """Content of `value.json`."""

    reward: str = ""
    """What a row earns, as declared."""
    problem: str = ""
    """Why the log says nothing of the value of any list; empty where it does."""
    extent: LogExtent | None = None
    lists: tuple[EvaluatedValue, ...] = ()


class ListValue(ValueEstimate):
    """Estimated value of one list."""

    list: str
    truth: float | None = None
    """Planted value in a generated world."""


class ValueMeasures(Record):
    """Values of a model's slates and of the lists beside them, and differences on the same requests."""

    reward: str = ""
    """What a row earns, as declared; empty where no value was estimated."""
    requests: int = 0
    users: int = 0
    problem: str = ""
    lists: tuple[ListValue, ...] = ()
    leads: dict[str, ValueDifference] = Field(default_factory=dict)
    """Value of the slates minus that of each other list."""
    champion: ValueDifference | None = None
    """Value of the slates minus that of the champion's; None where there are none."""

    def find(self, name: str) -> ListValue | None:
        """Return the value of a list; None where it was not estimated."""
        return next((value for value in self.lists if value.list == name), None)


def write_value(
    folder: Path, reward: str, evidence: Mapping[str, ValueEvidence], extent: LogExtent, truths: Mapping[str, float]
) -> None:
    """Write the contributions of all lists into a folder, by the default estimator.

    Args:
        folder: Folder of an evaluation that is being written.
        reward: Formula of the reward of a row.
        evidence: Evidence on each list, all on the same requests.
        extent: How much the log explores.
        truths: Planted values of a generated world, by list; a list without evidence has its truth alone.
    """
    estimator = ESTIMATORS[DEFAULT_ESTIMATOR]()
    contributions = {name: estimator.contributions(list_evidence) for name, list_evidence in evidence.items()}
    users = next(iter(evidence.values())).user
    columns = {name: list_contributions.by_request for name, list_contributions in contributions.items()}
    pl.DataFrame({_USER: users, **{f"value:{name}": column for name, column in columns.items()}}).write_parquet(
        folder / REQUESTS_FILE
    )
    lists = [
        EvaluatedValue(
            name=name,
            bias=list_contributions.bias if np.isfinite(list_contributions.bias) else 0.0,
            shrinkage=list_contributions.shrinkage,
            **list_contributions.support._asdict(),
            truth=truths.get(name),
        )
        for name, list_contributions in contributions.items()
    ]
    lists += [
        EvaluatedValue(name=name, bias=0.0, **NO_SUPPORT._asdict(), truth=truth)
        for name, truth in truths.items()
        if name not in contributions
    ]
    evaluation = ValueEvaluation(reward=reward, extent=extent, lists=tuple(lists))
    write_json(folder / VALUE_FILE, evaluation.model_dump(mode="json"))


def write_unknown_value(folder: Path, problem: str) -> None:
    """Write why a log says nothing of the value of lists."""
    write_json(folder / VALUE_FILE, ValueEvaluation(problem=problem).model_dump(mode="json"))


def measure_value(folder: Path, confidence: float, champion: Path | None = None) -> ValueMeasures | None:
    """Return the values in a folder with their intervals; None where they were not evaluated or cannot be read.

    Args:
        folder: Folder of `value.json`.
        confidence: Level of the intervals.
        champion: Folder of the champion's evaluation, on the same requests.
    """
    value_files = _read(folder)
    if value_files is None:
        return None
    evaluation, users, contributions = value_files
    if evaluation.problem or evaluation.extent is None:
        return ValueMeasures(problem=evaluation.problem)
    extent = evaluation.extent
    lists = [
        _estimate(evaluated_list, contributions.get(evaluated_list.name), users, confidence, extent)
        for evaluated_list in evaluation.lists
    ]
    slates = contributions.get(SLATES)
    return ValueMeasures(
        reward=evaluation.reward,
        requests=users.size,
        users=int(np.unique(users).size),
        lists=tuple(lists),
        leads={
            name: estimate_difference(slates, other, users, extent)
            for name, other in contributions.items()
            if slates is not None and name != SLATES
        },
        champion=None if champion is None else compare_slates(folder, champion),
    )


def _estimate(
    evaluated_list: EvaluatedValue, contributions: Contributions | None, users: Ints, confidence: float,
    extent: LogExtent,
) -> ListValue:  # fmt: skip
    if contributions is None:
        support = evaluated_list.support
        value = ValueEstimate(
            estimate=None,
            effective_samples=support.effective_samples,
            unsupported=support.unsupported,
            problem="only its planted value is known",
        )
    else:
        value = estimate_value(contributions, users, confidence, extent)
    return ListValue(list=evaluated_list.name, truth=evaluated_list.truth, **value.model_dump())


def compare_slates(folder: Path, other: Path) -> ValueDifference | None:
    """Return the value of one model's slates minus that of another's, on the same requests; None without evaluations.

    Args:
        folder: Folder of the evaluation of the one.
        other: Folder of the evaluation of the other.
    """
    first_files, second_files = _read(folder), _read(other)
    if first_files is None or second_files is None:
        return None
    (evaluation, users, contributions), (other_evaluation, other_users, other_contributions) = first_files, second_files
    if problem := evaluation.problem or other_evaluation.problem:
        return ValueDifference(value=None, problem=problem)
    if not np.array_equal(users, other_users):
        return ValueDifference(value=None, problem="the slates are not of the same requests")
    assert evaluation.extent is not None
    return estimate_difference(contributions[SLATES], other_contributions[SLATES], users, evaluation.extent)


def _read(folder: Path) -> tuple[ValueEvaluation, Ints, dict[str, Contributions]] | None:
    try:
        evaluation = ValueEvaluation.model_validate(read_json(folder / VALUE_FILE))
    except (IntegrityError, ValidationError):
        return None
    if evaluation.problem:
        return evaluation, np.zeros(0, np.int64), {}
    if not (folder / REQUESTS_FILE).is_file():
        return None
    columns = pl.read_parquet(folder / REQUESTS_FILE)
    users: Ints = columns[_USER].to_numpy()
    contributions = {
        evaluated_list.name: Contributions(
            _column(columns, evaluated_list.name), evaluated_list.bias, evaluated_list.support, evaluated_list.shrinkage
        )
        for evaluated_list in evaluation.lists
        if f"value:{evaluated_list.name}" in columns.columns
    }
    return evaluation, users, contributions


def _column(columns: pl.DataFrame, name: str) -> Floats:
    values: Floats = columns[f"value:{name}"].to_numpy()
    return values
