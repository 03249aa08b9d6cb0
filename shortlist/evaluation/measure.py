"""Every number of one model on the test rows, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from shortlist.contracts import Columns, Files
from shortlist.evaluation.calibration import calibration_bins, calibration_error, calibration_noise
from shortlist.evaluation.intervals import bootstrap
from shortlist.evaluation.metrics import UnmeasurableError, auc, log_loss, roc_points, score_histogram
from shortlist.evaluation.records import Curves, Measures, Role, Scores
from shortlist.evaluation.scores import ScoredRows, read_scores
from shortlist.spec.gates import Gates


def scores_file(scores: Path) -> Path:
    """Return the scores file in the folder a training step wrote (or the path itself, if it is that file)."""
    return scores if scores.suffix == ".parquet" else scores / Files.SCORES


@dataclass(frozen=True)
class Scored:
    """A model's test rows and numbers; no rows when they cannot be read."""

    measures: Measures
    rows: ScoredRows | None


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
    return Scored(measure_rows(model, role, rows, limits, seed), rows)


def measure_rows(model: str, role: Role, rows: ScoredRows, limits: Gates, seed: int) -> Measures:
    """Return a model's numbers on rows that are read already."""
    counted = Measures(
        model=model,
        role=role,
        rows=rows.rows,
        positives=rows.positives,
        mean_score=float(rows.scores.mean()),
        label_rate=float(rows.labels.mean()),
    )
    try:
        aucs, losses = bootstrap(rows, limits.confidence, limits.bootstrap_rounds, seed)
    except UnmeasurableError as problem:
        return counted.model_copy(update={"problem": str(problem)})
    curves = _curves(rows, limits.confidence)
    found = {
        "auc": aucs,
        "log_loss": losses,
        "calibration_error": calibration_error(curves.calibration),
        "calibration_noise": calibration_noise(curves.calibration),
        "curves": curves,
    }
    return counted.model_copy(update=found)


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
