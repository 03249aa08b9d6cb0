"""Each row rule quarantines the rows that break it, and no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from shortlist.contracts import DataError
from shortlist.data.rules.row_rules import DayRules

NOON = 1_704_110_400  # 2024-01-01 12:00 UTC
DAY = 86_400
LENIENT = {
    "max_quarantined_share": 1,
    "max_duplicate_share": 1,
    "min_rows": 1,
    "min_volume_ratio": 0,
    "max_volume_ratio": 1e9,
    "max_label_rate_change": 1,
}
SPLIT = {"warmup_days": 0, "validation_days": 1, "test_days": 1}
Declare = Callable[..., Any]
Judge = Callable[..., Any]


@pytest.fixture
def judge_lines(tmp_path: Path, declare: Declare, judge: Judge) -> Callable[..., tuple[pl.DataFrame, pl.DataFrame]]:
    """Return the valid and the quarantined rows of a log with two columns, `x` and `click`, and three good days."""

    def validate_lines(
        lines: list[str], column: dict[str, Any], good: str = "", **rules: Any
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        columns = [{"name": "x", **column}, {"name": "click", "type": "integer"}]
        days = "".join(f"{NOON + DAY * day},{good},{day % 2}\n" for day in (1, 2, 3))
        (tmp_path / "log.csv").write_text("time,x,click\n" + "".join(f"{line}\n" for line in lines) + days)
        data = declare(columns, rules={**LENIENT, **rules}, split=SPLIT)
        valid, quarantined, _ = judge(data, tmp_path / "log.csv")
        return valid.filter(pl.col("event_time").dt.day() == 1), quarantined

    return validate_lines


Judged = Callable[..., tuple[pl.DataFrame, pl.DataFrame]]


@pytest.mark.parametrize(
    ("column", "value", "rule", "detail"),
    [
        ({"type": "integer", "min": 0, "max": 9}, "10", "in_range", "x: got '10', wanted a value in [0, 9]"),
        ({"type": "integer", "min": 0}, "-1", "in_range", "x: got '-1', wanted a value in [0, inf]"),
        ({"type": "number", "max": 0.5}, "0.75", "in_range", "x: got '0.75', wanted a value in [-inf, 0.5]"),
        ({"type": "number"}, "inf", "finite_number", "x: got 'inf', wanted a finite number"),
        ({"type": "integer", "allowed": [1, 2]}, "3", "allowed_value", "x: got '3', wanted one of 1, 2"),
        ({"type": "string", "allowed": ["a"]}, "b", "allowed_value", "x: got 'b', wanted one of a"),
    ],
)
def test_a_value_that_breaks_a_rule_is_quarantined(
    judge_lines: Judged, column: dict[str, Any], value: str, rule: str, detail: str
) -> None:
    valid, quarantined = judge_lines([f"{NOON},,1", f"{NOON},{value},1"], column)
    assert valid["x"].to_list() == [None]  # no value breaks none of these rules
    assert quarantined.rows() == [("log.csv", 3, rule, detail)]


def test_the_bounds_are_included(judge_lines: Judged) -> None:
    valid, quarantined = judge_lines([f"{NOON},0,1", f"{NOON},9,1"], {"type": "integer", "min": 0, "max": 9})
    assert valid["x"].to_list() == [0, 9]
    assert quarantined.is_empty()


def test_a_missing_value_breaks_not_null(judge_lines: Judged) -> None:
    valid, quarantined = judge_lines([f"{NOON},5,1", f"{NOON},,1"], {"type": "integer", "nullable": False}, good="1")
    assert valid["x"].to_list() == [5]
    assert quarantined["rule"].to_list() == ["not_null"]
    assert quarantined["detail"].to_list() == ["x: got nothing, wanted a value"]


@pytest.mark.parametrize("label", ["2", "-1", ""])
def test_a_label_that_is_not_0_or_1_is_quarantined(judge_lines: Judged, label: str) -> None:
    _, quarantined = judge_lines([f"{NOON},1,{label}"], {"type": "integer"})
    assert quarantined["rule"].to_list() == ["label_is_binary"]


def test_only_the_first_broken_rule_is_recorded(judge_lines: Judged) -> None:
    _, quarantined = judge_lines([f"{NOON},10,2"], {"type": "integer", "max": 9, "allowed": [1]})
    assert quarantined["rule"].to_list() == ["label_is_binary"]


def test_later_copies_of_a_row_are_duplicates(judge_lines: Judged) -> None:
    valid, quarantined = judge_lines([f"{NOON},1,1", f"{NOON},2,1", f"{NOON},1,1", f"{NOON},1,1"], {"type": "integer"})
    assert valid["x"].to_list() == [1, 2]
    assert quarantined.select("source_line", "rule").rows() == [(4, "duplicate_row"), (5, "duplicate_row")]


def test_rows_that_differ_in_any_value_are_no_duplicates(judge_lines: Judged) -> None:
    lines = [f"{NOON},1,1", f"{NOON + 1},1,1", f"{NOON},1,0", f"{NOON},,1"]
    assert judge_lines(lines, {"type": "integer"})[1].is_empty()


def test_duplicates_are_found_across_parts(judge_lines: Judged) -> None:
    lines = [f"{NOON},{n % 1_500},1" for n in range(3_000)]  # parts hold 1 000 rows
    valid, quarantined = judge_lines(lines, {"type": "integer"})
    assert valid["x"].to_list() == list(range(1_500))
    assert quarantined["source_line"].to_list() == list(range(1_502, 3_002))


def test_a_quarantined_row_does_not_make_a_later_row_a_duplicate(judge_lines: Judged) -> None:
    lines = [f"{NOON},7,2", f"{NOON},7,1", f"{NOON},7,0"]
    valid, quarantined = judge_lines(lines, {"type": "integer"}, unique=["x"])
    assert valid["label"].to_list() == [1]
    assert quarantined.select("source_line", "rule").rows() == [(2, "label_is_binary"), (4, "unique")]


def test_unique_values_may_repeat_on_another_day(judge_lines: Judged) -> None:
    _, quarantined = judge_lines(
        [f"{NOON},7,1", f"{NOON},,1", f"{NOON},,0"], {"type": "integer"}, unique=["x"], good="7"
    )
    assert quarantined.is_empty()  # and nulls are no values


def test_a_column_of_a_side_table_cannot_be_unique_in_the_log(tmp_path: Path, declare: Declare) -> None:
    key = {"name": "user_id", "type": "integer"}
    age = {"name": "age", "type": "integer"}
    users = {"name": "users", "path": "users.csv", "key": "user_id", "columns": [key, age]}
    with pytest.raises(DataError, match=r"rules.unique: 'age' is a column of a side table"):
        DayRules(declare(side_tables=[users], rules={"unique": ["age"]}))


def test_a_repeated_impression_is_quarantined(tmp_path: Path, declare: Declare, judge: Judge) -> None:
    rows = [("{}1", 0), ("{}1", 1), ("", 1), ("{}2", 1)]
    lines = [f"{NOON + DAY * day},{view.format(day + 1)},{click}" for day in range(3) for view, click in rows]
    (tmp_path / "log.csv").write_text("time,view,click\n" + "\n".join(lines))
    columns = [{"name": "view", "type": "integer"}, {"name": "click", "type": "integer"}]
    data = declare(columns, impression="view", rules=LENIENT, split=SPLIT)
    valid, quarantined, _ = judge(data, tmp_path / "log.csv")
    assert valid["impression_id"].to_list() == [11, 12, 21, 22, 31, 32]
    assert quarantined["rule"].to_list() == ["duplicate_impression", "not_null"] * 3
