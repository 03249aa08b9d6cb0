"""How good the slates of a candidate are after every stage, and the gate on them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl
from pydantic import Field, ValidationError

from shortlist.evaluation.gate_result import GateResult
from shortlist.evaluation.intervals import FEWEST_CLUSTERS, bootstrap_mean
from shortlist.evaluation.records import Champion, Interval, Record
from shortlist.evaluation.retrieval import ALL, BEST, PER_USER, EvaluatedList, StageNumbers, stage_numbers
from shortlist.spec.base import Section
from shortlist.storage.artefacts import IntegrityError, read_json

SLATES_FILE: Final = "slates.json"
SLATES: Final = "slates"
"""Folder, beside the champion's scores, of what was found about its slates."""
USER: Final = "user"
"""Column of `PER_USER`: by whom lists are paired."""
POPULARITY: Final = "recently_popular"
"""Name of the list of the items that most users took lately, the same for everybody."""
FILTERING: Final = "filtering"
SCORING: Final = "scoring"
ORDERING: Final = "ordering"
"""Names of the stages after retrieval, and of their lists; that of the last one is what users would see."""
STAGES: Final = (FILTERING, SCORING, ORDERING)


class SimulatedRequests(Record):
    """Random requests to the stages of a release."""

    requests: int = Field(ge=1)
    empty: int = Field(ge=0)
    """Requests that filters left no item for; a server refuses them."""
    broken: int = Field(ge=0)
    """Slates that break a rule of the spec, or are not as likely as their propensities say."""
    examples: tuple[str, ...] = ()
    """What is wrong, of the first of them; with what is wrong with all together, if anything."""


class SlatesEvaluation(Record):
    """What was found about the slates of one model; the users' numbers are in `PER_USER`."""

    users: int
    """Users of the test days for whom slates were made, one each."""
    places: int
    """Items that each slate was asked for."""
    short: int = Field(ge=0)
    """Slates with fewer."""
    fallbacks: int = Field(ge=0)
    """Slates for which sources were asked for more."""
    removed: dict[str, float]
    """Candidates per user that each filter removed."""
    broken: int = Field(ge=0)
    """Slates that break a rule of the spec."""
    examples: tuple[str, ...] = ()
    """What the first of them break."""
    simulated: SimulatedRequests | None = None
    """Of random users; None where none were made, as for a champion."""
    lists: tuple[EvaluatedList, ...]


class SlateMeasures(Record):
    """Everything that was measured of the slates of one model."""

    evaluation: SlatesEvaluation
    stages: tuple[StageNumbers, ...]
    """Filtering, scoring and ordering."""
    leads: dict[str, Interval]
    """nDCG@10 of the slates minus that of every single source and of recent popularity, paired by user."""
    best_possible: StageNumbers | None = None
    """Of a generated log: the best list for the same users."""
    champion: Interval | None = None
    """nDCG@10 of the slates minus that of the champion's slates, paired by user; None where there are none."""

    @property
    def final(self) -> StageNumbers:
        """What users would see."""
        return self.stages[-1]


class SlateLimits(Section):
    """What slates must reach: `gates.custom.slates` in a spec."""

    min_ndcg_lead: float | None = Field(default=None, ge=-1.0, le=1.0)
    """nDCG@10 of the slates minus that of every single source, and of recent popularity: the lower bound must be above
    it. 0: slates must be shown to be better; -1: it is not asked; null: slates must not be shown to be worse, which is
    when the upper bound is below 0."""
    max_ndcg_drop: float = Field(default=0.01, ge=0.0, le=1.0)
    """nDCG@10 of the champion's slates minus that of the candidate's may be at most this, by its upper bound."""
    max_short: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of slates that may hold fewer items than were asked for."""


def measure_slates(
    folder: Path, confidence: float, rounds: int, seed: int, champion: Path | None = None
) -> SlateMeasures | None:
    """Return the numbers of the slates in a folder; None when they were not evaluated or cannot be read.

    Args:
        folder: Of `slates.json`.
        confidence: Level of the intervals.
        rounds: Resamples of users.
        seed: Of the resamples.
        champion: Folder of the champion's slates, of the same users.
    """
    found = _read(folder)
    if found is None:
        return None
    evaluation, per_user = found
    lists = {one.name: one for one in evaluation.lists}

    def numbers(name: str) -> StageNumbers:
        rows = per_user.filter(pl.col("list") == name)
        return stage_numbers(lists[name], rows, confidence, rounds, seed, name)

    def lead(of_other: pl.DataFrame) -> Interval | None:
        pairs = _ndcg(per_user, ORDERING).join(of_other, on=USER, suffix="_other", nulls_equal=True)
        gaps = (pairs["ndcg_at_10"] - pairs["ndcg_at_10_other"]).to_numpy()
        return bootstrap_mean(gaps, confidence, rounds, seed) if len(gaps) >= FEWEST_CLUSTERS else None

    others = [name for name in lists if name not in {*STAGES, ALL, BEST}]
    theirs = _read(champion) if champion is not None else None
    return SlateMeasures(
        evaluation=evaluation,
        stages=tuple(numbers(name) for name in STAGES),
        leads={name: one for name in others if (one := lead(_ndcg(per_user, name))) is not None},
        best_possible=numbers(BEST) if BEST in lists else None,
        champion=lead(_ndcg(theirs[1], ORDERING)) if theirs is not None else None,
    )


def slates_gate(measures: SlateMeasures | None, limits: SlateLimits, champion: Champion | None = None) -> GateResult:
    """Hold when a slate breaks a rule, too many are short, or slates are not as good as what they have to beat.

    Args:
        measures: What was measured; None when nothing was.
        limits: What is asked.
        champion: Who serves now; None: nobody, or nobody looked, which is another gate's word.
    """
    if measures is None:
        return GateResult.of("slates", ["no slates were evaluated; retrieval is declared"], "")
    found, failures = measures.evaluation, []
    if found.broken:
        failures.append(f"{found.broken} of {found.users} slates break a rule, such as: {'; '.join(found.examples)}")
    failures += _simulated(found.simulated)
    if found.short > limits.max_short * found.users:
        failures.append(
            f"{found.short} of {found.users} slates hold fewer than {found.places} items > {limits.max_short:.2%}"
            " (max_short); declare filters.fallback, or more retrieval.candidates"
        )
    ndcg = measures.final.ndcg_at_10
    if ndcg is None:
        failures.append(f"nDCG@10 cannot be measured: {found.users} users, wanted {FEWEST_CLUSTERS} or more")
    failures += _not_ahead(measures, limits)
    if champion is not None and champion.version and champion.problem:
        # A champion that serves no slates has none to compare with; one that could not be scored may have.
        failures.append(f"the champion's slates, version {champion.version}, were not made: {champion.problem}")
    if measures.champion is not None and measures.champion.low < -limits.max_ndcg_drop:
        failures.append(
            f"nDCG@10 {measures.champion.low:+.4f} < {-limits.max_ndcg_drop:.4f} against the champion's slates"
            " (max_ndcg_drop; lower bound)"
        )
    simulated = f" and {found.simulated.requests} simulated requests" if found.simulated else ""
    passes = f"nDCG@10 {ndcg.value if ndcg else 0:.4f} of {found.users} slates; none of them{simulated} breaks a rule"
    numbers = {
        "ndcg_at_10": ndcg.model_dump() if ndcg else None,
        "leads": {name: one.model_dump() for name, one in measures.leads.items()},
        "champion": measures.champion.model_dump() if measures.champion else None,
    }
    return GateResult.of("slates", failures, passes, **numbers, **limits.model_dump())


def _simulated(found: SimulatedRequests | None) -> list[str]:
    if found is None:
        return ["no requests were simulated, so it is not known whether slates of other users break a rule"]
    if found.empty == found.requests:
        return [f"filters leave no item for any of {found.requests} simulated requests"]
    how_many = f"{found.broken} of {found.requests} simulated requests break a rule, such as: " if found.broken else ""
    return [how_many + "; ".join(found.examples)] if found.examples else []


def _not_ahead(measures: SlateMeasures, limits: SlateLimits) -> list[str]:
    asked = limits.min_ndcg_lead
    if asked is None:
        return [
            f"nDCG@10 {lead.high:+.4f} < 0 against {name.replace('_', ' ')} alone (upper bound): slates are shown to be"
            " worse; change ordering.value, or declare min_ndcg_lead"
            for name, lead in measures.leads.items()
            if lead.high < 0
        ]
    return [
        f"nDCG@10 {lead.low:+.4f} <= {asked:.4f} against {name.replace('_', ' ')} alone (min_ndcg_lead; lower bound)"
        for name, lead in measures.leads.items()
        if lead.low <= asked
    ]


def _read(folder: Path) -> tuple[SlatesEvaluation, pl.DataFrame] | None:
    try:
        evaluation = SlatesEvaluation.model_validate(read_json(folder / SLATES_FILE))
    except (IntegrityError, ValidationError):
        return None
    path = folder / PER_USER
    return (evaluation, pl.read_parquet(path)) if path.is_file() else None


def _ndcg(per_user: pl.DataFrame, name: str) -> pl.DataFrame:
    return per_user.filter(pl.col("list") == name).select(USER, "ndcg_at_10")
