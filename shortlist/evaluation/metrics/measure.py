"""Measures of one model on the test rows, or the reason why there are none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from shortlist.contracts import Columns, Files
from shortlist.evaluation.metrics.calibration import calibration_bins, calibration_error, calibration_noise
from shortlist.evaluation.metrics.intervals import (
    Resampled,
    bootstrap_differences,
    constant_rate_gap,
    paired_differences,
    resample_with_rate,
)
from shortlist.evaluation.metrics.pointwise import UnmeasurableError, auc, log_loss, roc_points, score_histogram
from shortlist.evaluation.metrics.ranking import auc_per_group, gauc
from shortlist.evaluation.metrics.records import (
    Curves,
    Measures,
    Metric,
    PairedComparison,
    Role,
    Scores,
    TrainingOnlyEffect,
    UserShare,
)
from shortlist.evaluation.metrics.scores import (
    ScoredRows,
    check_same_rows,
    further_labels,
    read_scores,
    select_common_rows,
)
from shortlist.spec.gates import Gates
from shortlist.storage.artefacts import read_json

_SEED: Final = 1
"""Seed of the resamples of rows that two models have in common."""


def scores_file(scores: Path) -> Path:
    """Return the scores file in the folder that a training step wrote (or the path itself, if it is that file)."""
    return scores if scores.suffix == ".parquet" else scores / Files.SCORES


@dataclass(frozen=True)
class ScoredModel:
    """A model's scored test rows and its measures on them; the rows of several models are not in memory at once."""

    measures: Measures
    read_rows: Callable[[], ScoredRows] | None
    """Reads the rows; None when they cannot be read."""
    digest: str = ""
    """See `ScoredRows.digest`."""
    resampled: Mapping[Metric, Resampled] = field(default_factory=dict)
    """Resampled metrics; empty when nothing can be measured."""
    labels: Mapping[str, ScoredModel] = field(default_factory=dict)
    """Test rows and measures of its further labels, by label."""
    is_partial: bool = False
    """Whether it was scored on some of the test rows only, and is compared on those."""


HEAVY_USER_SHARE: Final = 0.03
"""Share of the rows above which a user is named."""
FEWEST_RANKED_USERS: Final = 100
"""Fewest users with rows of both classes with which GAUC decides, where the spec declares no deciding metric."""


def deciding_metric(limits: Gates, measures: Measures) -> Metric:
    """Return the metric by which candidates are judged and chosen.

    Args:
        limits: The gates' section, which may declare it.
        measures: Measures of any model on the test rows; labels and users are the same for all.
    """
    if limits.metric is not None:
        return limits.metric
    return "gauc" if measures.gauc and (measures.ranked_users or 0) >= FEWEST_RANKED_USERS else "auc"


def compare(candidate: ScoredModel, reference: ScoredModel, limits: Gates) -> PairedComparison:
    """Return the paired comparison of two models, or the reason why they cannot be compared."""
    name = reference.measures.model
    if candidate.read_rows is None or reference.read_rows is None:
        return PairedComparison(reference=name, problem=candidate.measures.problem or reference.measures.problem)
    try:
        if reference.is_partial:
            common_rows = select_common_rows(candidate.read_rows(), reference.read_rows())
            rounds, problem_text = limits.bootstrap_rounds, candidate.measures.problem
            partial_differences = bootstrap_differences(*common_rows, limits.confidence, rounds, _SEED)
            return PairedComparison(reference=name, differences=partial_differences, problem=problem_text)
        if candidate.digest != reference.digest:
            check_same_rows(candidate.read_rows(), reference.read_rows())
    except UnmeasurableError as problem:
        return PairedComparison(reference=name, problem=str(problem))
    metric_differences = paired_differences(
        candidate.resampled, reference.resampled, limits.confidence, candidate.measures.rows
    )
    return PairedComparison(
        reference=name, differences=metric_differences, problem=candidate.measures.problem or reference.measures.problem
    )


def measure_common_rows(scored: ScoredModel, model: ScoredModel, limits: Gates, seed: int) -> ScoredModel:
    """Return a model's measures on the rows that another model has scored too, with that model's labels and users.

    Args:
        scored: The model that was scored on a log as it was declared earlier.
        model: A model that was scored on the log as it is declared now.
        limits: Fewest test rows, confidence level and bootstrap rounds.
        seed: Seed of the bootstrap.
    """
    name, role = scored.measures.model, scored.measures.role
    if scored.read_rows is None or model.read_rows is None:
        return scored
    try:
        _, rows = select_common_rows(model.read_rows(), scored.read_rows())
        if rows.rows < limits.min_test_rows:
            raise UnmeasurableError(
                f"only {rows.rows} test rows are valid as the log was declared then and now; min_test_rows is"
                f" {limits.min_test_rows}"
            )
    except UnmeasurableError as problem:
        return ScoredModel(Measures(model=name, role=role, problem=str(problem)), None)
    return replace(measure_rows(name, role, rows, limits, seed), is_partial=True)


def measure(model: str, role: Role, scores: Path, limits: Gates, seed: int) -> ScoredModel:
    """Return a model's test rows and its measures on them; `problem` says why measures are missing.

    Args:
        model: Name of the model in the run.
        role: Role of the model in the run.
        scores: Scores that its training step wrote.
        limits: Confidence level and bootstrap rounds.
        seed: Seed of the bootstrap.
    """
    scored = _measure_label(model, role, scores, "", limits, seed)
    if scored.read_rows is None:
        return scored
    labels = {name: _measure_label(model, role, scores, name, limits, seed)
              for name in further_labels(scores_file(scores))}  # fmt: skip
    measured = {
        "validation_gauc": validation_gauc(scores),
        "training_only": _read_training_only_effects(scores_file(scores).with_name(Files.TRAINING_ONLY)),
        "labels": {
            name: label_scored.measures.model_copy(update={"curves": None}) for name, label_scored in labels.items()
        },
    }
    return replace(scored, measures=scored.measures.model_copy(update=measured), labels=labels)


def _read_training_only_effects(path: Path) -> tuple[TrainingOnlyEffect, ...]:
    effects = read_json(path)["effects"] if path.is_file() else ()
    return tuple(TrainingOnlyEffect.model_validate(effect) for effect in effects)


def _measure_label(model: str, role: Role, scores: Path, label: str, limits: Gates, seed: int) -> ScoredModel:
    """Return a model's measures on a label; empty: the main label."""
    read_rows = partial(read_scores, scores_file(scores), "test", label)
    try:
        rows = read_rows()
    except UnmeasurableError as problem:
        return ScoredModel(Measures(model=model, role=role, problem=str(problem)), None)
    digest, rows = rows.digest, rows.without_impressions()
    scored = replace(_measure(model, role, rows, limits, seed), read_rows=read_rows, digest=digest)
    best = best_possible(rows) if label else None
    return replace(scored, measures=scored.measures.model_copy(update={"best_possible": best}))


def validation_gauc(scores: Path) -> float | None:
    """Return the GAUC of validation rows that the model has not learnt; None where there are none, or no users."""
    file = scores_file(scores)
    if not file.is_file() or Columns.USER not in pl.read_parquet_schema(file):
        return None
    try:
        rows = read_scores(file, "validation")
    except UnmeasurableError:
        return None
    if rows.users is None or rows.learnt:
        return None
    return gauc(rows.labels, rows.scores, rows.users, rows.weights)


def measure_rows(model: str, role: Role, rows: ScoredRows, limits: Gates, seed: int) -> ScoredModel:
    """Return a model's measures on rows that were read."""
    scored = _measure(model, role, rows.without_impressions(), limits, seed)
    return replace(scored, read_rows=lambda: rows, digest=rows.digest)


def _measure(model: str, role: Role, rows: ScoredRows, limits: Gates, seed: int) -> ScoredModel:
    """Return a model's measures, without the rows themselves and their digest."""
    measures = Measures(
        model=model,
        role=role,
        rows=rows.rows,
        positives=rows.positives,
        mean_score=rows.mean_score,
        label_rate=float(np.average(rows.stored_labels, weights=rows.weights)),
    )
    try:
        resampled, label_rate = resample_with_rate(rows, limits.bootstrap_rounds, seed)
    except UnmeasurableError as problem:
        return ScoredModel(measures.model_copy(update={"problem": str(problem)}), None)
    curves = _curves(rows, limits.confidence)
    numbers: dict[str, Any] = {
        **{metric: resampled_metric.interval(limits.confidence) for metric, resampled_metric in resampled.items()},
        **_ranked_users(rows),
        "constant_rate_gap": constant_rate_gap(resampled["log_loss"], label_rate, limits.confidence),
        "heavy_users": _find_heavy_users(rows),
        "calibration_error": calibration_error(curves.calibration),
        "calibration_noise": calibration_noise(curves.calibration),
        "curves": curves,
    }
    return ScoredModel(measures.model_copy(update=numbers), None, resampled=resampled)


def _ranked_users(rows: ScoredRows) -> dict[str, int]:
    """Return the numbers of users that GAUC counts and leaves out; empty where the log names no users."""
    if rows.users is None:
        return {}
    by_user = auc_per_group(rows.labels, rows.scores, rows.users)
    return {"ranked_users": by_user.groups.size, "one_class_users": by_user.one_class}


def _find_heavy_users(rows: ScoredRows) -> tuple[UserShare, ...]:
    if rows.users is None:
        return ()
    shares = (
        rows.frame.filter(pl.col(Columns.USER).is_not_null())
        .group_by(Columns.USER)
        .agg((pl.len() / rows.rows).alias("share"), pl.col(Columns.LABEL).mean().alias("label_rate"))
        .filter(pl.col("share") > HEAVY_USER_SHARE)
        .sort("share", descending=True)
    )
    return tuple(UserShare(user=str(user), share=share, label_rate=rate) for user, share, rate in shares.rows())


def best_possible(rows: ScoredRows) -> Scores | None:
    """Return AUC and log loss of the planted probabilities, which no model can beat; None for a real log.

    Also None when the rows are of one class, where no AUC exists, and when some rows were collected from live traffic,
    whose planted probabilities are unknown.
    """
    if Columns.BEST not in rows.frame.columns or rows.positives in (0, rows.rows):
        return None
    if rows.frame[Columns.BEST].null_count():
        return None
    planted = rows.frame[Columns.BEST].cast(pl.Float64).to_numpy()
    return Scores(auc=auc(rows.labels, planted), log_loss=log_loss(rows.labels, planted))


def _curves(rows: ScoredRows, confidence: float) -> Curves:
    labels, scores = rows.stored_labels, rows.stored_scores
    edges, shares = score_histogram(scores)
    return Curves(
        roc=tuple(roc_points(labels, scores)),
        calibration=calibration_bins(labels, scores, confidence),
        histogram_edges=tuple(edges),
        histogram_shares=tuple(shares),
    )
