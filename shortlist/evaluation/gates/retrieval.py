"""Measures of the retrieval of a release, with intervals by user, and the gate on them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl
from pydantic import Field, ValidationError

from shortlist.evaluation.gates.gate_result import GateResult
from shortlist.evaluation.metrics.intervals import FEWEST_CLUSTERS, bootstrap_mean
from shortlist.evaluation.metrics.records import ConfidenceInterval, Record
from shortlist.spec.base import Section
from shortlist.storage.artefacts import IntegrityError, read_json

EVALUATION: Final = "evaluation"
"""Folder, beside the release, of the evaluation that the gates read."""
EVALUATION_FILE: Final = "evaluation.json"
PER_USER: Final = "per_user.parquet"
"""File with a row per user and list: `list`, and the numbers of `shortlist.evaluation.metrics.list_metrics`."""
ALL_SOURCES: Final = "all"
"""Name of the list of all sources together."""


class EvaluatedList(Record):
    """Numbers of a list over all users."""

    name: str
    """Name of a source, or `ALL_SOURCES`, or of a list of slates."""
    coverage: float = Field(ge=0, le=1)
    """Share of the catalogue's items that were a candidate of some user."""
    index: str = ""
    """How nearest vectors are searched: `exact` or `approximate`; empty for a source without vectors."""
    index_recall: float | None = Field(default=None, ge=0, le=1)
    """Share of the exact answers to real queries that an approximate index finds."""


class RetrievalEvaluation(Record):
    """Content of `evaluation.json`; the users' numbers are in `PER_USER`."""

    catalogue: int
    """Number of items that could be candidates."""
    candidates: int
    """Declared number of candidates per request."""
    users: int
    """Number of evaluated users: those with a positive row on the test days, or a sample of them."""
    test_days: tuple[str, ...]
    lists: tuple[EvaluatedList, ...]


class StageNumbers(Record):
    """Numbers of one list: that of a source, of all together, or of a later stage. Intervals are by user."""

    stage: str = "retrieval"
    source: str | None
    """Name of the source; null for a list of several sources."""
    items: float = Field(ge=0)
    """Mean number of candidates per user."""
    recall: ConfidenceInterval | None
    """Share of the items taken by a user on the test days that were candidates; None with too few users."""
    ndcg_at_10: ConfidenceInterval | None
    hit_rate_at_10: ConfidenceInterval | None
    reciprocal_rank: ConfidenceInterval | None
    novelty: float | None
    """Mean self-information of the first ten candidates, in bits."""
    coverage: float
    index_recall: float | None = None
    diversity: float | None = None
    """Mean of 1 - likeness over the pairs of the first ten; None where it was not measured."""


class RetrievalMeasures(Record):
    """All measures of a retrieval."""

    evaluation: RetrievalEvaluation
    stages: tuple[StageNumbers, ...]
    """Numbers of the sources in declared order, then of all together."""

    @property
    def union(self) -> StageNumbers:
        """Numbers of all sources together."""
        return self.stages[-1]


class RetrievalLimits(Section):
    """Limits of the retrieval gate: `gates.custom.retrieval` in a spec."""

    min_recall: float = Field(default=0.0, ge=0.0, le=1.0)
    """Least lower bound of the recall of all sources together."""
    min_index_recall: float = Field(default=0.98, ge=0.0, le=1.0)
    """Least share of the exact answers that every approximate index must find."""


def measure_retrieval(folder: Path | None, confidence: float, rounds: int, seed: int) -> RetrievalMeasures | None:
    """Return the measures of a retrieval; None when it was not evaluated or its files cannot be read.

    Args:
        folder: Folder of `evaluation.json`.
        confidence: Level of the intervals.
        rounds: Number of resamples of users.
        seed: Seed of the resamples.
    """
    if folder is None or not (folder / PER_USER).is_file():
        return None
    try:
        evaluation = RetrievalEvaluation.model_validate(read_json(folder / EVALUATION_FILE))
    except (IntegrityError, ValidationError):
        return None
    per_user = pl.read_parquet(folder / PER_USER)
    stages = {
        evaluated_list.name: measure_stage(
            evaluated_list, per_user.filter(pl.col("list") == evaluated_list.name), confidence, rounds, seed
        )
        for evaluated_list in evaluation.lists
    }
    return RetrievalMeasures(evaluation=evaluation, stages=tuple(stages.values()))


def retrieval_gate(measures: RetrievalMeasures | None, limits: RetrievalLimits) -> GateResult:
    """Hold when candidates miss too many of the items that users took, or an index too many of the exact answers.

    Args:
        measures: Measures of the retrieval; None when it was not evaluated.
        limits: Limits of the gate.
    """
    if measures is None:
        return GateResult.from_failures("retrieval", ["the retrieval was not evaluated"], "")
    union, failures = measures.union, []
    if union.recall is None:
        failures.append(
            f"recall cannot be measured: {measures.evaluation.users} users with a positive test row,"
            f" wanted {FEWEST_CLUSTERS} or more"
        )
    elif union.recall.low < limits.min_recall:
        failures.append(f"recall {union.recall.low:.4f} < {limits.min_recall:.4f} (min_recall; lower bound)")
    failures += [
        f"index of source '{evaluated_list.name}' finds {evaluated_list.index_recall:.4f} of the exact answers <"
        f" {limits.min_index_recall:.4f} (min_index_recall); raise retrieval.index.exact_up_to, or probes"
        for evaluated_list in measures.evaluation.lists
        if evaluated_list.index_recall is not None and evaluated_list.index_recall < limits.min_index_recall
    ]
    recall = f"{union.recall.value:.4f}" if union.recall else "unknown"
    passes = f"recall {recall} of {measures.evaluation.users} users' items in {union.items:.0f} candidates"
    numbers = {"recall": union.recall.model_dump() if union.recall else None, **limits.model_dump()}
    return GateResult.from_failures("retrieval", failures, passes, **numbers)


def measure_stage(
    evaluated_list: EvaluatedList,
    rows: pl.DataFrame,
    confidence: float,
    rounds: int,
    seed: int,
    stage: str = "retrieval",
) -> StageNumbers:
    """Return the numbers of a list over its users.

    Args:
        evaluated_list: What is true of it over all users.
        rows: A line per user, with the numbers of `shortlist.evaluation.metrics.list_metrics`.
        confidence: Level of the intervals.
        rounds: Resamples of users.
        seed: Of the resamples.
        stage: That it belongs to.
    """

    def interval(name: str) -> ConfidenceInterval | None:
        values = rows[name].drop_nans().to_numpy()  # users who took nothing have no number
        return bootstrap_mean(values, confidence, rounds, seed) if len(values) >= FEWEST_CLUSTERS else None

    def mean(name: str) -> float | None:
        mean_value = rows[name].fill_nan(None).mean() if name in rows.columns else None
        return float(mean_value) if isinstance(mean_value, float) else None

    return StageNumbers(
        stage=stage,
        source=evaluated_list.name if stage == "retrieval" and evaluated_list.name != ALL_SOURCES else None,
        items=mean("items") or 0.0,
        recall=interval("recall"),
        ndcg_at_10=interval("ndcg_at_10"),
        hit_rate_at_10=interval("hit_rate_at_10"),
        reciprocal_rank=interval("reciprocal_rank"),
        novelty=mean("novelty"),
        coverage=evaluated_list.coverage,
        index_recall=evaluated_list.index_recall,
        diversity=mean("diversity"),
    )
