"""How good the candidates of a release are: numbers with intervals by user, and the gate on them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl
from pydantic import Field, ValidationError

from shortlist.evaluation.gate_result import GateResult
from shortlist.evaluation.intervals import FEWEST_CLUSTERS, bootstrap_mean
from shortlist.evaluation.records import Interval, Record
from shortlist.spec.base import Section
from shortlist.storage.artefacts import IntegrityError, read_json

EVALUATION: Final = "evaluation"
"""Folder, beside the release, of what the gates read."""
FILE: Final = "evaluation.json"
PER_USER: Final = "per_user.parquet"
"""A line per user and list: `list`, and the numbers of `shortlist.evaluation.list_metrics`."""
ALL: Final = "all"
"""Name of the list of all sources together."""
BEST: Final = "best_possible"
"""Name of the list of a generated world's own truth."""


class EvaluatedList(Record):
    """What is true of a list over all users."""

    name: str
    """Of a source, or `ALL`, or `BEST`."""
    coverage: float = Field(ge=0, le=1)
    """Share of the catalogue that was a candidate of some user."""
    index: str = ""
    """How the nearest vectors were found: `exact` or `approximate`; empty for a source without vectors."""
    index_recall: float | None = Field(default=None, ge=0, le=1)
    """Share of an exact search's answers that an approximate index gave to real queries."""


class RetrievalEvaluation(Record):
    """What the step left; the users' numbers are in `PER_USER`."""

    catalogue: int
    """Items that could be candidates."""
    candidates: int
    """Declared."""
    users: int
    """Users of the test days with a positive row, as far as they were evaluated."""
    test_days: tuple[str, ...]
    lists: tuple[EvaluatedList, ...]


class StageNumbers(Record):
    """One list: that of a source, of all together, or of a later stage. Intervals are by user."""

    stage: str = "retrieval"
    source: str | None
    """Name of the source; null for a list that is of no single one."""
    items: float = Field(ge=0)
    """Candidates per user, the mean."""
    recall: Interval | None
    """Share of the items that a user took on the test days that were candidates; None with too few users."""
    ndcg_at_10: Interval | None
    hit_rate_at_10: Interval | None
    reciprocal_rank: Interval | None
    novelty: float | None
    """Mean self-information of the first ten candidates, in bits."""
    coverage: float
    index_recall: float | None = None
    diversity: float | None = None
    """Mean of 1 - likeness over the pairs of the first ten; None where it was not measured."""


class RetrievalMeasures(Record):
    """Everything that was measured of a retrieval."""

    evaluation: RetrievalEvaluation
    stages: tuple[StageNumbers, ...]
    """Sources in declared order, then all together."""
    best_possible: StageNumbers | None = None
    """Of a generated log: items in the order of how often the world itself would have the user take them."""

    @property
    def union(self) -> StageNumbers:
        """All sources together."""
        return self.stages[-1]


class RetrievalLimits(Section):
    """What retrieval must reach: `gates.custom.retrieval` in a spec."""

    min_recall: float = Field(default=0.0, ge=0.0, le=1.0)
    """The lower bound of the recall of all sources together must reach it."""
    min_index_recall: float = Field(default=0.98, ge=0.0, le=1.0)
    """Share of an exact search's answers that every approximate index must find."""


def measure_retrieval(folder: Path | None, confidence: float, rounds: int, seed: int) -> RetrievalMeasures | None:
    """Return the numbers of a retrieval; None when it was not evaluated or its files cannot be read.

    Args:
        folder: Of `evaluation.json`.
        confidence: Level of the intervals.
        rounds: Resamples of users.
        seed: Of the resamples.
    """
    if folder is None or not (folder / PER_USER).is_file():
        return None
    try:
        evaluation = RetrievalEvaluation.model_validate(read_json(folder / FILE))
    except (IntegrityError, ValidationError):
        return None
    per_user = pl.read_parquet(folder / PER_USER)
    stages = {
        one.name: stage_numbers(one, per_user.filter(pl.col("list") == one.name), confidence, rounds, seed)
        for one in evaluation.lists
    }
    best = stages.pop(BEST, None)
    return RetrievalMeasures(evaluation=evaluation, stages=tuple(stages.values()), best_possible=best)


def retrieval_gate(measures: RetrievalMeasures | None, limits: RetrievalLimits) -> GateResult:
    """Hold when candidates miss too much of what users took, or an approximate index too much of the exact answers.

    Args:
        measures: What was measured; None when nothing was.
        limits: The floors.
    """
    if measures is None:
        return GateResult.of("retrieval", ["the retrieval was not evaluated"], "")
    union, failures = measures.union, []
    if union.recall is None:
        failures.append(
            f"recall cannot be measured: {measures.evaluation.users} users with a positive test row,"
            f" wanted {FEWEST_CLUSTERS} or more"
        )
    elif union.recall.low < limits.min_recall:
        failures.append(f"recall {union.recall.low:.4f} < {limits.min_recall:.4f} (min_recall; lower bound)")
    failures += [
        f"index of source '{one.name}' finds {one.index_recall:.4f} of the exact answers <"
        f" {limits.min_index_recall:.4f} (min_index_recall); raise retrieval.index.exact_up_to, or probes"
        for one in measures.evaluation.lists
        if one.index_recall is not None and one.index_recall < limits.min_index_recall
    ]
    recall = f"{union.recall.value:.4f}" if union.recall else "unknown"
    passes = f"recall {recall} of {measures.evaluation.users} users' items in {union.items:.0f} candidates"
    numbers = {"recall": union.recall.model_dump() if union.recall else None, **limits.model_dump()}
    return GateResult.of("retrieval", failures, passes, **numbers)


def stage_numbers(
    one: EvaluatedList, rows: pl.DataFrame, confidence: float, rounds: int, seed: int, stage: str = "retrieval"
) -> StageNumbers:
    """Return the numbers of a list over its users.

    Args:
        one: What is true of it over all users.
        rows: A line per user, with the numbers of `shortlist.evaluation.list_metrics`.
        confidence: Level of the intervals.
        rounds: Resamples of users.
        seed: Of the resamples.
        stage: That it belongs to.
    """

    def interval(name: str) -> Interval | None:
        values = rows[name].to_numpy()
        return bootstrap_mean(values, confidence, rounds, seed) if len(values) >= FEWEST_CLUSTERS else None

    def mean(name: str) -> float | None:
        found = rows[name].fill_nan(None).mean() if name in rows.columns else None
        return float(found) if isinstance(found, float) else None

    return StageNumbers(
        stage=stage,
        source=one.name if stage == "retrieval" and one.name not in (ALL, BEST) else None,
        items=mean("items") or 0.0,
        recall=interval("recall"),
        ndcg_at_10=interval("ndcg_at_10"),
        hit_rate_at_10=interval("hit_rate_at_10"),
        reciprocal_rank=interval("reciprocal_rank"),
        novelty=mean("novelty"),
        coverage=one.coverage,
        index_recall=one.index_recall,
        diversity=mean("diversity"),
    )
