"""The run for programs: `summary.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from shortlist.evaluation.embeddings import EmbeddingNumbers
from shortlist.evaluation.gate_report import GateReport
from shortlist.evaluation.records import ConfidenceInterval, Measures, Metric, Record, Scores
from shortlist.evaluation.retrieval import RetrievalMeasures, StageNumbers
from shortlist.evaluation.slates import FILTERING, SlateMeasures
from shortlist.storage.artefacts import write_json

Count = int | None


class Rows(Record):
    """Rows at every stage; null where the run stopped before it."""

    raw: Count = Field(ge=0)
    valid: Count = Field(ge=0)
    quarantined: Count = Field(ge=0)
    train: Count = Field(ge=0)
    validation: Count = Field(ge=0)
    test: Count = Field(ge=0)
    collected: Count = Field(default=None, ge=0)
    """Valid rows that were collected from live traffic; they are among `valid`."""


class ModelNumbers(Record):
    """One model, baselines included, on the test rows; null where it could not be measured."""

    auc: float | None = Field(ge=0, le=1)
    log_loss: float | None = Field(ge=0)
    auc_low: float | None = Field(ge=0, le=1)
    auc_high: float | None = Field(ge=0, le=1)
    train_rows_per_s: float | None = Field(ge=0)
    """Null for the champion, which was not trained in this run."""
    kind: str = ""
    """Kind of model; empty where it is not known."""
    role: str = "candidate"
    """candidate, baseline or champion."""
    gauc: float | None = Field(default=None, ge=0, le=1)
    """AUC within each user, weighted by the user's rows; null where the log names no users, or too few of them have
    rows of both classes. The same for the next five."""
    gauc_low: float | None = Field(default=None, ge=0, le=1)
    gauc_high: float | None = Field(default=None, ge=0, le=1)
    ndcg_at_10: float | None = Field(default=None, ge=0, le=1)
    """Mean over lists, a user's rows of a day."""
    ndcg_at_10_low: float | None = Field(default=None, ge=0, le=1)
    ndcg_at_10_high: float | None = Field(default=None, ge=0, le=1)
    ranked_users: int | None = Field(default=None, ge=0)
    """Users that GAUC counts."""
    one_class_users: int | None = Field(default=None, ge=0)
    """Users that it leaves out, because all their labels are equal."""
    validation_gauc: float | None = Field(default=None, ge=0, le=1)
    """On validation rows that the scoring model had not learnt."""
    validation_auc: float | None = Field(default=None, ge=0, le=1)
    """On the validation days, as training recorded it; models are tuned and chosen by these days."""
    validation_log_loss: float | None = Field(default=None, ge=0)
    """Likewise; of the candidates that pass every gate, the one with the lowest is blessed."""


class LabelNumbers(Record):
    """One model's score of a further label, on the test rows; null where it could not be measured."""

    model: str
    label: str
    auc: float | None = Field(ge=0, le=1)
    auc_low: float | None = Field(ge=0, le=1)
    auc_high: float | None = Field(ge=0, le=1)
    log_loss: float | None = Field(ge=0)
    gauc: float | None = Field(ge=0, le=1)
    label_rate: float | None = Field(ge=0, le=1)
    mean_score: float | None = Field(ge=0, le=1)
    calibration_error: float | None = Field(ge=0)
    best_possible: Scores | None = None
    """Of a generated log whose truth about this label is known."""


class GateLine(Record):
    """The word of one gate on one candidate."""

    name: str
    passed: bool
    reason: str
    model: str
    """The candidate."""


class BlessedVersion(Record):
    """The model that may ship."""

    model: str
    version: str


class EngineNumbers(Record):
    """What queries and training ran on."""

    name: Literal["cpu", "gpu"]
    reason: str = ""
    """Why `engine: auto` took the CPU."""
    device: str = ""
    driver: str = ""
    device_mib: int | None = Field(default=None, ge=0)
    """Memory of the device."""
    executor: str = ""
    """single, ray or dask; empty where nothing was queried."""
    queries: int = Field(default=0, ge=0)
    """Queries that cuDF ran."""
    on_cpu: dict[str, int] = Field(default_factory=dict)
    """How often an operation ran on the CPU although the engine is a GPU, by operation."""


class StepNumbers(Record):
    """One step of the run."""

    seconds: float = Field(ge=0)
    cached: bool
    peak_mib: float | None = Field(ge=0)
    """Null for a step that was reused."""
    engine: EngineNumbers | None = None
    """Null for a step that has no use for one."""


class StageLine(Record):
    """A stage, on the users of the test days; a number is null where too few users were measured."""

    stage: str
    """`retrieval`, `filtering`, `scoring` and `ordering`, the last of which users would see; or `best_possible`, the
    list of a generated world's own truth."""
    source: str | None
    """One source of the stage; null for all together."""
    model: str | None = None
    """The candidate that scored: the blessed one, else the first one; null for a stage before."""
    items: float = Field(ge=0)
    """Candidates per user, the mean."""
    recall: float | None = Field(ge=0, le=1)
    """Share of the items that a user took on the test days that were candidates."""
    recall_low: float | None = Field(default=None, ge=0, le=1)
    recall_high: float | None = Field(default=None, ge=0, le=1)
    ndcg_at_10: float | None = Field(ge=0, le=1)
    hit_rate_at_10: float | None = Field(ge=0, le=1)
    reciprocal_rank: float | None = Field(default=None, ge=0, le=1)
    novelty: float | None = None
    """Mean self-information of the first ten candidates, in bits."""
    coverage: float = Field(ge=0, le=1)
    """Share of the catalogue that was some user's candidate."""
    index_recall: float | None = Field(default=None, ge=0, le=1)
    """Share of the exact answers that an approximate index found; null where the search is exact."""
    diversity: float | None = None
    """Mean of 1 - likeness over the pairs of the first ten; null where it was not measured."""


class BestPossible(Scores):
    """Of a generated log: what its own truth reaches on the test days."""

    ndcg_at_10: float | None = None
    """Of the items that each user takes most often in expectation, whoever shows them; null without `retrieval`."""
    recall: float | None = None
    """Of as many of them as there are candidates."""


class Failure(Record):
    """Where and why the run stopped."""

    step: str
    message: str


class Summary(Record):
    """A run. Names may be added in later versions; none moves or changes its meaning."""

    spec: str
    """Name of the spec."""
    rows: Rows
    best_possible: BestPossible | None
    """Of a generated log: what the planted probabilities themselves reach on the test rows."""
    models: dict[str, ModelNumbers]
    """By declared name; `champion` is the serving model on this run's rows."""
    metric: Metric | None = None
    """What decides; null for a run that stopped before the gates."""
    notice: str = ""
    """What a reader must know before the figures: which candidates are no better than a baseline. Empty when all
    are."""
    gates: tuple[GateLine, ...]
    blessed: BlessedVersion | None
    reasons: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Per candidate: what holds it, or why it was or was not chosen among those that pass."""
    steps: dict[str, StepNumbers]
    failed: Failure | None = None
    embeddings: EmbeddingNumbers | None = None
    """Of the first of `embeddings_by_model`; null where there is none."""
    embeddings_by_model: dict[str, EmbeddingNumbers] = Field(default_factory=dict)
    """Of every network with hashed features, or with a table larger than its device."""
    engine: EngineNumbers | None = None
    """Of all steps together: a GPU where one of them used it."""
    labels: tuple[LabelNumbers, ...] = ()
    """Scores of further labels; empty where no model gives any."""
    stages: tuple[StageLine, ...] = ()
    """What each stage of a recommendation leaves; empty where the spec declares no retrieval."""


def model_numbers(measures: Measures, kind: str, record: Mapping[str, Any] | None) -> ModelNumbers:
    """Return a model's line of the summary.

    Args:
        measures: Its numbers on the test rows.
        kind: Its kind; empty where it is not known.
        record: Its `model.json`; None for a model that was not trained in this run.
    """
    kept = best_line((record or {}).get("history") or ())
    return ModelNumbers(
        auc=measures.auc.value if measures.auc else None,
        log_loss=measures.log_loss.value if measures.log_loss else None,
        auc_low=measures.auc.low if measures.auc else None,
        auc_high=measures.auc.high if measures.auc else None,
        **_ends("gauc", measures.gauc),
        **_ends("ndcg_at_10", measures.ndcg_at_10),
        ranked_users=measures.ranked_users,
        one_class_users=measures.one_class_users,
        validation_gauc=measures.validation_gauc,
        train_rows_per_s=record["train_rows_per_s"] if record else None,
        kind=kind,
        role=measures.role,
        validation_auc=kept.get("validation_auc"),
        validation_log_loss=kept.get("validation_log_loss"),
    )


def label_numbers(measures: Iterable[Measures]) -> tuple[LabelNumbers, ...]:
    """Return a line per model and further label."""
    return tuple(
        LabelNumbers(
            model=one.model, label=name, **_ends("auc", head.auc), log_loss=_value(head.log_loss),
            gauc=_value(head.gauc), label_rate=head.label_rate, mean_score=head.mean_score,
            calibration_error=head.calibration_error, best_possible=head.best_possible,
        )
        for one in measures for name, head in one.labels.items()
    )  # fmt: skip


def _ends(name: str, found: ConfidenceInterval | None) -> dict[str, float | None]:
    ends = (found.value, found.low, found.high) if found else (None, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))


def best_line(history: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the line of a training's history with the lowest validation log loss, which was kept; empty without one.

    >>> best_line([{"epoch": 1, "validation_log_loss": 0.5}, {"epoch": 2, "validation_log_loss": 0.6}])["epoch"]
    1
    """
    measured = [line for line in history if line.get("validation_log_loss") is not None]
    return min(measured, key=lambda line: float(line["validation_log_loss"]), default={})


def engine_of_all(engines: Iterable[EngineNumbers | None]) -> EngineNumbers | None:
    """Return the engine of a run, with the figures of its steps added up."""
    used = sorted(filter(None, engines), key=lambda one: (one.name == "gpu", bool(one.executor)))
    if not used:
        return None
    on_cpu = sum((Counter(one.on_cpu) for one in used), Counter[str]())
    return used[-1].model_copy(update={"queries": sum(one.queries for one in used), "on_cpu": dict(on_cpu)})


def stage_lines(
    measures: RetrievalMeasures | None, slates: tuple[str, SlateMeasures] | None = None
) -> tuple[StageLine, ...]:
    """Return a line per source, for all together, for every later stage, and the best possible of a generated log.

    Args:
        measures: Of retrieval; None where nothing is declared.
        slates: Name of a candidate and what was measured of its slates; None where none were made.
    """
    if measures is None:
        return ()
    model, later = (slates[0], slates[1].stages) if slates else (None, ())
    best = measures.best_possible
    return (
        *(_stage_line(one) for one in measures.stages),
        *(_stage_line(one, None if one.stage == FILTERING else model) for one in later),
        *([_stage_line(best.model_copy(update={"stage": "best_possible"}))] if best else []),
    )


def _stage_line(one: StageNumbers, model: str | None = None) -> StageLine:
    return StageLine(
        stage=one.stage,
        source=one.source,
        model=model,
        items=one.items,
        **_ends("recall", one.recall),
        **{name: _value(getattr(one, name)) for name in ("ndcg_at_10", "hit_rate_at_10", "reciprocal_rank")},
        novelty=one.novelty,
        coverage=one.coverage,
        index_recall=one.index_recall,
        diversity=one.diversity,
    )


def best_possible_of(scores: Scores | None, measures: RetrievalMeasures | None) -> BestPossible | None:
    """Return what a generated log's own truth reaches; None for a real one."""
    if scores is None:
        return None
    best = measures.best_possible if measures else None
    found = {"ndcg_at_10": _value(best.ndcg_at_10), "recall": _value(best.recall)} if best else {}
    return BestPossible(**scores.model_dump(), **found)


def _value(found: ConfidenceInterval | None) -> float | None:
    return found.value if found else None


def gate_lines(reports: tuple[GateReport, ...]) -> tuple[GateLine, ...]:
    """Return every gate's word on every candidate."""
    return tuple(
        GateLine(name=gate.name, passed=gate.passed, reason=gate.reason, model=report.model)
        for report in reports
        for gate in report.gates
    )


def write_summary(path: Path, summary: Summary) -> None:
    """Write `summary.json` whole or not at all."""
    write_json(path, summary.model_dump(mode="json"))
