"""Quality of each model version on live traffic, compared with its own test days."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import polars as pl

from monitoring.windows.kpi import ROUNDS, SCORE, measure_rates
from monitoring.windows.records import Measure, Quality
from monitoring.windows.sampling import assign_clusters
from shortlist.contracts import Columns, label_column, score_column
from shortlist.evaluation.metrics.calibration import rate_error
from shortlist.evaluation.metrics.intervals import bootstrap
from shortlist.evaluation.metrics.pointwise import UnmeasurableError, check_classes, check_scores
from shortlist.evaluation.metrics.records import ConfidenceInterval
from shortlist.evaluation.metrics.scores import ScoredRows, read_weights
from shortlist.spec.monitoring import QualityLimits

if TYPE_CHECKING:
    from monitoring.reference.reference_parts import ModelReference, ShownReference
    from monitoring.windows.records import WindowReport
    from monitoring.windows.windows import LiveWindow

Name = Literal["auc", "gauc", "log_loss", "ndcg_at_10", "rate_error", "hit_rate", "label_rate", "mean_score"]
_Scale = Mapping[Name, tuple[float | None, float | None]]
VERSION: Final = "version"
ALL: Final = "all"
FIRST_WINDOWS: Final = 3
"""Number of a version's own first windows whose mean quality its later slates are compared with."""
_LEARNT: Final[tuple[Name, ...]] = ("auc", "gauc", "log_loss", "ndcg_at_10", "label_rate")
MAX_SLICES: Final = 20
"""Most values of a column that are shown as slices, the most frequent ones."""
_HIGH_IS_BAD: Final = frozenset({"log_loss", "rate_error"})


def measure_quality(
    window: LiveWindow,
    references: Mapping[int, ModelReference],
    slices: Sequence[str],
    limits: QualityLimits,
    min_rows: int,
    seed: int = 0,
) -> tuple[Quality, ...]:
    """Return the quality of every version, over all its rows and per slice.

    Users are resampled; a measure is breached when its whole interval is past the limit. A slice is shown without a
    reference, since a model may always have been worse there; only the rate error has a limit in slices, since that
    limit is absolute. The hit rate of a slice is computed from its rows alone.

    Args:
        window: The window with its rows.
        references: Test-day quality by version.
        slices: Columns to slice by; those that the rows lack (known only after the impression) are skipped. Of each
            column the most frequent values with enough rows.
        limits: The limits of the measures.
        min_rows: Fewest rows that are measured.
        seed: Seed of the resamples.

    Returns:
        By version: all rows, then the slices by column and number of rows, then `label <name>` for each further label
        with scores, shown like a slice. Quality that cannot be measured has a problem and no measures, so it is
        neither a breach nor healthy.
    """
    measurement = _Measurement(limits, min_rows, seed)
    qualities: list[Quality] = []
    for version in sorted(window.rows[VERSION].drop_nulls().unique().to_list()):
        rows = window.rows.filter(pl.col(VERSION) == version)
        reference = references.get(version)
        if reference is None:
            qualities.append(
                _unmeasured(version, ALL, rows, "it has no reference to compare with; train again to get one")
            )
            continue
        whole = measurement.quality(version, ALL, rows, _reference_scale(reference, limits))
        qualities.append(whole)
        if whole.measures:
            parts = _iter_slices(rows, slices, min_rows)
            scale: _Scale = {} if reference.of_slates else _absolute_scale(limits)
            qualities += [measurement.quality(version, name, part, scale) for name, part in parts]
        qualities += [measurement.label_quality(version, name, rows) for name in _further_labels(rows)]
    return tuple(qualities)


def early_warnings(
    window: LiveWindow, references: Mapping[int, ModelReference], limits: QualityLimits
) -> tuple[str, ...]:
    """Return a warning for each version whose scores expect another label rate than on the test days.

    A calibrated model's mean score is the label rate that it expects. The shift from the test days must exceed the
    limit by more than chance, counting the rows of a request as one. Where many more items are scored than shown, the
    mean lies below that of the test days, which hold shown rows only: raise `max_expected_shift` there.
    """
    sentences: list[str] = []
    for (version,), rows in window.scored.group_by(VERSION, maintain_order=True):
        finite = rows.filter(pl.col(SCORE).cast(pl.Float64).is_finite())  # null is not finite
        if finite.height < rows.height:
            sentences.append(
                f"Version {version}: {rows.height - finite.height} of {rows.height} scores are no numbers."
            )
        reference = references.get(version) if isinstance(version, int) else None
        requests = window.requests * rows.height / window.scored.height
        if reference is not None:
            sentences += _shift_warnings(f"Version {version}", finite, requests, reference.mean_score, limits)
    return tuple(sorted(sentences))


def _shift_warnings(
    subject: str, rows: pl.DataFrame, requests: float, usual_score: float, limits: QualityLimits
) -> tuple[str, ...]:
    if rows.height < 2 or usual_score <= 0:
        return ()
    mean, spread, counting = _spread(rows)
    shift = mean / usual_score - 1
    chance = (
        NormalDist().inv_cdf((1 + limits.confidence) / 2) * spread / usual_score / max(requests * counting, 1.0) ** 0.5
    )
    if abs(shift) - chance <= limits.max_expected_shift:
        return ()
    return (
        f"{subject}: its scores expect a label rate of {mean:.4f}, {abs(shift):.0%}"
        f" {'above' if shift > 0 else 'below'} the {usual_score:.4f} of its test days"
        f" (limit {limits.max_expected_shift:.0%}, {rows.height} rows). The labels will show whether users or inputs"
        " changed.",
    )


def _spread(rows: pl.DataFrame) -> tuple[float, float, float]:
    """Return mean and standard deviation of the scores, and the effective share of the rows.

    The effective share is 1 with equal weights, else (Kish, 1965): (sum of weights)^2 / (rows x sum of their squares).
    """
    scores, weights = rows[SCORE].cast(pl.Float64).to_numpy(), read_weights(rows)
    if weights is None:
        return float(scores.mean()), float(scores.std(ddof=1)), 1.0
    mean = float(np.average(scores, weights=weights))
    variance = float(np.average((scores - mean) ** 2, weights=weights))
    return mean, variance**0.5, float(weights.sum() ** 2 / (weights.size * (weights**2).sum()))


@dataclass(frozen=True)
class _Measurement:
    limits: QualityLimits
    min_rows: int
    seed: int

    def quality(self, version: int, name: str, rows: pl.DataFrame, scale: _Scale) -> Quality:
        if rows.height < self.min_rows:
            return _unmeasured(version, name, rows, f"too few rows with an outcome: {rows.height} < {self.min_rows}")
        try:
            intervals = _measure(rows, self.limits, self.seed)
        except UnmeasurableError as problem:
            return _unmeasured(version, name, rows, str(problem))
        measures = tuple(
            _make_measure(name, interval, *scale.get(name, (None, None))) for name, interval in intervals.items()
        )
        return Quality(version=version, slice=name, rows=rows.height, users=_count_users(rows), measures=measures)

    def label_quality(self, version: int, label: str, rows: pl.DataFrame) -> Quality:
        """Return the quality of a further label's scores; the rate error has a limit, as in a slice."""
        role_by_column, name = {label_column(label): Columns.LABEL, score_column(label): SCORE}, f"label {label}"
        labelled = rows.drop(*role_by_column.values()).rename(role_by_column).filter(pl.col(SCORE).is_not_null())
        if labelled.height and labelled[Columns.LABEL].null_count() == labelled.height:
            return _unmeasured(version, name, labelled, "no outcome was sent with the column of this label")
        return self.quality(
            version, name, labelled.with_columns(pl.col(Columns.LABEL).fill_null(0)), _absolute_scale(self.limits)
        )


def _further_labels(rows: pl.DataFrame) -> list[str]:
    """Return the further labels that the rows of one version have scores of."""
    names = [name.removeprefix(score_column("")) for name in rows.columns if name.startswith(score_column(""))]
    measurable = (name for name in names if label_column(name) in rows.columns)
    return [name for name in measurable if rows[score_column(name)].null_count() < rows.height]


def slates_reference(
    reference: ModelReference, shown: ShownReference, reports: Sequence[WindowReport], version: int
) -> ModelReference:
    """Return what is expected of a version's live slates.

    The log's rows say little of slates: the best of many scores are too high on average, and among the best items a
    model tells fewer apart. Scores are compared with those of replayed slates, measures of quality with the version's
    own first windows, and not at all before these are over; the hit rate meanwhile with that of the log.

    Args:
        reference: Quality on the test days.
        shown: What the release would show.
        reports: Reports of earlier windows, oldest first.
        version: Number of the version.
    """
    first_windows = [
        {measure.name: measure.value for measure in quality.measures}
        for report in reports
        if report.verdict != "broken"
        for quality in report.quality
        if (quality.version, quality.slice) == (version, ALL) and quality.measures
    ][:FIRST_WINDOWS]

    def mean(name: Name) -> float | None:
        values = [window[name] for window in first_windows if name in window]
        return fmean(values) if len(values) == FIRST_WINDOWS else None

    return reference.model_copy(
        update={
            "scores": shown.scores,
            "mean_score": mean("mean_score") or shown.mean_score,
            "hit_rate": mean("hit_rate") or reference.hit_rate,
            "of_slates": True,
            **{name: mean(name) for name in _LEARNT},
        }
    )


def _reference_scale(reference: ModelReference, limits: QualityLimits) -> _Scale:
    error = None if reference.label_rate is None else rate_error(reference.mean_score, reference.label_rate)
    max_error: float | None = limits.max_rate_error
    if reference.of_slates:  # the best of many scores are too high on average
        max_error = None if error is None else error + limits.max_rate_error
    hit_rate = reference.hit_rate
    return {
        "auc": (reference.auc, _subtract_drop(reference.auc, limits.max_auc_drop)),
        "gauc": (reference.gauc, _subtract_drop(reference.gauc, limits.max_gauc_drop)),
        "ndcg_at_10": (reference.ndcg_at_10, None),
        "log_loss": (reference.log_loss, _subtract_drop(reference.log_loss, -limits.max_log_loss_increase)),
        "rate_error": (error, max_error),
        "hit_rate": (hit_rate, None if hit_rate is None else hit_rate * (1 - limits.max_kpi_drop)),
        "label_rate": (reference.label_rate, None),
        "mean_score": (reference.mean_score, None),
    }


def _subtract_drop(usual: float | None, drop: float | None) -> float | None:
    return None if usual is None or drop is None else usual - drop


def _absolute_scale(limits: QualityLimits) -> _Scale:
    return {"rate_error": (None, limits.max_rate_error)}


def _make_measure(name: Name, interval: ConfidenceInterval, usual: float | None, limit: float | None) -> Measure:
    is_breached = limit is not None and (interval.low > limit if name in _HIGH_IS_BAD else interval.high < limit)
    return Measure(
        name=name,
        value=interval.value,
        low=interval.low,
        high=interval.high,
        reference=usual,
        limit=limit,
        breached=is_breached,
    )


def _measure(rows: pl.DataFrame, limits: QualityLimits, seed: int) -> dict[Name, ConfidenceInterval]:
    labels, scores = (rows[name].cast(pl.Float64).to_numpy() for name in (Columns.LABEL, SCORE))
    check_scores(labels, scores)
    check_classes(labels)
    scored = ScoredRows(rows, labels, scores, assign_clusters(rows))
    intervals = bootstrap(scored, limits.confidence, ROUNDS, seed)
    rates = measure_rates(rows, limits.hit_rate_at, limits.confidence, seed)
    return {**{name: intervals[name] for name in intervals}, **{name: rates[name] for name in rates}}


def _iter_slices(rows: pl.DataFrame, columns: Sequence[str], min_rows: int) -> Iterator[tuple[str, pl.DataFrame]]:
    for column in columns:
        if column in rows.columns:
            values = _as_text(rows[column])
            counts = values.value_counts(sort=True, name="rows").filter(pl.col("rows") >= min_rows)
            for value in counts.sort(["rows", column], descending=[True, False])[column].head(MAX_SLICES):
                yield f"{column}={value}", rows.filter(values == value)


def _as_text(values: pl.Series) -> pl.Series:
    if isinstance(values.dtype, pl.List):
        values = values.cast(pl.List(pl.String)).list.join(",")
    return values.cast(pl.String).fill_null("(null)")


def _unmeasured(version: int, name: str, rows: pl.DataFrame, problem: str) -> Quality:
    return Quality(
        version=version, slice=name, rows=rows.height, users=_count_users(rows), measures=(), problem=problem
    )


def _count_users(rows: pl.DataFrame) -> int:
    return int(assign_clusters(rows).max(initial=-1)) + 1
