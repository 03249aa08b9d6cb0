"""No row from the moment `until` on reaches the valid log, and none of them is held against the others."""

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
"""Per day."""
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
def judged(tmp_path: Path, declare: Callable[..., Any], judge: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Return the valid rows, the quarantined ones and the table of a log, with `until`."""

    def outcome(log: pl.DataFrame, until: datetime | None = UNTIL, now: datetime = UNTIL, **sections: Any) -> Outcome:
        log.write_parquet(tmp_path / "log.parquet")
        return judge(declare(source={"path": "log.parquet"}, **sections), tmp_path, now=now, until=until)

    return outcome


def test_rows_of_the_future_are_quarantined_beyond_any_tolerance_and_the_rest_is_as_without_them(
    judged: Callable[..., Outcome],
) -> None:
    valid, bad, table = judged(clicks(6), rules={"max_quarantined_share": 0.0})
    assert bad["rule"].to_list() == ["future"] * 2 * ROWS
    assert bad["detail"][0] == (
        "event_time: got '2024-01-05 00:00:00.000000+00:00', wanted a time before 2024-01-05 00:00:00 UTC, the moment"
        " until which this run may read"
    )
    assert table.notes["by_rule"] == {"future": 600}
    assert table.notes["raw_rows"] == table.notes["valid_rows"] + table.notes["quarantined_rows"] == 1_800
    assert table.notes["until"] == "2024-01-05T00:00:00+00:00"
    alone, nothing, without = judged(clicks(4), until=None)
    assert valid.equals(alone)
    assert nothing.is_empty()
    assert without.days == table.days
    assert without.notes["column_aucs"] == table.notes["column_aucs"]


def test_the_moment_itself_is_future_and_the_microsecond_before_is_not(judged: Callable[..., Outcome]) -> None:
    before, at = clicks(4).tail(1), clicks(4).tail(1)
    edges = pl.concat([before.with_columns(time=UNTIL - timedelta(microseconds=1)), at.with_columns(time=UNTIL)])
    log = pl.concat([clicks(4), edges.cast(dict(clicks(4).schema))])
    valid, bad, _ = judged(log)
    assert valid["event_time"].max() == UNTIL - timedelta(microseconds=1)
    assert bad["rule"].to_list() == ["future"]


def test_what_else_is_wrong_with_a_future_row_is_not_told_nor_counted(judged: Callable[..., Outcome]) -> None:
    wrong = pl.when(pl.col("time") >= UNTIL).then(7).otherwise(pl.col("click")).alias("click")
    copies = clicks(6).filter(pl.col("time") >= UNTIL)
    valid, bad, _ = judged(pl.concat([clicks(6).with_columns(wrong), copies, copies]))
    assert (valid.height, bad["rule"].unique().to_list()) == (4 * ROWS, ["future"])


def test_future_rows_do_not_thin_out_the_bad_ones(judged: Callable[..., Outcome]) -> None:
    seventh = pl.col("time").dt.hour() == 7  # 15 of 300 rows a day
    log = clicks(60).with_columns(click=pl.when(seventh & (pl.col("time") < UNTIL)).then(7).otherwise("click"))
    with pytest.raises(DataError, match=r"60 of 1 200 \(5\.00%\) rows are quarantined \(label_is_binary 60\)"):
        judged(log)


def test_a_log_that_begins_later_says_so(judged: Callable[..., Outcome]) -> None:
    with pytest.raises(DataError, match=r"no row is valid before 2023-12-31T00:00:00\+00:00, 1 800 lie at or after it"):
        judged(clicks(6), until=START - timedelta(days=1))


def test_freshness_is_seen_from_the_moment_itself(judged: Callable[..., Outcome]) -> None:
    a_year_later = UNTIL + timedelta(days=365)
    assert judged(clicks(6), now=a_year_later, rules={"max_age_hours": 5})[2].rows == 4 * ROWS
    with pytest.raises(DataError, match=r"the newest row is of 2024-01-04 19:56 UTC, 28\.1 hours old"):
        judged(clicks(4), until=UNTIL + timedelta(days=1), now=a_year_later, rules={"max_age_hours": 5})


def test_a_day_cut_short_is_no_fall_of_volume_but_a_short_day_is(judged: Callable[..., Outcome]) -> None:
    two_hours = UNTIL + timedelta(hours=2)  # 30 rows, a tenth of a day
    assert judged(clicks(6), until=two_hours)[2].days[-1].rows == 30
    short = clicks(6).filter((pl.col("time") < UNTIL) | (pl.col("time") >= UNTIL + timedelta(hours=18)))
    with pytest.raises(DataError, match="volume: 30 rows on 2024-01-05"):
        judged(short, until=UNTIL + timedelta(days=1))


def test_a_day_is_cut_where_the_clock_says_it_begins(declare: Callable[..., Any]) -> None:
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


def test_freshness_is_judged_against_a_moment_only_where_a_rule_asks_for_it(declare: Callable[..., Any]) -> None:
    aged = declare(source={"path": "log.parquet"}, rules={"max_age_hours": 24})
    assert freshness_moment(aged, UNTIL) == "2024-01-05T00:00:00+00:00"
    assert freshness_moment(declare(source={"path": "log.parquet"}), UNTIL) == ""  # or every run would validate anew
