"""Refusals of whole logs with their numbers, notes of valid ones, and the files that are written."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from shortlist.contracts import DataError, Files
from shortlist.data.log_notices import ALLOWED_LEAKS
from shortlist.data.rules.table_rules import CAN_WARN, TABLE_RULES
from shortlist.evaluation.comparison import ModelComparison
from shortlist.report.assembly import run_notice
from shortlist.storage.tables import DayTable

START = datetime(2024, 1, 1, tzinfo=UTC)
DAYS, ROWS = 5, 300
USERS: dict[str, Any] = {
    "name": "users",
    "path": "users.parquet",
    "key": "user_id",
    "columns": [
        {"name": "user_id", "type": "integer"},
        {"name": "age", "type": "integer", "min": 0, "max_null_share": 0.1},
    ],
}
Declare = Callable[..., Any]
Judge = Callable[..., Any]


def clicks(days: int = DAYS, rows: int = ROWS) -> pl.DataFrame:
    """Return a log with equal days and three clicks in ten, independent of `price` and `user_id`."""
    number = pl.int_range(days * rows, eager=True)
    day, place = number // rows, number % rows
    frame = pl.DataFrame({"day": day, "place": place})
    return frame.select(
        (pl.lit(START) + pl.duration(days="day", seconds="place")).alias("time"),
        (number // 30 % 50).alias("user_id"),
        (number * 37 % 1_501 / 4).alias("price"),
        (pl.col("place") % 10 < 3).cast(pl.Int64).alias("click"),
    )


ON_DAY_4 = pl.col("time").dt.day() == 4
PLACE = pl.col("time").dt.minute().cast(pl.Int64) * 60 + pl.col("time").dt.second()
"""Number of a row within its day."""


@pytest.fixture
def validate_log(tmp_path: Path, declare: Declare, judge: Judge) -> Callable[..., DayTable]:
    """Return the valid table of a log, with or without a side table, under rules."""

    def validate_tables(log: pl.DataFrame, users: pl.DataFrame | None = None, **sections: Any) -> DayTable:
        log.write_parquet(tmp_path / "log.parquet")
        if users is not None:
            users.write_parquet(tmp_path / "users.parquet")
            sections["side_tables"] = [USERS]
        table: DayTable = judge(declare(source={"path": "log.parquet"}, **sections), tmp_path)[2]
        return table

    return validate_tables


Judged = Callable[..., DayTable]


def test_a_valid_log_passes_with_its_notes(validate_log: Judged) -> None:
    log = clicks()
    users = pl.DataFrame({"user_id": range(40), "age": [30] * 40})
    table = validate_log(pl.concat([log, log.tail(2)]), users)
    assert table.rows == DAYS * ROWS
    assert table.positives == DAYS * 90
    assert [part.rows for part in table.days] == [ROWS] * DAYS
    assert {name: table.notes[name] for name in ("raw_rows", "valid_rows", "quarantined_rows", "by_rule")} == {
        "raw_rows": 1_502,
        "valid_rows": 1_500,
        "quarantined_rows": 2,
        "by_rule": {"duplicate_row": 2},
    }
    assert table.notes["side"] == {
        "users": {"raw_rows": 40, "valid_rows": 40, "quarantined_rows": 0, "coverage": 0.8}  # 40 of 50 users
    }
    rows = table.scan().collect()
    assert {"source_file", "source_line"} <= set(rows.columns)
    assert pl.read_parquet(table.folder / "side" / "users.parquet").columns == ["user_id", "age"]


REFUSED_LOGS: list[tuple[str, pl.DataFrame, dict[str, Any], str]] = [
    (
        "more bad rows than tolerated",
        clicks().with_columns(click=pl.when(pl.int_range(pl.len()) < 16).then(2).otherwise("click")),
        {},
        r"16 of 1 500 \(1.07%\) rows are quarantined \(label_is_binary 16\); data.rules.max_quarantined_share is 1.00%",
    ),
    (
        "more copies than tolerated",
        pl.concat([clicks(), clicks().tail(16)]),
        {},
        r"16 of 1 516 \(1.06%\) rows copy an earlier one, on 1 of 5 days, most of them on 2024-01-05;"
        r" data.rules.max_duplicate_share is 1.00%",
    ),
    ("too few rows", clicks(rows=190), {}, r"only 950 valid rows; data.rules.min_rows is 1 000"),
    ("no valid row", clicks().with_columns(click=5), {}, r"no row is valid"),
    ("only negatives", clicks().with_columns(click=0), {}, r"label 'click' is 0 in all 1 500 rows; there is nothing"),
    ("only positives", clicks().with_columns(click=1), {}, r"label 'click' is 1 in all 1 500 rows"),
    (
        "a single day",
        clicks(days=1, rows=1_500),
        {},
        r"the log has 1 day\(s\), the split needs 4: 1 to warm up, at least 1 to train, 1 to validate, 1 to test",
    ),
    (
        "a column that turned to nulls on one day",
        clicks().with_columns(price=pl.when(~ON_DAY_4).then("price")),
        {"columns": [{"name": "price", "type": "number", "max_null_share": 0.5}]},
        r"column 'price' is null in 100.0% on 2024-01-04; its max_null_share is 50.0%",
    ),
    (
        "a day with hardly any rows",
        clicks().filter(~ON_DAY_4 | (PLACE % 60 == 0)),
        {},
        r"volume: 5 rows on 2024-01-04 \(0.017 times the median 300 before\); data.rules.min_volume_ratio is 0.2, max",
    ),
    (
        "a day without rows",
        clicks().filter(~ON_DAY_4),
        {},
        r"volume: 0 rows on 2024-01-04 \(0 times the median 300 before\).*narrow clock.earliest and latest",
    ),
    (
        "a day with far too many rows",
        pl.concat([clicks(), *(clicks().filter(ON_DAY_4).with_columns(price=-float(n)) for n in range(1, 6))]),
        {},
        r"volume: 1 800 rows on 2024-01-04 \(6 times the median 300 before\).* max_volume_ratio 5",
    ),
    (
        "a label rate that jumps",
        clicks().with_columns(click=pl.when(ON_DAY_4).then((PLACE + 1) % 2).otherwise("click")),
        {},
        r"label rate: 0.5000 on 2024-01-04 \(median 0.3000 before\); data.rules.max_label_rate_change is 50%",
    ),
    (
        "a log that is old",
        clicks(),
        {"rules": {"max_age_hours": 24}},
        r"the newest row is of 2024-01-05 00:04 UTC, 95.9 hours old; data.rules.max_age_hours is 24",
    ),
    (
        "a column that is the label",
        clicks().with_columns(price=pl.col("click") * 2.5),
        {},
        r"column 'price' alone orders the labels with an AUC of 1.0000; data.rules.max_column_auc is 0.95. If it is",
    ),
]


@pytest.mark.parametrize(
    ("log", "sections", "message"), [row[1:] for row in REFUSED_LOGS], ids=[row[0] for row in REFUSED_LOGS]
)
def test_a_log_is_refused_for(validate_log: Judged, log: pl.DataFrame, sections: dict[str, Any], message: str) -> None:
    columns = [{"name": "user_id", "type": "integer"}, {"name": "click", "type": "integer"}]
    columns += sections.get("columns", [{"name": "price", "type": "number"}])
    with pytest.raises(DataError, match=message):
        validate_log(log, **{**sections, "columns": columns})


@pytest.mark.parametrize(
    ("log", "sections", "message"), [row[1:] for row in REFUSED_LOGS], ids=[row[0] for row in REFUSED_LOGS]
)
def test_a_rule_may_only_warn_or_be_off(
    validate_log: Judged, log: pl.DataFrame, sections: dict[str, Any], message: str
) -> None:
    columns = [{"name": "user_id", "type": "integer"}, {"name": "click", "type": "integer"}]
    sections = {"columns": [{"name": "price", "type": "number"}], "rules": {}, **sections}
    sections["columns"] = columns + sections["columns"]
    rules = sections.pop("rules")
    with pytest.raises(DataError) as refusal:
        validate_log(log, rules=rules, **sections)
    listed = re.search(r"make it a warning: data\.rules\.warn: \[(.*)\]", str(refusal.value))
    if re.search(r"no row is valid|there is nothing|the split needs", str(refusal.value)):  # nothing can be trained
        return
    assert listed is not None
    names = listed[1].split(", ")
    (warning, *_) = validate_log(log, rules={**rules, "warn": names}, **sections).notes["warnings"]
    assert re.search(message, warning) and warning.startswith(f"Rule {names[0]} only warns: ")
    notes = validate_log(log, rules={**rules, "off": names}, **sections).notes
    assert (warnings_of_rules(notes), notes["rules_off"]) == ([], names)


def warnings_of_rules(notes: dict[str, Any]) -> list[str]:
    """Return the warnings without those of days that are too short to be a part of the split alone."""
    return [warning for warning in notes["warnings"] if not warning.startswith("The validation days: ")]


def test_every_rule_that_may_warn_is_a_rule_of_the_log() -> None:
    assert {rule.__name__ for rule in TABLE_RULES} - set(CAN_WARN) == {"any_rows", "label_varies", "enough_days"}
    assert set(CAN_WARN) < {rule.__name__ for rule in TABLE_RULES}


def test_a_leaking_column_can_be_allowed_or_declared_an_outcome(validate_log: Judged) -> None:
    log = clicks().with_columns(price=pl.col("click") * 2.5)
    table = validate_log(log, rules={"allow_leak": ["price"]})
    notes = table.notes
    assert notes["column_aucs"]["price"] == 1.0
    (warning,) = notes["warnings"]
    assert warning.startswith("The log: column 'price' alone orders the labels with an AUC of 1.0000, and data.rules.")
    assert notes[ALLOWED_LEAKS] == [warning]
    comparison = ModelComparison(
        spec="mine",
        metric="auc",
        best=None,
        confidence=0.95,
        test_rows=0,
        models={},
        notice="Nothing beats it.",
    )
    assert run_notice(table.folder, comparison) == f"{warning} Nothing beats it."  # at the top of the page
    price = {"name": "price", "type": "number", "known": "after"}
    columns = [{"name": "user_id", "type": "integer"}, price, {"name": "click", "type": "integer"}]
    assert "price" not in validate_log(log, columns=columns).notes["column_aucs"]


def test_a_fresh_log_passes(tmp_path: Path, declare: Declare, judge: Judge) -> None:
    clicks().write_parquet(tmp_path / "log.parquet")
    newest = START + timedelta(days=4, seconds=299)
    judge(declare(rules={"max_age_hours": 24}), tmp_path / "log.parquet", newest + timedelta(hours=24))


def test_a_short_first_day_does_not_make_the_second_too_large(validate_log: Judged) -> None:
    is_late = (pl.col("time").dt.day() > 1) | (PLACE < 20)
    assert validate_log(clicks().filter(is_late)).days[0].rows == 20


def test_a_label_rate_that_chance_explains_passes(validate_log: Judged) -> None:
    # 4 rows, 3 clicks where 1.2 are usual: 2 standard errors off, though the rate is 2.5 times the usual one.
    log = clicks().filter(~ON_DAY_4 | (PLACE < 4))
    assert validate_log(log, rules={"min_volume_ratio": 0.0}).days[3].positives == 3


@pytest.mark.parametrize(
    ("users", "message"),
    [
        (
            pl.DataFrame({"user_id": [*range(50), 7], "age": 30}),
            r"1 rows repeat a key, e.g. user_id = 7; keep one",
        ),
        (
            pl.DataFrame({"user_id": range(20), "age": 30}),
            r"side table 'users': 600 of 1 500 \(40.00%\) rows of the log find their user_id; its min_coverage is 50",
        ),
        (
            pl.DataFrame({"user_id": range(50), "age": [None] * 6 + [30] * 44}),
            r"column 'age' is null in 6 of 50 \(12.00%\)",
        ),
        (
            pl.DataFrame({"user_id": [*range(49), None], "age": 30}),
            r"1 of 50 \(2.00%\) rows are quarantined; data.rules.max_quarantined_share is 1.00%",
        ),
        (pl.DataFrame({"user_id": range(50), "age": [-1] + [30] * 49}), r"1 of 50 \(2.00%\) rows are quarantined"),
    ],
    ids=["a repeated key", "few users found", "nulls", "a key without a value", "a value out of range"],
)
def test_a_side_table_is_refused_for(validate_log: Judged, users: pl.DataFrame, message: str) -> None:
    with pytest.raises(DataError, match=r"side table 'users': " + message.removeprefix("side table 'users': ")):
        validate_log(clicks(), users)


def test_a_leaking_side_column_is_refused(validate_log: Judged) -> None:
    # User n clicks exactly when n is below 15.
    log = clicks().with_columns(click=(pl.col("user_id") < 15).cast(pl.Int64)).drop("price")
    users = pl.DataFrame({"user_id": range(50), "age": [1] * 15 + [2] * 35})
    columns = [{"name": "user_id", "type": "integer"}, {"name": "click", "type": "integer"}]
    with pytest.raises(DataError, match=r"column 'age' alone orders the labels with an AUC of 1.0000"):
        validate_log(log, users, columns=columns, rules={"allow_leak": ["user_id"]})


def test_all_problems_are_reported_and_the_quarantine_is_written(tmp_path: Path, validate_log: Judged) -> None:
    broken_log = clicks().with_columns(click=pl.when(pl.int_range(pl.len()) < 16).then(2).otherwise(1))
    quarantine_path = tmp_path / "quarantine" / Files.QUARANTINE
    with pytest.raises(DataError) as refused:
        validate_log(broken_log)
    lines = str(refused.value).splitlines()
    assert lines[0] == "the log breaks 2 rule(s) and goes no further:"
    assert [line[:23] for line in lines[1:3]] == ["  1. 16 of 1 500 (1.07%", "  2. label 'click' is 1"]
    assert lines[3] == "If that is right, make it a warning: data.rules.warn: [quarantined_share]."
    assert lines[4] == f"The 16 quarantined rows are in {quarantine_path}."
    assert pl.read_parquet(quarantine_path)["source_line"].to_list() == list(range(1, 17))
    assert not (tmp_path / "valid").exists()
    assert not list(tmp_path.glob("*.partial"))


def test_the_quarantine_holds_rejected_and_quarantined_rows_of_all_tables(tmp_path: Path, validate_log: Judged) -> None:
    log = clicks().with_columns(pl.col("price").cast(pl.String))
    log = log.with_columns(price=pl.when(pl.int_range(pl.len()) == 3).then(pl.lit("x")).otherwise("price"))
    users = pl.DataFrame({"user_id": range(50), "age": [-1] + [30] * 49})
    table = validate_log(log, users, rules={"max_quarantined_share": 0.05})
    quarantined = pl.read_parquet(tmp_path / "quarantine" / Files.QUARANTINE)
    assert quarantined.select("source_file", "source_line", "rule").rows() == [
        ("log.parquet", 4, "type"),
        ("users.parquet", 1, "in_range"),
    ]
    assert table.notes["by_rule"] == {"type": 1}
    assert table.notes["side"]["users"]["quarantined_rows"] == 1
    assert table.notes["side"]["users"]["coverage"] == (1_499 - 29) / 1_499  # a row of user 0 was rejected


def build_days(counts: list[int], rate: Callable[[int], float]) -> pl.DataFrame:
    """Return days with these row counts, and with the click rate `rate(day)`."""
    return pl.concat(
        pl.DataFrame({
            "time": [START + timedelta(days=day, seconds=n) for n in range(rows)],
            "user_id": range(rows), "price": [float(day)] * rows,
            "click": [int(n < rate(day) * rows) for n in range(rows)],
        })
        for day, rows in enumerate(counts) if rows
    )  # fmt: skip


def test_a_sparse_log_passes_the_volume_rule(validate_log: Judged) -> None:
    # Of 4 rows a day on average, days with 0 and with 9 are ordinary.
    log = build_days([4, 3, 0, 5, 6, 1, 4, 9, 2, 4] * 5, lambda _: 0.5)
    assert validate_log(log, rules={"min_rows": 100}).rows == 5 * 38


def test_a_log_of_bursts_passes_the_day_rules(validate_log: Judged) -> None:
    log = build_days([100, 20, 500, 60, 1_500, 30, 200, 900, 15, 2_500], lambda day: [0.2, 0.5, 0.3, 0.8, 0.4][day % 5])
    assert validate_log(log).rows == 5_825
    # A quiet week before would make the same day a problem.
    with pytest.raises(DataError, match=r"volume: 2 500 rows on 2024-01-09 .*max_volume_ratio 5"):
        validate_log(build_days([200, 210, 190, 205, 195, 200, 200, 200, 2_500], lambda _: 0.3))


def test_a_single_change_of_the_label_rate_is_refused(validate_log: Judged) -> None:
    steady = [0.3, 0.31, 0.29, 0.3, 0.3]
    with pytest.raises(DataError, match=r"label rate: 0.0500 on 2024-01-06"):
        validate_log(build_days([300] * 10, lambda day: steady[day] if day < 5 else 0.05))
