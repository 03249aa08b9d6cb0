"""Every number of one model on the test rows, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from shortlist.contracts import Columns, Files
from shortlist.evaluation.calibration import calibration_bins, calibration_error, calibration_noise
from shortlist.evaluation.intervals import Resampled, differences, resample
from shortlist.evaluation.metrics import UnmeasurableError, auc, log_loss, roc_points, score_histogram
from shortlist.evaluation.ranking import auc_per_group, gauc
from shortlist.evaluation.records import Comparison, Curves, Measures, Metric, Role, Scores, TrainingOnlyEffect
from shortlist.evaluation.scores import ScoredRows, check_same_rows, further_labels, read_scores
from shortlist.spec.gates import Gates
from shortlist.storage.artefacts import read_json


def scores_file(scores: Path) -> Path:
    """Return the scores file in the folder a training step wrote (or the path itself, if it is that file)."""
    return scores if scores.suffix == ".parquet" else scores / Files.SCORES


@dataclass(frozen=True)
class Scored:
    """A model's test rows and numbers; no rows when they cannot be read."""

    measures: Measures
    rows: ScoredRows | None
    resampled: Mapping[Metric, Resampled] = field(default_factory=dict)
    """Empty when nothing can be measured."""
    labels: Mapping[str, Scored] = field(default_factory=dict)
    """The same of its further labels, by name."""


FEWEST_RANKED_USERS: Final = 100
"""Users with rows of both classes from which on GAUC decides where the spec does not say what does."""


def deciding_metric(limits: Gates, measures: Measures) -> Metric:
    """Return the metric by which candidates are judged and chosen.

    Args:
        limits: What is declared.
        measures: Of any model on the test rows; labels and users are the same for all.
    """
    if limits.metric is not None:
        return limits.metric
    return "gauc" if measures.gauc and (measures.ranked_users or 0) >= FEWEST_RANKED_USERS else "auc"


def compare(candidate: Scored, reference: Scored, limits: Gates) -> Comparison:
    """Return the differences of two models that were measured alike, or why there are none."""
    name = reference.measures.model
    if candidate.rows is None or reference.rows is None:
        return Comparison(reference=name, problem=candidate.measures.problem or reference.measures.problem)
    try:
        check_same_rows(candidate.rows, reference.rows)
    except UnmeasurableError as problem:
        return Comparison(reference=name, problem=str(problem))
    found = differences(candidate.resampled, reference.resampled, limits.confidence, candidate.rows.rows)
    return Comparison(
        reference=name, differences=found, problem=candidate.measures.problem or reference.measures.problem
    )


def measure(model: str, role: Role, scores: Path, limits: Gates, seed: int) -> Scored:
    """Return a model's test rows and its numbers on them, whose `problem` says why when they cannot be had.

    Args:
        model: Its name in the run.
        role: What it is in the run.
        scores: What its training step wrote.
        limits: Confidence level and bootstrap rounds.
        seed: Seed of the bootstrap.
    """
    try:
        rows = read_scores(scores_file(scores), "test")
    except UnmeasurableError as problem:
        return Scored(Measures(model=model, role=role, problem=str(problem)), None)
    found = measure_rows(model, role, rows, limits, seed)
    labels = {name: _measure_label(model, role, scores, name, limits, seed)
              for name in further_labels(scores_file(scores))}  # fmt: skip
    measured = {
        "validation_gauc": validation_gauc(scores),
        "training_only": _effects(scores_file(scores).with_name(Files.TRAINING_ONLY)),
        "labels": {name: one.measures.model_copy(update={"curves": None}) for name, one in labels.items()},
    }
    return replace(found, measures=found.measures.model_copy(update=measured), labels=labels)


def _effects(path: Path) -> tuple[TrainingOnlyEffect, ...]:
    effects = read_json(path)["effects"] if path.is_file() else ()
    return tuple(TrainingOnlyEffect.model_validate(one) for one in effects)


def _measure_label(model: str, role: Role, scores: Path, label: str, limits: Gates, seed: int) -> Scored:
    try:
        rows = read_scores(scores_file(scores), "test", label)
    except UnmeasurableError as problem:
        return Scored(Measures(model=model, role=role, problem=str(problem)), None)
    found = measure_rows(model, role, rows, limits, seed)
    return replace(found, measures=found.measures.model_copy(update={"best_possible": best_possible(rows)}))


def validation_gauc(scores: Path) -> float | None:
    """Return the GAUC of validation rows that the model had not learnt; None where there are none, or no users."""
    try:
        rows = read_scores(scores_file(scores), "validation")
    except UnmeasurableError:
        return None
    if rows.users is None or rows.learnt:
        return None
    return gauc(rows.labels, rows.scores, rows.users, rows.weights)


def measure_rows(model: str, role: Role, rows: ScoredRows, limits: Gates, seed: int) -> Scored:
    """Return a model's numbers on rows that are read already."""
    counted = Measures(
        model=model,
        role=role,
        rows=rows.rows,
        positives=rows.positives,
        mean_score=float(np.average(rows.scores, weights=rows.weights)),
        label_rate=float(np.average(rows.labels, weights=rows.weights)),
    )
    try:
        resampled = resample(rows, limits.bootstrap_rounds, seed)
    except UnmeasurableError as problem:
        return Scored(counted.model_copy(update={"problem": str(problem)}), rows)
    curves = _curves(rows, limits.confidence)
    found: dict[str, Any] = {
        **{metric: one.interval(limits.confidence) for metric, one in resampled.items()},
        **_ranked_users(rows),
        "calibration_error": calibration_error(curves.calibration),
        "calibration_noise": calibration_noise(curves.calibration),
        "curves": curves,
    }
    return Scored(counted.model_copy(update=found), rows, resampled)


def _ranked_users(rows: ScoredRows) -> dict[str, int]:
    """Return how many users GAUC counts, and how many it leaves out; nothing where the log names none."""
    if rows.users is None:
        return {}
    by_user = auc_per_group(rows.labels, rows.scores, rows.users)
    return {"ranked_users": by_user.groups.size, "one_class_users": by_user.one_class}


def best_possible(rows: ScoredRows) -> Scores | None:
    """Return AUC and log loss of the planted probabilities, which no model can beat; None for a real log.

    None as well when the rows are of one class: the gates say so, and a best AUC does not exist. Nor are planted
    probabilities known of rows that were collected from live traffic.
    """
    if Columns.BEST not in rows.frame.columns or rows.positives in (0, rows.rows):
        return None
    if rows.frame[Columns.BEST].null_count():
        return None
    planted = rows.frame[Columns.BEST].cast(pl.Float64).to_numpy()
    return Scores(auc=auc(rows.labels, planted), log_loss=log_loss(rows.labels, planted))


def _curves(rows: ScoredRows, confidence: float) -> Curves:
    edges, shares = score_histogram(rows.scores)
    return Curves(
        roc=tuple(roc_points(rows.labels, rows.scores)),
        calibration=calibration_bins(rows.labels, rows.scores, confidence),
        histogram_edges=tuple(edges),
        histogram_shares=tuple(shares),
    )
