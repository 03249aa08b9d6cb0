"""Comparison by slice: whether a model that is better overall became worse for some rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from shortlist.evaluation.metrics.intervals import bootstrap_differences, resample
from shortlist.evaluation.metrics.pointwise import UnmeasurableError
from shortlist.evaluation.metrics.records import SliceComparison
from shortlist.evaluation.metrics.scores import ScoredRows, check_same_rows
from shortlist.spec.gates import COLD_COLUMNS, Gates, SliceLimits
from shortlist.system.row_expressions import compile_expression

PREFIX = "slice_"


@dataclass(frozen=True)
class _RowSlice:
    column: str
    value: str
    mask: np.ndarray


def compare_slices(
    candidate: ScoredRows, reference: ScoredRows, limits: Gates, seed: int
) -> tuple[SliceComparison, ...]:
    """Return the comparison of a candidate with a reference for every slice of the test rows, p-values corrected.

    Slices are the most frequent values of the columns `slice_*`, cold users and cold items; and the declared
    conditions, each judged by its own limits.

    Raises:
        UnmeasurableError: The two were not scored on the same rows, or a declared slice column is missing.
    """
    check_same_rows(candidate, reference)
    comparisons = [
        _compare(row_slice, candidate, reference, limits, seed) for row_slice in _iter_slices(candidate.frame, limits)
    ]
    by_condition = [
        _compare_condition(condition, candidate, reference, limits, seed) for condition in limits.conditions
    ]
    return (*by_condition, *correct_p_values(comparisons, limits.max_slice_auc_drop))


def has_slices(rows: ScoredRows, limits: Gates) -> bool:
    """Return whether there is a slice to compare."""
    cold_columns = any(name in rows.frame.columns for name in COLD_COLUMNS)
    return bool(limits.conditions or limits.slice_columns or cold_columns)


def correct_p_values(slices: Sequence[SliceComparison], margin: float) -> tuple[SliceComparison, ...]:
    """Return the slices with p-values, Holm-corrected for the number of judged slices."""
    judged = [comparison for comparison in slices if comparison.difference is not None]
    p_values = iter(holm([_p_value(comparison, margin) for comparison in judged]))
    return tuple(
        comparison if comparison.difference is None else comparison.model_copy(update={"p_value": next(p_values)})
        for comparison in slices
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected so that the chance of any false alarm stays below the level (Holm, 1979).

    >>> [round(p, 2) for p in holm([0.01, 0.04, 0.03])]  # 3 x 0.01; 2 x 0.03; then never less than the one before
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    stepped = np.maximum.accumulate(values[order] * np.arange(values.size, 0, -1)).clip(max=1)
    corrected_values = np.empty_like(values)
    corrected_values[order] = stepped
    return [float(value) for value in corrected_values]


def _p_value(comparison: SliceComparison, margin: float) -> float:
    """Return the probability of a gap this bad if the true gap were exactly the margin.

    It follows from the normal distribution with the bootstrap's standard error: counting resamples cannot give less
    than 1 in 200, which Holm's correction over thirty slices never calls significant.
    """
    from scipy.special import ndtr

    assert comparison.difference is not None
    excess = comparison.difference.value + margin
    if comparison.difference.error == 0:  # the same order in every resample: the gap is known exactly
        return 0.0 if excess < 0 else 1.0
    return float(ndtr(excess / comparison.difference.error))


def _iter_slices(frame: pl.DataFrame, limits: Gates) -> Iterable[_RowSlice]:
    for column in (column for column in COLD_COLUMNS if column in frame.columns):
        yield _RowSlice(column, "yes", frame[column].fill_null(value=True).to_numpy())
    for name in limits.slice_columns:
        if PREFIX + name not in frame.columns:
            raise UnmeasurableError(f"the scores carry no column '{PREFIX}{name}' to slice by")
        values = frame[PREFIX + name].cast(pl.String).fill_null("(null)")
        counts = values.value_counts(sort=True, name="rows").sort(["rows", values.name], descending=[True, False])
        for value in counts[values.name].head(limits.max_slices):
            yield _RowSlice(name, value, (values == value).to_numpy())


def _compare(
    row_slice: _RowSlice, candidate: ScoredRows, reference: ScoredRows, limits: Gates, seed: int
) -> SliceComparison:
    candidate_rows = candidate.filter_rows(row_slice.mask)
    comparison = SliceComparison(
        column=row_slice.column, value=row_slice.value, rows=candidate_rows.rows, positives=candidate_rows.positives
    )
    if candidate_rows.rows < limits.min_slice_rows:
        return comparison.model_copy(update={"note": f"not judged: fewer than {limits.min_slice_rows} rows"})
    try:
        rounds, confidence = limits.bootstrap_rounds, limits.confidence
        metric_differences = bootstrap_differences(
            candidate_rows, reference.filter_rows(row_slice.mask), confidence, rounds, seed
        )
    except UnmeasurableError as problem:
        return comparison.model_copy(update={"note": f"not judged: {problem}"})
    ungated_differences = {name: metric_differences.get(name) for name in ("gauc", "ndcg_at_10")}
    return comparison.model_copy(update={"difference": metric_differences["auc"], **ungated_differences})


def rename_columns(frame: pl.DataFrame) -> pl.DataFrame:
    """Return scored rows with the log's names of columns: `slice_price` is `price`; null coldness counts as cold."""
    columns = (
        pl.col(name).fill_null(value=True) if name in COLD_COLUMNS else pl.col(name).alias(name.removeprefix(PREFIX))
        for name in frame.columns
        if name.startswith(PREFIX) or PREFIX + name not in frame.columns
    )
    return frame.select(columns)


def _compare_condition(
    condition: SliceLimits, candidate: ScoredRows, reference: ScoredRows, limits: Gates, seed: int
) -> SliceComparison:
    """Return the comparison on the rows where a condition is true, which are judged by its own limits."""
    expression, frame = compile_expression(condition.where), rename_columns(candidate.frame)
    if missing_columns := [name for name in expression.columns if name not in frame.columns]:
        raise UnmeasurableError(f"the scores carry no column '{missing_columns[0]}', which \"{expression.text}\" reads")
    mask = expression.evaluate_condition(frame)
    rows = candidate.filter_rows(mask)
    comparison = SliceComparison(condition=condition, rows=rows.rows, positives=rows.positives)
    if not rows.rows:
        return comparison.model_copy(update={"note": "no test row meets the condition"})
    if rows.rows < limits.min_slice_rows:
        return comparison.model_copy(update={"note": f"fewer than {limits.min_slice_rows} rows (min_slice_rows)"})
    rounds, confidence = limits.bootstrap_rounds, limits.confidence
    try:
        differences = bootstrap_differences(rows, reference.filter_rows(mask), confidence, rounds, seed)
        auc = resample(rows, rounds, seed)["auc"].interval(confidence)
    except UnmeasurableError as problem:
        return comparison.model_copy(update={"note": str(problem)})
    ungated_differences = {name: differences.get(name) for name in ("gauc", "ndcg_at_10")}
    return comparison.model_copy(update={"auc": auc, "difference": differences["auc"], **ungated_differences})
