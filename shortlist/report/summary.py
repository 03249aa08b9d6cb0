"""The machine-readable summary of a run: `summary.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from shortlist.evaluation.gates.gate_report import GateReport
from shortlist.evaluation.gates.gate_result import GateCause
from shortlist.evaluation.gates.retrieval import RetrievalMeasures, StageNumbers
from shortlist.evaluation.gates.slates import FILTERING, SlateMeasures
from shortlist.evaluation.metrics.embeddings import EmbeddingNumbers
from shortlist.evaluation.metrics.records import ConfidenceInterval, Measures, Metric, Record, Scores
from shortlist.report.value_lines import RunValue
from shortlist.storage.artefacts import write_json

Count = int | None


class RowCounts(Record):
    """Number of rows at every stage; null where the run stopped before it."""

    raw: Count = Field(ge=0)
    valid: Count = Field(ge=0)
    quarantined: Count = Field(ge=0)
    train: Count = Field(ge=0)
    validation: Count = Field(ge=0)
    test: Count = Field(ge=0)
    collected: Count = Field(default=None, ge=0)
    """Number of valid rows that were collected from live traffic; they are among `valid`."""
    newest_day: str | None = None
    """Newest day of the valid rows, ISO 8601."""


class ModelNumbers(Record):
    """Numbers of one model, baselines included, on the test rows; null where it could not be measured."""

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
    rows of both classes. The next five are null in the same cases."""
    gauc_low: float | None = Field(default=None, ge=0, le=1)
    gauc_high: float | None = Field(default=None, ge=0, le=1)
    ndcg_at_10: float | None = Field(default=None, ge=0, le=1)
    """Mean nDCG@10 of lists, a user's rows of a day."""
    ndcg_at_10_low: float | None = Field(default=None, ge=0, le=1)
    ndcg_at_10_high: float | None = Field(default=None, ge=0, le=1)
    ranked_users: int | None = Field(default=None, ge=0)
    """Number of users that GAUC counts."""
    one_class_users: int | None = Field(default=None, ge=0)
    """Number of users that GAUC leaves out, because all their labels are equal."""
    validation_gauc: float | None = Field(default=None, ge=0, le=1)
    """GAUC of validation rows that the scoring model has not learnt."""
    validation_auc: float | None = Field(default=None, ge=0, le=1)
    """AUC on the validation days, as training recorded it; models are tuned and chosen by these days."""
    validation_log_loss: float | None = Field(default=None, ge=0)
    """Log loss on the validation days, as training recorded it; it decides ties between candidates that pass every
    gate."""


class LabelNumbers(Record):
    """Numbers of one model's score of a further label, on the test rows; null where it could not be measured."""

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
    """Numbers of the planted probabilities; null unless the log is generated with this label."""


class GateLine(Record):
    """Result of one gate for one candidate."""

    name: str
    passed: bool
    reason: str
    model: str
    """The candidate."""
    cause: GateCause = ""
    """Cause of the failure, where advice depends on it."""


class BlessedVersion(Record):
    """The model that may be deployed."""

    model: str
    version: str


class EngineNumbers(Record):
    """Engine of queries and training."""

    name: Literal["cpu", "gpu"]
    reason: str = ""
    """Why `engine: auto` chose the CPU."""
    device: str = ""
    driver: str = ""
    device_mib: int | None = Field(default=None, ge=0)
    """Memory of the device."""
    queries: int = Field(default=0, ge=0)
    """Number of queries that cuDF ran."""
    on_cpu: dict[str, int] = Field(default_factory=dict)
    """Number of times that an operation ran on the CPU although the engine is a GPU, by operation."""


class StepNumbers(Record):
    """Time, memory and engine of one step."""

    seconds: float = Field(ge=0)
    cached: bool
    peak_mib: float | None = Field(ge=0)
    """Peak memory of the process; null for a step from the cache."""
    engine: EngineNumbers | None = None
    """Engine of the step; null for a step without queries or training."""


class StageLine(Record):
    """Numbers of a stage, on the users of the test days; null where too few users were measured."""

    stage: str
    """`retrieval`, `filtering`, `scoring` or `ordering`, whose slates users would see."""
    source: str | None
    """Name of a source; null for all sources together."""
    model: str | None = None
    """The candidate that scored: the blessed one, or else the first; null for a stage before scoring."""
    items: float = Field(ge=0)
    """Mean number of candidates per user."""
    recall: float | None = Field(ge=0, le=1)
    """Share of the items taken by a user on the test days that were candidates."""
    recall_low: float | None = Field(default=None, ge=0, le=1)
    recall_high: float | None = Field(default=None, ge=0, le=1)
    ndcg_at_10: float | None = Field(ge=0, le=1)
    hit_rate_at_10: float | None = Field(ge=0, le=1)
    reciprocal_rank: float | None = Field(default=None, ge=0, le=1)
    novelty: float | None = None
    """Mean self-information of the first ten candidates, in bits."""
    coverage: float = Field(ge=0, le=1)
    """Share of the catalogue's items that were a candidate of some user."""
    index_recall: float | None = Field(default=None, ge=0, le=1)
    """Share of the exact answers that an approximate index finds; null where the search is exact."""
    diversity: float | None = None
    """Mean of 1 - likeness over the pairs of the first ten; null where it was not measured."""


class RunFailure(Record):
    """Where and why the run stopped."""

    step: str
    message: str


class Summary(Record):
    """Summary of a run. Later versions may add keys, but never move a key or change its meaning."""

    spec: str
    """Name of the spec."""
    rows: RowCounts
    best_possible: Scores | None
    """Numbers of the planted probabilities on the test rows; null for a real log."""
    models: dict[str, ModelNumbers]
    """Numbers of the models by declared name; `champion` is the serving model on this run's rows."""
    metric: Metric | None = None
    """The deciding metric; null for a run that stopped before the gates."""
    notice: str = ""
    """Leaks that the spec allows, and candidates that are not significantly better than a baseline, as sentences."""
    gates: tuple[GateLine, ...]
    blessed: BlessedVersion | None
    reasons: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Per candidate: messages of the gates that hold it, or why it was or was not chosen among those that pass."""
    steps: dict[str, StepNumbers]
    failed: RunFailure | None = None
    embeddings: EmbeddingNumbers | None = None
    """The first of `embeddings_by_model`; null where there is none."""
    embeddings_by_model: dict[str, EmbeddingNumbers] = Field(default_factory=dict)
    """Embedding numbers of every network with hashed features, or with a table larger than its device."""
    engine: EngineNumbers | None = None
    """Engine of all steps together: a GPU where one of them used it."""
    labels: tuple[LabelNumbers, ...] = ()
    """Numbers of the scores of further labels; empty where no model has any."""
    stages: tuple[StageLine, ...] = ()
    """Numbers of the stages of a recommendation; empty where the spec declares no retrieval."""
    value: RunValue | None = None
    """What the slates of every candidate, and the lists beside them, would earn; null where none were evaluated."""


def model_numbers(measures: Measures, kind: str, record: Mapping[str, Any] | None) -> ModelNumbers:
    """Return the summary's numbers of a model.

    Args:
        measures: Measures of the model on the test rows.
        kind: Kind of the model; empty where it is not known.
        record: Content of `model.json`; None for a model that was not trained in this run.
    """
    best_epoch = best_epoch_record((record or {}).get("history") or ())
    return ModelNumbers(
        auc=measures.auc.value if measures.auc else None,
        log_loss=measures.log_loss.value if measures.log_loss else None,
        auc_low=measures.auc.low if measures.auc else None,
        auc_high=measures.auc.high if measures.auc else None,
        **_interval_fields("gauc", measures.gauc),
        **_interval_fields("ndcg_at_10", measures.ndcg_at_10),
        ranked_users=measures.ranked_users,
        one_class_users=measures.one_class_users,
        validation_gauc=measures.validation_gauc,
        train_rows_per_s=record["train_rows_per_s"] if record else None,
        kind=kind,
        role=measures.role,
        validation_auc=best_epoch.get("validation_auc"),
        validation_log_loss=best_epoch.get("validation_log_loss"),
    )


def label_numbers(measures: Iterable[Measures]) -> tuple[LabelNumbers, ...]:
    """Return the numbers of every model and further label."""
    return tuple(
        LabelNumbers(
            model=model_measures.model, label=name, **_interval_fields("auc", head.auc),
            log_loss=_interval_value(head.log_loss), gauc=_interval_value(head.gauc), label_rate=head.label_rate,
            mean_score=head.mean_score, calibration_error=head.calibration_error, best_possible=head.best_possible,
        )
        for model_measures in measures for name, head in model_measures.labels.items()
    )  # fmt: skip


def _interval_fields(name: str, interval: ConfidenceInterval | None) -> dict[str, float | None]:
    ends = (interval.value, interval.low, interval.high) if interval else (None, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))


def best_epoch_record(history: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the epoch of a training's history with the lowest validation log loss, which was kept; empty without one.

    >>> best_epoch_record([{"epoch": 1, "validation_log_loss": 0.5}, {"epoch": 2, "validation_log_loss": 0.6}])["epoch"]
    1
    """
    measured = [line for line in history if line.get("validation_log_loss") is not None]
    return min(measured, key=lambda line: float(line["validation_log_loss"]), default={})


def combine_engines(engines: Iterable[EngineNumbers | None]) -> EngineNumbers | None:
    """Return the engine of a run, with the counts of its steps added up."""
    engines_used = sorted(filter(None, engines), key=lambda engine: (engine.name == "gpu", bool(engine.queries)))
    if not engines_used:
        return None
    on_cpu = sum((Counter(engine.on_cpu) for engine in engines_used), Counter[str]())
    return engines_used[-1].model_copy(
        update={"queries": sum(engine.queries for engine in engines_used), "on_cpu": dict(on_cpu)}
    )


def stage_lines(
    measures: RetrievalMeasures | None, slates: tuple[str, SlateMeasures] | None = None
) -> tuple[StageLine, ...]:
    """Return the numbers of every source, of all together, and of every later stage.

    Args:
        measures: Measures of the retrieval; None where none is declared.
        slates: Name of a candidate and the measures of its slates; None where none were made.
    """
    if measures is None:
        return ()
    model, later_stages = (slates[0], slates[1].stages) if slates else (None, ())
    return (
        *(_stage_line(stage) for stage in measures.stages),
        *(_stage_line(stage, None if stage.stage == FILTERING else model) for stage in later_stages),
    )


def _stage_line(stage: StageNumbers, model: str | None = None) -> StageLine:
    return StageLine(
        stage=stage.stage,
        source=stage.source,
        model=model,
        items=stage.items,
        **_interval_fields("recall", stage.recall),
        **{name: _interval_value(getattr(stage, name)) for name in ("ndcg_at_10", "hit_rate_at_10", "reciprocal_rank")},
        novelty=stage.novelty,
        coverage=stage.coverage,
        index_recall=stage.index_recall,
        diversity=stage.diversity,
    )


def _interval_value(interval: ConfidenceInterval | None) -> float | None:
    return interval.value if interval else None


def gate_lines(reports: tuple[GateReport, ...]) -> tuple[GateLine, ...]:
    """Return the result of every gate for every candidate."""
    return tuple(
        GateLine(name=gate.name, passed=gate.passed, reason=gate.reason, model=report.model, cause=gate.cause)
        for report in reports
        for gate in report.gates
    )


def write_summary(path: Path, summary: Summary) -> None:
    """Write `summary.json` whole or not at all."""
    write_json(path, summary.model_dump(mode="json"))
