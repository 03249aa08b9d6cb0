from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from shortlist.evaluation.metrics.pointwise import UnmeasurableError
from shortlist.evaluation.metrics.records import MetricDifference, SliceComparison
from shortlist.evaluation.metrics.scores import ScoredRows, read_scores
from shortlist.evaluation.metrics.slices import compare_slices, correct_p_values, holm
from shortlist.spec.gates import Gates

Frame = Callable[..., pl.DataFrame]
Write = Callable[[str, pl.DataFrame], Path]


@pytest.fixture
def rows(write: Write) -> Callable[[str, pl.DataFrame], ScoredRows]:
    return lambda name, frame: read_scores(write(name, frame) / "scores.parquet", "test")


Rows = Callable[[str, pl.DataFrame], ScoredRows]


def gap(value: float, error: float) -> SliceComparison:
    difference = MetricDifference(candidate=0.7 + value, reference=0.7, value=value, low=value, error=error, rows=900)
    return SliceComparison(column="tab", value="1", rows=900, positives=200, difference=difference)


def test_holm_multiplies_the_smallest_p_value_by_the_number_of_tests() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([3 * 0.01, 2 * 0.03, 2 * 0.03, 4 * 0.005])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_p_value_of_a_gap_at_the_margin_is_one_half() -> None:
    assert correct_p_values([gap(-0.02, 0.01)], margin=0.02)[0].p_value == pytest.approx(0.5)


def test_p_value_of_a_gap_without_error_is_0_or_1() -> None:
    assert [comparison.p_value for comparison in correct_p_values([gap(-0.03, 0.0), gap(-0.01, 0.0)], margin=0.02)] == [
        0.0,
        1.0,
    ]


def test_one_bad_slice_of_thirty_is_significant() -> None:
    slices = correct_p_values(
        [gap(-0.10, 0.02)] + 29 * [gap(0.0, 0.02)], margin=0.02
    )  # 4 standard errors beyond the margin
    assert slices[0].p_value is not None
    assert slices[0].p_value < 0.05
    assert all(comparison.p_value == 1 for comparison in slices[1:])


def test_a_drop_for_one_value_appears_only_in_its_slice(frame: Frame, rows: Rows, limits: Gates) -> None:
    good = frame()
    bad = good.with_columns(score=pl.when(pl.col("slice_tab") == 2).then(1 - pl.col("score")).otherwise("score"))
    slices = {
        comparison.name: comparison
        for comparison in compare_slices(rows("bad", bad), rows("good", good), limits, seed=1)
    }
    assert set(slices) == {"cold_user = yes", "cold_item = yes", "tab = 0", "tab = 1", "tab = 2", "tab = 3"}
    assert (slices["tab = 2"].p_value or 0) < 1e-6
    assert slices["tab = 1"].p_value == 1
    assert slices["tab = 2"].rows == 750  # every fourth of 3 000
    for beside in ("gauc", "ndcg_at_10"):  # of the same rows, by user
        fallen, unchanged = (getattr(slices[name], beside) for name in ("tab = 2", "tab = 1"))
        assert fallen.value < -0.1 and unchanged.value == 0


def test_small_slices_and_slices_of_one_class_are_reported_not_judged(frame: Frame, rows: Rows, limits: Gates) -> None:
    small = pl.when(pl.col("impression_id") < 199).then(pl.lit(9)).otherwise("slice_tab")
    one_class = (
        frame()
        .with_columns(slice_tab=small)
        .with_columns(label=pl.when(pl.col("slice_tab") == 3).then(0).otherwise("label"))
    )
    scored = rows("m", one_class)
    slices = {comparison.name: comparison for comparison in compare_slices(scored, scored, limits, seed=1)}
    assert slices["tab = 9"].note == "not judged: fewer than 200 rows"
    assert slices["tab = 9"].rows == 199
    assert "only one class" in slices["tab = 3"].note
    assert slices["tab = 3"].p_value is None


def test_only_the_most_frequent_values_become_slices(frame: Frame, rows: Rows, limits: Gates) -> None:
    uneven = frame().with_columns(slice_tab=pl.when(pl.col("impression_id") < 400).then(None).otherwise("slice_tab"))
    scored = rows("m", uneven)
    frequent_slices = compare_slices(scored, scored, limits.model_copy(update={"max_slices": 2}), seed=1)
    assert [comparison.value for comparison in frequent_slices if comparison.column == "tab"] == ["0", "1"]
    all_slices = compare_slices(scored, scored, limits, seed=1)
    assert "tab = (null)" in [comparison.name for comparison in all_slices]


def test_a_declared_slice_without_a_column_is_an_error(frame: Frame, rows: Rows, limits: Gates) -> None:
    scored = rows("m", frame().drop("slice_tab"))
    with pytest.raises(UnmeasurableError, match="no column 'slice_tab'"):
        compare_slices(scored, scored, limits, seed=1)


def test_null_coldness_counts_as_cold(frame: Frame, rows: Rows, limits: Gates) -> None:
    scored = rows("m", frame().with_columns(cold_user=pl.lit(None, pl.Boolean)))
    slices = {comparison.name: comparison for comparison in compare_slices(scored, scored, limits, seed=1)}
    assert slices["cold_user = yes"].rows == 3_000
