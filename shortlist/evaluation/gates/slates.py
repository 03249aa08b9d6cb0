"""Measures of a candidate's slates after every stage, and the gate on them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl
from pydantic import Field, ValidationError

from shortlist.evaluation.gates.gate_result import GateResult
from shortlist.evaluation.gates.retrieval import PER_USER, EvaluatedList, StageNumbers, measure_stage
from shortlist.evaluation.metrics.records import Record
from shortlist.evaluation.value.evaluation import ValueMeasures, measure_value
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


class ExplorationCost(Record):
    """What exploration costs, by the scores of a model."""

    per_slate: float
    """Expected label given up per slate, over drawn slates and others."""
    share: float
    """The same as a share of the expected label of slates in the best order."""
    limit: float | None = None
    """Largest share that the spec declares; null: none."""


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
    exploration: ExplorationCost | None = None
    """None where nothing is explored."""


class SlateMeasures(Record):
    """All measures of the slates of one model."""

    evaluation: SlatesEvaluation
    stages: tuple[StageNumbers, ...]
    """Numbers of filtering, scoring and ordering."""
    value: ValueMeasures | None = None
    """What the slates would earn, beside other lists; None where it was not evaluated."""

    @property
    def final(self) -> StageNumbers:
        """Numbers of the slates that users would see."""
        return self.stages[-1]


class SlateLimits(Section):
    """Limits of the slates gate: `gates.custom.slates` in a spec."""

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

    return SlateMeasures(
        evaluation=evaluation,
        stages=tuple(numbers(name) for name in STAGES),
        value=measure_value(folder, confidence, champion),
    )


def slates_gate(measures: SlateMeasures | None, limits: SlateLimits) -> GateResult:
    """Hold when a slate breaks a rule, or too many slates are short.

    nDCG@10 is shown as agreement with what the log showed, and holds nothing: whoever shows the same items finds the
    same clicks.

    Args:
        measures: Measures of the slates; None when they were not evaluated.
        limits: Limits of the gate.
    """
    if measures is None:
        return GateResult.from_failures("slates", ["no slates were evaluated; retrieval is declared"], "")
    evaluation, failures = measures.evaluation, []
    if not evaluation.users:
        failures.append("no slates were made: the test days have no user")
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
    cost = evaluation.exploration
    if cost is not None and cost.limit is not None and cost.share > cost.limit:
        failures.append(
            f"exploration costs {cost.share:.2%} of the slates' expected label > {cost.limit:.2%}"
            " (ordering.explore.max_cost); lower its share, temperature or epsilon"
        )
    ndcg = measures.final.ndcg_at_10
    explored = f"; exploration costs {cost.share:.2%} of their expected label" if cost is not None else ""
    simulated = f" and {evaluation.simulated.requests} simulated requests" if evaluation.simulated else ""
    agreement = f"; agreement with what was shown: nDCG@10 {ndcg.value:.4f}" if ndcg else ""
    passes = f"none of {evaluation.users} slates{simulated} breaks a rule{explored}{agreement}"
    numbers = {"ndcg_at_10": ndcg.model_dump() if ndcg else None, "short": evaluation.short}
    numbers |= {"exploration": cost.model_dump()} if cost is not None else {}
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


def _read_evaluation(folder: Path) -> tuple[SlatesEvaluation, pl.DataFrame] | None:
    try:
        evaluation = SlatesEvaluation.model_validate(read_json(folder / SLATES_FILE))
    except (IntegrityError, ValidationError):
        return None
    path = folder / PER_USER
    return (evaluation, pl.read_parquet(path)) if path.is_file() else None
