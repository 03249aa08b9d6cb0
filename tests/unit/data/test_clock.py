"""Times from a column or from the order of rows, and refusals of wrong units and formats."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import polars as pl
import pytest

from shortlist.contracts import Columns, DataError
from shortlist.data.reading.clock import check_time_unit, check_timezone, event_days, event_times, row_times
from shortlist.spec.data import EventClock, RowClock

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
SECONDS = 1_704_110_400


def clock_with_unit(unit: str, **settings: Any) -> EventClock:
    return EventClock(column="time", unit=unit, **settings)


@pytest.mark.parametrize(
    ("unit", "values"),
    [
        ("s", [SECONDS]),
        ("s", [float(SECONDS)]),
        ("s", [f" {SECONDS} "]),
        ("ms", [SECONDS * 1_000]),
        ("us", [SECONDS * 1_000_000]),
        ("iso", ["2024-01-01T12:00:00Z"]),
        ("iso", ["2024-01-01 13:00:00.000+01:00"]),
        ("iso", ["2024-01-01T12:00:00"]),
        ("iso", ["2024-01-01 12:00"]),
        ("s", [datetime(2024, 1, 1, 12)]),
        ("iso", [NOON]),
    ],
)
def test_times_in_any_unit_are_parsed(unit: str, values: list[Any]) -> None:
    times = event_times(pl.Series(values), clock_with_unit(unit))
    assert times.to_list() == [NOON]
    assert times.dtype == pl.Datetime("us", "UTC")


def test_fractions_of_a_second_are_preserved() -> None:
    assert event_times(pl.Series([SECONDS + 0.25]), clock_with_unit("s")).to_list() == [
        NOON + timedelta(milliseconds=250)
    ]


def test_text_without_an_offset_is_local_time() -> None:
    shanghai = clock_with_unit("iso", timezone="Asia/Shanghai")
    times = event_times(pl.Series(["2024-01-01 20:00:00", "2024-01-01", "2024-01-01T12:00:00Z"]), shanghai)
    assert times.to_list() == [NOON, NOON - timedelta(hours=20), NOON]


def test_local_times_skipped_by_summer_time_are_null() -> None:
    berlin = clock_with_unit("iso", timezone="Europe/Berlin")
    times = event_times(pl.Series(["2024-03-31 02:30:00", "2024-10-27 02:30:00"]), berlin)
    assert times.to_list() == [None, datetime(2024, 10, 27, 0, 30, tzinfo=UTC)]


def test_days_begin_at_midnight_in_the_clock_timezone() -> None:
    times = event_times(pl.Series(["2023-12-31T15:59:59Z", "2023-12-31T16:00:00Z"]), clock_with_unit("iso"))
    days = event_days(times, clock_with_unit("iso", timezone="Asia/Shanghai"))
    assert days.to_list() == [date(2023, 12, 31), date(2024, 1, 1)]


def test_times_outside_the_declared_range_are_null() -> None:
    bounded = clock_with_unit("iso", earliest="2024-01-01", latest="2024-01-02")
    texts = ["2023-12-31T23:59:59Z", "2024-01-01", "2024-01-02T23:59:59Z", "2024-01-03"]
    assert event_times(pl.Series(texts), bounded).is_null().to_list() == [True, False, False, True]


@pytest.mark.parametrize(
    ("unit", "value", "message"),
    [
        ("s", 1_650_812_741_436, r"got e.g. 1650812741436 read as s = year 54282, wanted .*; declare unit: ms"),
        ("ms", SECONDS, r"got e.g. 1704110400 read as ms = year 1970, wanted .*; declare unit: s"),
        ("ms", "2024-01-01T12:00:00Z", r"got e.g. '2024-01-01T12:00:00Z', wanted .*; declare unit: iso"),
        ("iso", str(SECONDS), r"got e.g. '1704110400', wanted .*; declare unit: s"),
        ("s", 7, r"got e.g. 7 read as s = year 1970, wanted .*; check clock.column, unit, earliest and latest"),
    ],
)
def test_a_wrong_unit_is_refused_with_the_correct_unit(unit: str, value: Any, message: str) -> None:
    raw = pl.Series([value] * 20 + [None] * 5)
    with pytest.raises(DataError, match=r"log.csv: the unit of clock column 'time' is probably wrong: " + message):
        check_time_unit(raw, event_times(raw, clock_with_unit(unit)), clock_with_unit(unit), "log.csv")


def test_a_few_invalid_times_are_accepted() -> None:
    raw = pl.Series([SECONDS] * 30 + [0] * 30)
    check_time_unit(raw, event_times(raw, clock_with_unit("s")), clock_with_unit("s"), "log.csv")


def test_an_unknown_timezone_is_refused() -> None:
    with pytest.raises(DataError, match=r"'Asia/Shangai' is no IANA timezone; did you mean 'Asia/Shanghai'"):
        check_timezone(clock_with_unit("s", timezone="Asia/Shangai"))


def test_row_order_makes_equal_days() -> None:
    declared = RowClock(kind="row_order", days=3, start=date(2000, 1, 3))
    frame = row_times(pl.int_range(10, eager=True), 10, declared)
    # Row n is of day n * 3 // 10: four, three and three rows.
    assert frame[Columns.DAY].dt.day().to_list() == [3, 3, 3, 3, 4, 4, 4, 5, 5, 5]
    assert frame[Columns.TIME][0] == datetime(2000, 1, 3, tzinfo=UTC)
    # The second row of ten stands at 3/10 of its day.
    assert frame[Columns.TIME][1] == datetime(2000, 1, 3, tzinfo=UTC) + 0.3 * timedelta(days=1)
    assert frame[Columns.TIME].is_sorted()


def test_row_order_stays_exact_for_billions_of_rows() -> None:
    rows = 4_000_000_000
    declared = RowClock(kind="row_order", days=7)
    borders = pl.Series([rows // 7, rows // 7 + 1, rows - 1, rows + 5])
    days = row_times(borders, rows, declared)[Columns.DAY].dt.day().to_list()
    assert days == [3, 4, 9, 9]  # 4e9 / 7 is no whole number: its floor is still of the first day


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("%d/%m/%Y %H:%M", "1/1/2024 12:00"),
        ("%m/%d/%Y %I:%M:%S %p", "01/01/2024 12:00:00 PM"),
        ("%d/%b/%Y:%H:%M:%S %z", "01/Jan/2024:13:00:00 +0100"),
        ("%Y%m%d%H%M", "202401011200"),
        ("%Y-%m-%d %H:%M:%S.%f", "2024-01-01 12:00:00.000"),
    ],
)
def test_times_in_a_declared_format_are_parsed(form: str, text: str) -> None:
    format_clock = EventClock(column="time", format=form)
    assert event_times(pl.Series([text, "2024"]), format_clock).to_list() == [NOON, None]


def test_times_in_a_declared_format_are_local() -> None:
    shanghai = EventClock(column="time", format="%d.%m.%Y %H:%M", timezone="Asia/Shanghai")
    assert event_times(pl.Series(["01.01.2024 20:00"]), shanghai).to_list() == [NOON]


@pytest.mark.parametrize(
    ("unit", "form", "values", "message"),
    [
        ("iso", None, ["31/01/2024 12:00"] * 20, r"the format of .*got e.g. '31/01/2024 12:00', wanted ISO 8601 text.*;"
         r" declare format: '%d/%m/%Y %H:%M' \("),
        ("iso", None, ["05/06/2024"] * 20, r"declare format: '%d/%m/%Y' or format: '%m/%d/%Y' \("),
        ("s", None, ["31.01.2024"] * 20, r"the format of .*; declare format: '%d.%m.%Y' \("),
        (None, "%d/%m/%Y", ["01/31/2024"] * 20, r"wanted a time as %d/%m/%Y, from .*; declare format: '%m/%d/%Y' \("),
        (None, "%d/%m/%Y", ["2024-01-31"] * 20, r"declare unit: iso \("),
        ("iso", None, ["last Tuesday"] * 20, r"declare how it is written: format: '%d/%m/%Y %H:%M:%S' \("),
    ],
)  # fmt: skip
def test_a_wrong_text_format_is_refused_with_the_likely_formats(
    unit: str | None, form: str | None, values: list[str], message: str
) -> None:
    declared_clock = EventClock.model_validate({"column": "time", "unit": unit, "format": form})
    raw = pl.Series(values)
    with pytest.raises(DataError, match=message):
        check_time_unit(raw, event_times(raw, declared_clock), declared_clock, "log.csv")
