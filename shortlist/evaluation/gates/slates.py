"""Measures of a candidate's slates after every stage, and the gate on them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl
from pydantic import Field, ValidationError

from shortlist.evaluation.gates.gate_result import GateResult
from shortlist.evaluation.gates.retrieval import (
    ALL_SOURCES,
    BEST_POSSIBLE,
    PER_USER,
    EvaluatedList,
    StageNumbers,
    measure_stage,
)
from shortlist.evaluation.metrics.intervals import FEWEST_CLUSTERS, bootstrap_mean
from shortlist.evaluation.metrics.records import Champion, ConfidenceInterval, Record
from shortlist.spec.base import Section
from shortlist.storage.artefacts import IntegrityError, read_json

SLATES_FILE: Final = "slates.json"
SLATES: Final = "slates"
"""Folder, beside the champion's scores, of the evaluation of its slates."""
USER: Final = "user"
"""Column of `PER_USER` by which lists are paired."""
POPULARITY: Final = "recently_popular"
"""Name of the list of the items that most users took recently, the same for every user."""
FILTERING: Final = "filtering"
SCORING: Final = "scoring"
ORDERING: Final = "ordering"
"""Names of the stages after retrieval, and of their lists; users see the list of the last stage."""
STAGES: Final = (FILTERING, SCORING, ORDERING)


class SimulatedRequests(Record):
    """Random requests to the stages of a release."""

    requests: int = Field(ge=1)
    empty: int = Field(ge=0)
    """Number of requests without an item after filters; a server refuses them."""
    broken: int = Field(ge=0)
    """Number of slates that break a rule of the spec or have wrong propensities."""
    examples: tuple[str, ...] = ()
    """Problems of the first broken slates, and of all slates together."""


class SlatesEvaluation(Record):
    """Evaluation of the slates of one model; the users' numbers are in `PER_USER`."""

    users: int
    """Number of users of the test days for whom a slate was made, one each."""
    places: int
    """Number of items that each slate was asked for."""
    short: int = Field(ge=0)
    """Number of slates with fewer items."""
    fallbacks: int = Field(ge=0)
    """Number of slates for which fallback sources were asked."""
    removed: dict[str, float]
    """Mean number of candidates per user that each filter removed."""
    broken: int = Field(ge=0)
    """Number of slates that break a rule of the spec."""
    examples: tuple[str, ...] = ()
    """Broken rules of the first of them."""
    simulated: SimulatedRequests | None = None
    """Slates of random users; None where none were made, as for a champion."""
    lists: tuple[EvaluatedList, ...]


class SlateMeasures(Record):
    """All measures of the slates of one model."""

    evaluation: SlatesEvaluation
    stages: tuple[StageNumbers, ...]
    """Numbers of filtering, scoring and ordering."""
    leads: dict[str, ConfidenceInterval]
    """nDCG@10 of the slates minus that of every single source and of recent popularity, paired by user."""
    best_possible: StageNumbers | None = None
    """Numbers of the best possible list of a generated log, for the same users."""
    champion: ConfidenceInterval | None = None
    """nDCG@10 of the slates minus that of the champion's slates, paired by user; None where there are none."""

    @property
    def final(self) -> StageNumbers:
        """Numbers of the slates that users would see."""
        return self.stages[-1]


class SlateLimits(Section):
    """Limits of the slates gate: `gates.custom.slates` in a spec."""

    min_ndcg_lead: float | None = Field(default=None, ge=-1.0, le=1.0)
    """Least lead of the slates in nDCG@10 over every single source and over recent popularity: the lower bound must be
    above it. 0: slates must be significantly better; -1: no check; null: slates must not be significantly worse (upper
    bound below 0)."""
    max_ndcg_drop: float = Field(default=0.01, ge=0.0, le=1.0)
    """Largest upper bound of the nDCG@10 of the champion's slates minus that of the candidate's."""
    max_short: float = Field(default=0.0, ge=0.0, le=1.0)
    """Largest share of slates with fewer items than were asked for."""


def measure_slates(
    folder: Path, confidence: float, rounds: int, seed: int, champion: Path | None = None
) -> SlateMeasures | None:
    """Return the measures of the slates in a folder; None when they were not evaluated or cannot be read.

    Args:
        folder: Folder of `slates.json`.
        confidence: Level of the intervals.
        rounds: Number of resamples of users.
        seed: Seed of the resamples.
        champion: Folder of the champion's slates, of the same users.
    """
    slate_files = _read_evaluation(folder)
    if slate_files is None:
        return None
    evaluation, per_user = slate_files
    lists = {evaluated_list.name: evaluated_list for evaluated_list in evaluation.lists}

    def numbers(name: str) -> StageNumbers:
        rows = per_user.filter(pl.col("list") == name)
        return measure_stage(lists[name], rows, confidence, rounds, seed, name)

    def lead(other_ndcg: pl.DataFrame) -> ConfidenceInterval | None:
        pairs = _ndcg_by_user(per_user, ORDERING).join(other_ndcg, on=USER, suffix="_other", nulls_equal=True)
        gaps = (pairs["ndcg_at_10"] - pairs["ndcg_at_10_other"]).to_numpy()
        return bootstrap_mean(gaps, confidence, rounds, seed) if len(gaps) >= FEWEST_CLUSTERS else None

    compared_lists = [name for name in lists if name not in {*STAGES, ALL_SOURCES, BEST_POSSIBLE}]
    champion_files = _read_evaluation(champion) if champion is not None else None
    return SlateMeasures(
        evaluation=evaluation,
        stages=tuple(numbers(name) for name in STAGES),
        leads={
            name: interval for name in compared_lists if (interval := lead(_ndcg_by_user(per_user, name))) is not None
        },
        best_possible=numbers(BEST_POSSIBLE) if BEST_POSSIBLE in lists else None,
        champion=lead(_ndcg_by_user(champion_files[1], ORDERING)) if champion_files is not None else None,
    )


def slates_gate(measures: SlateMeasures | None, limits: SlateLimits, champion: Champion | None = None) -> GateResult:
    """Hold when a slate breaks a rule, too many slates are short, or slates are not better than what they must beat.

    Args:
        measures: Measures of the slates; None when they were not evaluated.
        limits: Limits of the gate.
        champion: The model that serves now; None: there is none, or it was not looked up (see `champion_gate`).
    """
    if measures is None:
        return GateResult.from_failures("slates", ["no slates were evaluated; retrieval is declared"], "")
    evaluation, failures = measures.evaluation, []
    if evaluation.broken:
        failures.append(
            f"{evaluation.broken} of {evaluation.users} slates break a rule, such as: {'; '.join(evaluation.examples)}"
        )
    failures += _list_simulation_failures(evaluation.simulated)
    if evaluation.short > limits.max_short * evaluation.users:
        failures.append(
            f"{evaluation.short} of {evaluation.users} slates hold fewer than {evaluation.places} items >"
            f" {limits.max_short:.2%} (max_short); declare filters.fallback, or more retrieval.candidates"
        )
    ndcg = measures.final.ndcg_at_10
    if ndcg is None:
        failures.append(f"nDCG@10 cannot be measured: {evaluation.users} users, wanted {FEWEST_CLUSTERS} or more")
    failures += _list_lead_failures(measures, limits)
    if champion is not None and champion.version and champion.problem:
        # A champion without slates has nothing to compare with, but one that could not be scored may serve slates.
        failures.append(f"the champion's slates, version {champion.version}, were not made: {champion.problem}")
    if measures.champion is not None and measures.champion.low < -limits.max_ndcg_drop:
        failures.append(
            f"nDCG@10 {measures.champion.low:+.4f} < {-limits.max_ndcg_drop:.4f} against the champion's slates"
            " (max_ndcg_drop; lower bound)"
        )
    simulated = f" and {evaluation.simulated.requests} simulated requests" if evaluation.simulated else ""
    passes = (
        f"nDCG@10 {ndcg.value if ndcg else 0:.4f} of {evaluation.users} slates; none of them{simulated} breaks a rule"
    )
    numbers = {
        "ndcg_at_10": ndcg.model_dump() if ndcg else None,
        "leads": {name: lead.model_dump() for name, lead in measures.leads.items()},
        "champion": measures.champion.model_dump() if measures.champion else None,
    }
    return GateResult.from_failures("slates", failures, passes, **numbers, **limits.model_dump())


def _list_simulation_failures(simulated: SimulatedRequests | None) -> list[str]:
    if simulated is None:
        return ["no requests were simulated, so it is not known whether slates of other users break a rule"]
    if simulated.empty == simulated.requests:
        return [f"filters leave no item for any of {simulated.requests} simulated requests"]
    broken_count = (
        f"{simulated.broken} of {simulated.requests} simulated requests break a rule, such as: "
        if simulated.broken
        else ""
    )
    return [broken_count + "; ".join(simulated.examples)] if simulated.examples else []


def _list_lead_failures(measures: SlateMeasures, limits: SlateLimits) -> list[str]:
    min_lead = limits.min_ndcg_lead
    if min_lead is None:
        return [
            f"nDCG@10 {lead.high:+.4f} < 0 against {name.replace('_', ' ')} alone (upper bound): slates are shown to be"
            " worse; change ordering.value, or declare min_ndcg_lead"
            for name, lead in measures.leads.items()
            if lead.high < 0
        ]
    return [
        f"nDCG@10 {lead.low:+.4f} <= {min_lead:.4f} against {name.replace('_', ' ')} alone (min_ndcg_lead; lower bound)"
        for name, lead in measures.leads.items()
        if lead.low <= min_lead
    ]


def _read_evaluation(folder: Path) -> tuple[SlatesEvaluation, pl.DataFrame] | None:
    try:
        evaluation = SlatesEvaluation.model_validate(read_json(folder / SLATES_FILE))
    except (IntegrityError, ValidationError):
        return None
    path = folder / PER_USER
    return (evaluation, pl.read_parquet(path)) if path.is_file() else None


def _ndcg_by_user(per_user: pl.DataFrame, name: str) -> pl.DataFrame:
    return per_user.filter(pl.col("list") == name).select(USER, "ndcg_at_10")
