"""Rows at or after `until` do not reach the valid log, and do not count against the rules."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from shortlist.contracts import DataError
from shortlist.data.until import find_cut_day, freshness_moment, parse_until
from shortlist.storage.tables import DayTable

START = datetime(2024, 1, 1, tzinfo=UTC)
ROWS = 300
"""Rows per day."""
UNTIL = START + timedelta(days=4)
Outcome = tuple[pl.DataFrame, pl.DataFrame, DayTable]


def clicks(days: int = 6) -> pl.DataFrame:
    number = pl.int_range(days * ROWS, eager=True)
    return pl.DataFrame({"number": number}).select(
        (pl.lit(START) + pl.duration(days=number // ROWS, minutes=number % ROWS * 4)).alias("time"),
        (number // 30 % 50).alias("user_id"),
        (number * 37 % 1_501 / 4).alias("price"),
        (number % 10 < 3).cast(pl.Int64).alias("click"),
    )


@pytest.fixture
def validate_log(tmp_path: Path, declare: Callable[..., Any], judge: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Return the valid rows, the quarantined ones and the table of a log, with `until`."""

    def validate_clicks(
        log: pl.DataFrame, until: datetime | None = UNTIL, now: datetime = UNTIL, **sections: Any
    ) -> Outcome:
        log.write_parquet(tmp_path / "log.parquet")
        return judge(declare(source={"path": "log.parquet"}, **sections), tmp_path, now=now, until=until)

    return validate_clicks


def test_future_rows_are_quarantined_without_effect_on_the_other_rows(
    validate_log: Callable[..., Outcome],
) -> None:
    valid, bad, table = validate_log(clicks(6), rules={"max_quarantined_share": 0.0})
    assert bad["rule"].to_list() == ["future"] * 2 * ROWS
    assert bad["detail"][0] == (
        "event_time: got '2024-01-05 00:00:00.000000+00:00', wanted a time before 2024-01-05 00:00:00 UTC, the moment"
        " until which this run may read"
    )
    assert table.notes["by_rule"] == {"future": 600}
    assert table.notes["raw_rows"] == table.notes["valid_rows"] + table.notes["quarantined_rows"] == 1_800
    assert table.notes["until"] == "2024-01-05T00:00:00+00:00"
    past_rows, past_quarantine, past_table = validate_log(clicks(4), until=None)
    assert valid.equals(past_rows)
    assert past_quarantine.is_empty()
    assert past_table.days == table.days
    assert past_table.notes["column_aucs"] == table.notes["column_aucs"]


def test_a_row_at_until_is_future_and_a_microsecond_earlier_is_not(validate_log: Callable[..., Outcome]) -> None:
    earlier_row, row_at_until = clicks(4).tail(1), clicks(4).tail(1)
    edges = pl.concat(
        [earlier_row.with_columns(time=UNTIL - timedelta(microseconds=1)), row_at_until.with_columns(time=UNTIL)]
    )
    log = pl.concat([clicks(4), edges.cast(dict(clicks(4).schema))])
    valid, bad, _ = validate_log(log)
    assert valid["event_time"].max() == UNTIL - timedelta(microseconds=1)
    assert bad["rule"].to_list() == ["future"]


def test_other_problems_of_future_rows_are_not_reported(validate_log: Callable[..., Outcome]) -> None:
    wrong = pl.when(pl.col("time") >= UNTIL).then(7).otherwise(pl.col("click")).alias("click")
    copies = clicks(6).filter(pl.col("time") >= UNTIL)
    valid, bad, _ = validate_log(pl.concat([clicks(6).with_columns(wrong), copies, copies]))
    assert (valid.height, bad["rule"].unique().to_list()) == (4 * ROWS, ["future"])


def test_future_rows_do_not_count_in_the_quarantined_share(validate_log: Callable[..., Outcome]) -> None:
    seventh = pl.col("time").dt.hour() == 7  # 15 of 300 rows a day
    log = clicks(60).with_columns(click=pl.when(seventh & (pl.col("time") < UNTIL)).then(7).otherwise("click"))
    with pytest.raises(DataError, match=r"60 of 1 200 \(5\.00%\) rows are quarantined \(label_is_binary 60\)"):
        validate_log(log)


def test_a_log_that_begins_after_until_is_refused(validate_log: Callable[..., Outcome]) -> None:
    with pytest.raises(DataError, match=r"no row is valid before 2023-12-31T00:00:00\+00:00, 1 800 lie at or after it"):
        validate_log(clicks(6), until=START - timedelta(days=1))


def test_freshness_is_measured_from_until(validate_log: Callable[..., Outcome]) -> None:
    a_year_later = UNTIL + timedelta(days=365)
    assert validate_log(clicks(6), now=a_year_later, rules={"max_age_hours": 5})[2].rows == 4 * ROWS
    with pytest.raises(DataError, match=r"the newest row is of 2024-01-04 19:56 UTC, 28\.1 hours old"):
        validate_log(clicks(4), until=UNTIL + timedelta(days=1), now=a_year_later, rules={"max_age_hours": 5})


def test_a_day_cut_by_until_does_not_break_the_volume_rule(validate_log: Callable[..., Outcome]) -> None:
    two_hours = UNTIL + timedelta(hours=2)  # 30 rows, a tenth of a day
    assert validate_log(clicks(6), until=two_hours)[2].days[-1].rows == 30
    short_day_log = clicks(6).filter((pl.col("time") < UNTIL) | (pl.col("time") >= UNTIL + timedelta(hours=18)))
    with pytest.raises(DataError, match="volume: 30 rows on 2024-01-05"):
        validate_log(short_day_log, until=UNTIL + timedelta(days=1))


def test_the_cut_day_follows_the_clock_timezone(declare: Callable[..., Any]) -> None:
    shanghai = declare(clock={"kind": "column", "column": "time", "unit": "s", "timezone": "Asia/Shanghai"})
    midnight_there = datetime(2024, 1, 4, 16, tzinfo=UTC)
    assert find_cut_day(midnight_there, shanghai) is None
    assert find_cut_day(UNTIL, shanghai) == date(2024, 1, 5)
    assert find_cut_day(UNTIL, declare()) is None
    assert find_cut_day(None, declare()) is None


@pytest.mark.parametrize("text", ["yesterday", "2024-01-05T00:00:00", "2024-01-05"])
def test_a_moment_without_its_offset_is_refused(text: str) -> None:
    with pytest.raises(DataError, match=f"until: got '{text}', wanted a moment as ISO 8601 with its offset"):
        parse_until(text)
    assert parse_until("") is None


def test_the_freshness_moment_is_empty_without_a_freshness_rule(declare: Callable[..., Any]) -> None:
    aged = declare(source={"path": "log.parquet"}, rules={"max_age_hours": 24})
    assert freshness_moment(aged, UNTIL) == "2024-01-05T00:00:00+00:00"
    assert freshness_moment(declare(source={"path": "log.parquet"}), UNTIL) == ""  # or every run would validate anew
