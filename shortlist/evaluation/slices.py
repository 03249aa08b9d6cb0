"""Whether a model that is better on the whole became worse for some."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from shortlist.evaluation.intervals import bootstrap_differences
from shortlist.evaluation.metrics import UnmeasurableError
from shortlist.evaluation.records import SliceComparison
from shortlist.evaluation.scores import ScoredRows, check_same_rows
from shortlist.spec.gates import Gates

PREFIX = "slice_"
COLD = ("cold_user", "cold_item")


@dataclass(frozen=True)
class _Slice:
    column: str
    value: str
    kept: np.ndarray


def compare_slices(
    candidate: ScoredRows, reference: ScoredRows, limits: Gates, seed: int
) -> tuple[SliceComparison, ...]:
    """Return every slice of the test rows with the candidate's gap to a reference and its corrected p-value.

    Slices are the most frequent values of the columns `slice_*`, cold users and cold items.

    Raises:
        UnmeasurableError: The two were not scored on the same rows, or a declared slice column is missing.
    """
    check_same_rows(candidate, reference)
    found = [_compare(one, candidate, reference, limits, seed) for one in _slices(candidate.frame, limits)]
    return corrected(found, limits.max_slice_auc_drop)


def corrected(slices: Sequence[SliceComparison], margin: float) -> tuple[SliceComparison, ...]:
    """Return the slices with p-values, each corrected for how many are judged."""
    judged = [one for one in slices if one.difference is not None]
    p_values = iter(holm([_p_value(one, margin) for one in judged]))
    return tuple(
        one if one.difference is None else one.model_copy(update={"p_value": next(p_values)}) for one in slices
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected so that the chance of any false alarm stays below the level (Holm, 1979).

    >>> [round(p, 2) for p in holm([0.01, 0.04, 0.03])]  # 3 x 0.01; 2 x 0.03; then never less than the one before
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    stepped = np.maximum.accumulate(values[order] * np.arange(values.size, 0, -1)).clip(max=1)
    result = np.empty_like(values)
    result[order] = stepped
    return [float(value) for value in result]


def _p_value(one: SliceComparison, margin: float) -> float:
    """Return the chance of a gap this bad if the true gap were exactly the margin.

    From the normal distribution with the bootstrap's standard error: counting resamples cannot give less than 1 in 200,
    which Holm's correction over thirty slices would never call significant.
    """
    from scipy.special import ndtr

    assert one.difference is not None
    excess = one.difference.value + margin
    if one.difference.error == 0:  # the same order in every resample: the gap is known exactly
        return 0.0 if excess < 0 else 1.0
    return float(ndtr(excess / one.difference.error))


def _slices(frame: pl.DataFrame, limits: Gates) -> Iterable[_Slice]:
    for column in (column for column in COLD if column in frame.columns):
        yield _Slice(column, "yes", frame[column].fill_null(value=True).to_numpy())
    for name in limits.slices:
        if PREFIX + name not in frame.columns:
            raise UnmeasurableError(f"the scores carry no column '{PREFIX}{name}' to slice by")
        values = frame[PREFIX + name].cast(pl.String).fill_null("(null)")
        counts = values.value_counts(sort=True, name="rows").sort(["rows", values.name], descending=[True, False])
        for value in counts[values.name].head(limits.max_slices):
            yield _Slice(name, value, (values == value).to_numpy())


def _compare(one: _Slice, candidate: ScoredRows, reference: ScoredRows, limits: Gates, seed: int) -> SliceComparison:
    ours = candidate.where(one.kept)
    plain = SliceComparison(column=one.column, value=one.value, rows=ours.rows, positives=ours.positives)
    if ours.rows < limits.min_slice_rows:
        return plain.model_copy(update={"note": f"not judged: fewer than {limits.min_slice_rows} rows"})
    try:
        rounds, confidence = limits.bootstrap_rounds, limits.confidence
        found = bootstrap_differences(ours, reference.where(one.kept), confidence, rounds, seed)
    except UnmeasurableError as problem:
        return plain.model_copy(update={"note": f"not judged: {problem}"})
    beside = {name: found.get(name) for name in ("gauc", "ndcg_at_10")}
    return plain.model_copy(update={"difference": found["auc"], **beside})
