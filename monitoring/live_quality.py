"""How good each model version is on live traffic, against what it was on its own test days."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import polars as pl

from monitoring.windows.kpi import ROUNDS, SCORE, measure_rates
from monitoring.windows.records import Measure, Quality
from monitoring.windows.sampling import clusters_of
from shortlist.contracts import Columns, label_column, score_column
from shortlist.evaluation.calibration import rate_error
from shortlist.evaluation.intervals import bootstrap
from shortlist.evaluation.metrics import UnmeasurableError, check_classes, check_scores
from shortlist.evaluation.records import Interval
from shortlist.evaluation.scores import ScoredRows, weights_of
from shortlist.spec.monitoring import QualityLimits

if TYPE_CHECKING:
    from monitoring.reference.reference import ModelReference
    from monitoring.windows.windows import LiveWindow

Name = Literal["auc", "gauc", "log_loss", "ndcg_at_10", "rate_error", "hit_rate", "label_rate", "mean_score"]
_Scale = Mapping[Name, tuple[float | None, float | None]]
VERSION: Final = "version"
ALL: Final = "all"
MAX_SLICES: Final = 20
"""Values of a column that are told apart, the most frequent ones."""
_HIGH_IS_BAD: Final = frozenset({"log_loss", "rate_error"})


def measure_quality(
    window: LiveWindow,
    references: Mapping[int, ModelReference],
    slices: Sequence[str],
    limits: QualityLimits,
    min_rows: int,
    seed: int = 0,
) -> tuple[Quality, ...]:
    """Return how good every version was, over all its rows and over the rows where a column has one value.

    Users are resampled; a measure is breached when its whole interval is past the limit. A slice is shown without a
    reference, for a model may always have been worse there; only the rate error, whose limit is absolute, keeps it. The
    hit rate of a slice is that of its rows alone.

    Args:
        window: With its rows.
        references: What each version was on its test days.
        slices: Columns to slice by, as far as the rows have them: one that is known only after the impression is not
            there. Of each the most frequent values with enough rows.
        limits: How much worse is too bad.
        min_rows: Fewest rows that are measured.
        seed: Of the resamples.

    Returns:
        By version: all rows, then the slices by column and number of rows, then `label <name>` for each further label
        that it gives scores of, shown like a slice. What cannot be measured has a problem and no
        measures, so it is neither a breach nor a sign of health.
    """
    measurement = _Measurement(limits, min_rows, seed)
    found: list[Quality] = []
    for version in sorted(window.rows[VERSION].drop_nulls().unique().to_list()):
        rows = window.rows.filter(pl.col(VERSION) == version)
        reference = references.get(version)
        if reference is None:
            found.append(_unmeasured(version, ALL, rows, "it has no reference to compare with; train again to get one"))
            continue
        whole = measurement.quality(version, ALL, rows, _scale(reference, limits))
        found.append(whole)
        if whole.measures:
            parts = _slices(rows, slices, min_rows)
            found += [measurement.quality(version, name, part, _absolute(limits)) for name, part in parts]
        found += [measurement.of_label(version, name, rows) for name in _further_labels(rows)]
    return tuple(found)


def warnings(window: LiveWindow, references: Mapping[int, ModelReference], limits: QualityLimits) -> tuple[str, ...]:
    """Return what the scores of all answered rows say of the labels to come: a sentence for each odd version.

    A calibrated model's mean score is the label rate that it expects. Its distance from the test days' must pass the
    limit by more than chance, as if all rows of a request were one. Where many more items are scored than shown, it
    lies below the test days', which were shown: raise `max_expected_shift` there.
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
            sentences += _shift(f"Version {version}", finite, requests, reference.mean_score, limits)
    return tuple(sorted(sentences))


def _shift(who: str, rows: pl.DataFrame, requests: float, usual: float, limits: QualityLimits) -> tuple[str, ...]:
    if rows.height < 2 or usual <= 0:
        return ()
    mean, spread, counting = _spread(rows)
    shift = mean / usual - 1
    chance = NormalDist().inv_cdf((1 + limits.confidence) / 2) * spread / usual / max(requests * counting, 1.0) ** 0.5
    if abs(shift) - chance <= limits.max_expected_shift:
        return ()
    return (
        f"{who}: its scores expect a label rate of {mean:.4f}, {abs(shift):.0%} {'above' if shift > 0 else 'below'} the"
        f" {usual:.4f} of its test days (limit {limits.max_expected_shift:.0%}, {rows.height} rows). Labels will tell"
        " whether users or inputs changed.",
    )


def _spread(rows: pl.DataFrame) -> tuple[float, float, float]:
    """Return mean and standard deviation of the scores, and the share of the rows that the mean is as sure as.

    That is 1 where all weigh the same, else less (Kish, 1965): (sum of weights)^2 / (rows x sum of their squares).
    """
    scores, weights = rows[SCORE].cast(pl.Float64).to_numpy(), weights_of(rows)
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
        measures = tuple(_held(name, interval, *scale.get(name, (None, None))) for name, interval in intervals.items())
        return Quality(version=version, slice=name, rows=rows.height, users=_users(rows), measures=measures)

    def of_label(self, version: int, label: str, rows: pl.DataFrame) -> Quality:
        """Return how good the scores of a further label are; the rate error has a limit, as in a slice."""
        own, name = {label_column(label): Columns.LABEL, score_column(label): SCORE}, f"label {label}"
        known = rows.drop(*own.values()).rename(own).filter(pl.col(SCORE).is_not_null())
        if known.height and known[Columns.LABEL].null_count() == known.height:
            return _unmeasured(version, name, known, "no outcome was sent with the column of this label")
        return self.quality(
            version, name, known.with_columns(pl.col(Columns.LABEL).fill_null(0)), _absolute(self.limits)
        )


def _further_labels(rows: pl.DataFrame) -> list[str]:
    """Return the further labels of which there are scores in rows of one version."""
    names = [name.removeprefix(score_column("")) for name in rows.columns if name.startswith(score_column(""))]
    there = (name for name in names if label_column(name) in rows.columns)
    return [name for name in there if rows[score_column(name)].null_count() < rows.height]


def _scale(usual: ModelReference, limits: QualityLimits) -> _Scale:
    return {
        "auc": (usual.auc, usual.auc - limits.max_auc_drop),
        "gauc": (usual.gauc, _below(usual.gauc, limits.max_gauc_drop)),
        "ndcg_at_10": (usual.ndcg_at_10, None),
        "log_loss": (usual.log_loss, usual.log_loss + limits.max_log_loss_increase),
        "rate_error": (rate_error(usual.mean_score, usual.label_rate), limits.max_rate_error),
        "hit_rate": (usual.hit_rate, usual.hit_rate * (1 - limits.max_kpi_drop)),
        "label_rate": (usual.label_rate, None),
        "mean_score": (usual.mean_score, None),
    }


def _below(usual: float | None, drop: float | None) -> float | None:
    return None if usual is None or drop is None else usual - drop


def _absolute(limits: QualityLimits) -> _Scale:
    return {"rate_error": (None, limits.max_rate_error)}


def _held(name: Name, got: Interval, usual: float | None, limit: float | None) -> Measure:
    past = limit is not None and (got.low > limit if name in _HIGH_IS_BAD else got.high < limit)
    return Measure(name=name, value=got.value, low=got.low, high=got.high, reference=usual, limit=limit, breached=past)


def _measure(rows: pl.DataFrame, limits: QualityLimits, seed: int) -> dict[Name, Interval]:
    labels, scores = (rows[name].cast(pl.Float64).to_numpy() for name in (Columns.LABEL, SCORE))
    check_scores(labels, scores)
    check_classes(labels)
    scored = ScoredRows(rows, labels, scores, clusters_of(rows))
    found = bootstrap(scored, limits.confidence, ROUNDS, seed)
    rates = measure_rates(rows, limits.hit_rate_at, limits.confidence, seed)
    return {**{name: found[name] for name in found}, **{name: rates[name] for name in rates}}


def _slices(rows: pl.DataFrame, columns: Sequence[str], min_rows: int) -> Iterator[tuple[str, pl.DataFrame]]:
    for column in columns:
        if column in rows.columns:
            values = _text(rows[column])
            counts = values.value_counts(sort=True, name="rows").filter(pl.col("rows") >= min_rows)
            for value in counts.sort(["rows", column], descending=[True, False])[column].head(MAX_SLICES):
                yield f"{column}={value}", rows.filter(values == value)


def _text(values: pl.Series) -> pl.Series:
    if isinstance(values.dtype, pl.List):
        values = values.cast(pl.List(pl.String)).list.join(",")
    return values.cast(pl.String).fill_null("(null)")


def _unmeasured(version: int, name: str, rows: pl.DataFrame, problem: str) -> Quality:
    return Quality(version=version, slice=name, rows=rows.height, users=_users(rows), measures=(), problem=problem)


def _users(rows: pl.DataFrame) -> int:
    return int(clusters_of(rows).max(initial=-1)) + 1
