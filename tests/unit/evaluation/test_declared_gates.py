"""Gates without code: slices by a condition, and queries over the scored test rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from shortlist.evaluation.gates.gate_result import GateResult
from shortlist.evaluation.gates.gates import slices_gate
from shortlist.evaluation.gates.queries import queries_gate
from shortlist.evaluation.metrics.measure import ScoredModel, measure
from shortlist.evaluation.metrics.scores import read_scores
from shortlist.evaluation.metrics.slices import compare_slices
from shortlist.spec.gates import Gates

Frame = Callable[..., pl.DataFrame]
Write = Callable[[str, pl.DataFrame], Path]
TAB_2 = "tab = 2 AND NOT cold_user"
WORSE_ON_TAB_2 = pl.when(pl.col("slice_tab") == 2).then(1 - pl.col("score")).otherwise("score")


@pytest.fixture
def judge_slices(write: Write) -> Callable[..., GateResult]:
    def judge_slices(candidate: pl.DataFrame, champion: pl.DataFrame, **condition: Any) -> GateResult:
        limits = Gates.model_validate({"bootstrap_rounds": 60, "min_slice_rows": 200, "slices": [condition]})
        rows = (read_scores(write(name, scores) / "scores.parquet", "test")
                for name, scores in (("candidate", candidate), ("champion", champion)))  # fmt: skip
        return slices_gate(compare_slices(*rows, limits, seed=1), "the champion", limits)

    return judge_slices


def test_a_condition_within_its_limits_passes_with_the_figures_of_both_models(
    frame: Frame, judge_slices: Callable[..., GateResult]
) -> None:
    result = judge_slices(frame(), frame(), where=TAB_2, min_auc=0.6, max_drop=0.01)
    assert result.passed
    # The same scores: on the same resampled users the difference is exactly 0.
    assert f"; {TAB_2}: AUC, lower bound 0." in result.reason
    assert ">= 0.6000 (min_auc), AUC difference +0.0000, lower bound +0.0000 >= -0.0100 (max_drop) (0." in result.reason
    assert "of the champion on the same 600 test rows; 95% bounds)" in result.reason  # 750 of 3 000, four fifths known


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"min_auc": 0.6}, f"{TAB_2}: AUC, lower bound 0."),
        ({"max_drop": 0.05}, f"{TAB_2}: AUC difference -0."),
    ],
)
def test_a_condition_beyond_its_limit_holds(
    frame: Frame, judge_slices: Callable[..., GateResult], limits: dict[str, float], reason: str
) -> None:
    result = judge_slices(frame().with_columns(score=WORSE_ON_TAB_2), frame(), where=TAB_2, **limits)
    assert not result.passed
    assert result.reason.startswith(reason)
    assert f"< {limits.get('min_auc') or -limits['max_drop']:.4f}" in result.reason


def test_a_drop_within_the_margin_is_not_known_on_few_rows_and_holds(
    frame: Frame, judge_slices: Callable[..., GateResult]
) -> None:
    noise = pl.col("score") * (1 + 0.5 * (pl.col("impression_id") // 4 % 2))
    shaken = frame().with_columns(score=noise.clip(0, 1))
    assert not judge_slices(shaken, frame(), where=TAB_2, max_drop=0.001).passed
    assert judge_slices(shaken, frame(), where=TAB_2, max_drop=0.4).passed


@pytest.mark.parametrize(
    ("condition", "note"),
    [
        ("tab > 7", "no test row meets the condition"),
        ("tab = 2 AND impression_id < 400", "fewer than 200 rows (min_slice_rows)"),
        ("tab = 2 AND label = 0", "only one class"),
    ],
)
def test_a_condition_that_cannot_be_measured_is_unknown_and_holds(
    frame: Frame, judge_slices: Callable[..., GateResult], condition: str, note: str
) -> None:
    result = judge_slices(frame(), frame(), where=condition, min_auc=0.5)
    assert not result.passed
    assert result.reason.startswith(f"{condition}: unknown, ")
    assert note in result.reason


@pytest.fixture
def scored(write: Write, limits: Gates) -> Callable[[str, pl.DataFrame], ScoredModel]:
    return lambda name, scores: measure(name, "candidate", write(name, scores), limits, 1)


Score = Callable[[str, pl.DataFrame], ScoredModel]
MEAN = "SELECT avg(score) FROM test_rows WHERE tab = 1"


def query_limits(**query: Any) -> Gates:
    return Gates.model_validate({"queries": {"mean_of_tab": query}})


@pytest.mark.parametrize(
    ("query", "passed", "reason"),
    [
        ({"max": 0.3}, True, r"mean_of_tab: 0\.2\d+ <= 0\.3"),
        ({"min": 0.1, "max": 0.3}, True, r"mean_of_tab: 0\.2\d+ >= 0\.1 and <= 0\.3"),
        ({"max": 0.2}, False, r"mean_of_tab: 0\.2\d+ > 0\.2 \(max\)"),
        ({"min": 0.3}, False, r"mean_of_tab: 0\.2\d+ < 0\.3 \(min\)"),
    ],
)
def test_a_query_beyond_its_limit_holds(
    frame: Frame, scored: Score, query: dict[str, float], passed: bool, reason: str
) -> None:
    candidate = scored("candidate", frame())
    result = queries_gate(candidate, candidate, None, query_limits(sql=MEAN, **query))
    assert result.passed is passed
    assert re.fullmatch(reason, result.reason)
    assert result.numbers["mean_of_tab"] == pytest.approx(frame().filter(slice_tab=1)["score"].mean(), abs=1e-6)


def test_a_query_reads_the_scores_of_baseline_and_champion_on_the_same_rows(frame: Frame, scored: Score) -> None:
    rows = frame()
    candidate, baseline = scored("candidate", rows), scored("baseline", rows.with_columns(score=pl.lit(0.25)))
    champion = scored("champion", rows.filter(pl.col("impression_id") < 1_000))
    sql = "SELECT {} FROM test_rows"
    for expression, number in (
        ("max(abs(score - champion_score))", 0.0),
        ("max(baseline_score)", 0.25),
        ("count(champion_score)", 1_000),
    ):
        limits = query_limits(sql=sql.format(expression), min=number, max=number)
        assert queries_gate(candidate, baseline, champion, limits).passed, expression
    no_champion = queries_gate(candidate, baseline, None, query_limits(sql=sql.format("avg(champion_score)"), max=1))
    assert no_champion.reason == "mean_of_tab: unknown, the query gives NULL; wanted a number"


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("SELECT avg(score) FROM test_rows WHERE tab > 7", "gives NULL; wanted a number"),
        ("SELECT score FROM test_rows WHERE tab > 7", "gives no row; wanted one"),
        ("SELECT score FROM test_rows", "gives more than one row; wanted one"),
        ("SELECT sum(label) / sum(0.0) FROM test_rows", "wanted a number"),
    ],
)
def test_a_query_without_a_number_is_unknown_and_holds(frame: Frame, scored: Score, sql: str, problem: str) -> None:
    candidate = scored("candidate", frame())
    result = queries_gate(candidate, candidate, None, query_limits(sql=sql, max=1))
    assert not result.passed
    assert result.reason.startswith("mean_of_tab: unknown, the query ")
    assert problem in result.reason


def test_without_scores_queries_hold(tmp_path: Path, limits: Gates) -> None:
    missing = measure("m", "candidate", tmp_path, limits, 1)
    assert not queries_gate(missing, missing, None, query_limits(sql=MEAN, max=1)).passed
