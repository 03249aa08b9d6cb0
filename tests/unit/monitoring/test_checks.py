from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from monitoring.checks import check_window, clock_warnings
from monitoring.reference.distributions import Bins, Kind
from monitoring.reference.reference import ColumnReference, Reference
from monitoring.windows.live_window import LiveWindow
from monitoring.windows.records import Problem, WindowReport
from shortlist.spec.monitoring import Checks, Monitoring

START = datetime(2026, 1, 19, tzinfo=UTC)
DAY = timedelta(days=1)
SETTINGS = Monitoring()
BINS: dict[Kind, Bins] = {
    "numeric": Bins(kind="numeric", edges=(0.0, 10.0)),
    "categorical": Bins(kind="categorical", values=("phone",)),
    "tags": Bins(kind="tags", values=("a",)),
}


def window_of(rows: pl.DataFrame | None = None, **odd: object) -> LiveWindow:
    frame = table(1_000) if rows is None else rows
    good = LiveWindow(START, START + DAY, 400, frame, 0.9, 0, 0, 0, 0, pl.DataFrame())
    return replace(good, **{"answered_rows": 2_000, **odd})  # type: ignore[arg-type]


def table(count: int, nulls: int = 0, value: object = 5.0, per_request: int = 5) -> pl.DataFrame:
    """Return rows of requests of 5; the first `nulls` rows have no duration."""
    values = [None] * nulls + [value] * (count - nulls)
    return pl.DataFrame({"request_id": [f"r{row // per_request}" for row in range(count)], "duration": values})


def reference_of(nulls: float = 0.02, kind: Kind = "numeric", rows: int = 100_000) -> Reference:
    counts = ((rows, *[0] * (BINS[kind].size - 1)),)
    columns = {"duration": ColumnReference(bins=BINS[kind], counts=counts, nulls=nulls, rows=rows)}
    return Reference("demo", (date(2026, 1, 18),), columns, {}, {}, pl.DataFrame())


def report_of(start: datetime, requests: int, hours: float = 24, problems: tuple[Problem, ...] = ()) -> WindowReport:
    return WindowReport(
        spec="demo", start=start, end=start + timedelta(hours=hours), made=start, champion=3, versions={3: 1},
        requests=requests, rows=1, coverage=1.0, problems=problems,
    )  # fmt: skip


def daily_reports(*requests: int) -> list[WindowReport]:
    """Return reports of consecutive days, the last of the day before the window."""
    return [report_of(START - DAY * (len(requests) - day), count) for day, count in enumerate(requests)]


def problems_of(window: LiveWindow, reference: Reference | None = None) -> tuple[Problem, ...]:
    return check_window(window, reference or reference_of(), (), SETTINGS)[0]


def test_valid_data_have_no_problems() -> None:
    assert check_window(window_of(), reference_of(), daily_reports(390, 410, 400), SETTINGS) == ((), 1.0)


def test_too_many_nulls_are_reported_with_column_and_next_step() -> None:
    (problem,) = problems_of(window_of(table(1_000, nulls=300)))
    assert (problem.kind, problem.column) == ("nulls", "duration")
    assert problem.reason == (
        "'duration' is null in 30.0% of 1000 rows, wanted at most 12.0% (2.0% in the reference)."
        " Fix the client or the upstream job; training is held."
    )


@pytest.mark.parametrize(
    ("nulls", "usual", "problem_count"),
    [
        (120, 0.02, 0),  # up by exactly as much as is allowed
        (140, 0.02, 1),
        (0, 0.5, 0),  # fewer nulls than ever are no problem
        (590, 0.5, 0),
        (650, 0.5, 1),
    ],
)
def test_nulls_are_judged_by_their_increase(nulls: int, usual: float, problem_count: int) -> None:
    assert len(problems_of(window_of(table(1_000, nulls=nulls)), reference_of(usual))) == problem_count


def test_nulls_of_few_requests_are_not_significant() -> None:
    # 30 % instead of 15 %, up by more than 10: 6 of 20 requests, or of 20 rows, are chance; 300 of 1 000 are not.
    few_requests, many_requests = table(20, nulls=6, per_request=1), table(1_000, nulls=300, per_request=1)
    assert problems_of(window_of(few_requests), reference_of(0.15)) == ()
    assert len(problems_of(window_of(many_requests), reference_of(0.15))) == 1
    one_request_each = table(1_000, nulls=300, per_request=50)  # the same rows of 20 requests
    assert problems_of(window_of(one_request_each), reference_of(0.15)) == ()


def test_a_small_reference_without_nulls_allows_some_nulls() -> None:
    window = window_of(table(5, nulls=1, per_request=1))
    assert problems_of(window, reference_of(0.0, rows=1_000)) == ()


def test_chance_is_no_problem_with_many_columns() -> None:
    generator = np.random.default_rng(1)
    missing = generator.random((2_000, 30)) < 0.2
    assert (missing.mean(axis=1) > 0.3).sum() > 100  # up by more than 10 points in 30 requests, by chance alone
    columns = {f"c{number}": np.where(is_missing, np.nan, 1.0) for number, is_missing in enumerate(missing)}
    reference = replace(reference_of(), columns=dict.fromkeys(columns, reference_of(0.2).columns["duration"]))
    rows = pl.DataFrame({"request_id": list(map(str, range(30))), **columns})
    assert problems_of(window_of(rows), reference) == ()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_count_as_null(value: float) -> None:
    rows = table(1_000).with_columns(duration=pl.when(pl.int_range(pl.len()) < 400).then(value).otherwise("duration"))
    (problem,) = problems_of(window_of(rows))
    assert "null in 40.0% of 1000 rows" in problem.reason


def test_an_empty_list_counts_as_null() -> None:
    rows = table(1_000, value=["a"]).with_columns(
        duration=pl.when(pl.int_range(pl.len()) < 400).then(pl.lit([], pl.List(pl.String))).otherwise("duration")
    )
    (problem,) = problems_of(window_of(rows), reference_of(kind="tags"))
    assert "null in 40.0% of 1000 rows" in problem.reason


def test_values_without_a_bin_of_their_own_are_not_null() -> None:
    assert problems_of(window_of(table(1_000, value="never seen")), reference_of(kind="categorical")) == ()


@pytest.mark.parametrize(
    "rows", [table(1_000).drop("duration"), table(1_000, nulls=1_000).cast({"duration": pl.Float64})]
)
def test_a_column_that_is_not_sent_is_reported(rows: pl.DataFrame) -> None:
    (problem,) = problems_of(window_of(rows), reference_of(0.95))  # so few values that an increase could not tell
    assert (problem.kind, problem.column) == ("schema", "duration")
    assert problem.reason.startswith("'duration' is not sent: null in all 1000 rows, wanted 95.0% as in the reference.")


def test_a_column_without_values_in_the_reference_may_be_missing() -> None:
    assert problems_of(window_of(table(1_000).drop("duration")), reference_of(1.0)) == ()


def test_a_side_tables_column_may_be_null_for_new_keys() -> None:
    reference = reference_of()
    reference = replace(reference, columns={**reference.columns, "creator_id": reference.columns["duration"]})
    rows = table(1_000, nulls=600).with_columns(creator_id=pl.col("duration"))
    (problem,) = check_window(window_of(rows), reference, (), SETTINGS, sent={"duration", "item_id"})[0]
    assert problem.column == "duration"
    assert {problem.column for problem in problems_of(window_of(rows), reference)} == {"duration", "creator_id"}


@pytest.mark.parametrize(
    ("requests", "ratio", "message"),
    [
        (24, 0.06, "24 requests, 0.06 times the usual 400, wanted 0.5 to 3 times. Find out where they went"),
        (0, 0.0, "0 requests, 0 times the usual 400"),
        (1_600, 4.0, "1600 requests, 4 times the usual 400, wanted 0.5 to 3 times. Find out what sends them"),
    ],
)
def test_volume_is_compared_with_the_median_of_earlier_windows(requests: int, ratio: float, message: str) -> None:
    window = window_of(table(1_000), requests=requests)
    (problem,), measured_ratio = check_window(window, reference_of(), daily_reports(100, 400, 9_000), SETTINGS)
    assert (problem.kind, problem.column, measured_ratio) == ("volume", None, ratio)
    assert message in problem.reason


@pytest.mark.parametrize("requests", [200, 1_200])
def test_volume_at_its_limits_is_allowed(requests: int) -> None:
    window = window_of(requests=requests)
    assert check_window(window, reference_of(), daily_reports(400, 400, 400), SETTINGS)[0] == ()


def test_volume_is_not_judged_after_too_few_windows() -> None:
    assert check_window(window_of(requests=1), reference_of(), daily_reports(400, 400), SETTINGS) == ((), None)


def test_windows_with_a_volume_problem_do_not_count_as_usual() -> None:
    broken = (Problem(kind="volume", reason="collapsed"),)
    collapsed = [report_of(START - DAY * day, 20, problems=broken) for day in (3, 2, 1)]
    reports = [report_of(START - DAY * day, 400) for day in (6, 5, 4)] + collapsed
    (problem,), ratio = check_window(window_of(requests=20), reference_of(), reports, SETTINGS)
    assert (problem.kind, ratio) == ("volume", 0.05)


def test_windows_with_other_problems_count_for_the_usual_volume() -> None:
    broken = (Problem(kind="nulls", column="duration", reason="null"),)
    reports = [report_of(START - DAY * day, 400, problems=broken) for day in (3, 2, 1)]
    assert check_window(window_of(), reference_of(), reports, SETTINGS)[1] == 1.0


def test_the_usual_volume_is_the_median_of_the_newest_fourteen_windows() -> None:
    reports = daily_reports(*[4_000] * 30, *[400] * 8, *[4_000] * 6)
    assert check_window(window_of(), reference_of(), reports[::-1], SETTINGS)[1] == 1.0


def test_later_windows_do_not_count_for_the_usual_volume() -> None:
    later_reports = [report_of(START + DAY * day, 4_000) for day in range(5)]
    assert check_window(window_of(), reference_of(), [*daily_reports(400, 400), *later_reports], SETTINGS)[1] is None


def test_volume_is_compared_at_the_same_time_of_day() -> None:
    hours = [START - DAY * day + timedelta(hours=hour) for day in (3, 2, 1) for hour in range(0, 24, 6)]
    reports = [report_of(start, 400 if start.hour else 40, hours=6) for start in hours]
    night = window_of(requests=40, end=START + timedelta(hours=6))
    assert check_window(night, reference_of(), reports, SETTINGS) == ((), 1.0)
    noon = replace(night, start=START + timedelta(hours=12), end=START + timedelta(hours=18))
    (problem,), ratio = check_window(noon, reference_of(), reports, SETTINGS)
    assert (problem.kind, ratio) == ("volume", 0.1)


def weekly_reference(weekend_rows: int) -> Reference:
    """Return the reference of 14 training days whose weekends have fewer rows."""
    days = tuple(date(2026, 1, 5) + day * DAY for day in range(14))
    rows = [weekend_rows if day.weekday() > 4 else 1_000 for day in days]
    counts = tuple((count, *[0] * (BINS["numeric"].size - 1)) for count in rows)
    columns = {"duration": ColumnReference(bins=BINS["numeric"], counts=counts, nulls=0, rows=sum(rows))}
    return Reference("demo", days, columns, {}, {}, pl.DataFrame())


def test_the_first_weekend_is_compared_with_the_weekends_of_the_training_days() -> None:
    saturday = START + 5 * DAY
    weekdays = [report_of(START + DAY * day, 400) for day in range(5)]
    weekend = window_of(requests=140, start=saturday, end=saturday + DAY)
    problems, ratio = check_window(weekend, weekly_reference(350), weekdays, SETTINGS)
    assert problems == () and ratio == pytest.approx(1.0)
    (problem,), _ = check_window(weekend, weekly_reference(1_000), weekdays, SETTINGS)
    assert problem.kind == "volume"
    collapsed = replace(weekend, requests=20)
    (problem,), _ = check_window(collapsed, weekly_reference(350), weekdays, SETTINGS)
    assert problem.kind == "volume" and "0.14 times the usual 140" in problem.reason


def test_a_weekend_is_compared_with_the_previous_weekend() -> None:
    counts = [400, 400, 400, 400, 400, 140, 140, 400, 400, 400, 400, 400]
    reports = [report_of(START + DAY * day, count) for day, count in enumerate(counts)]
    saturday = START + 12 * DAY
    weekend = window_of(requests=140, start=saturday, end=saturday + DAY)
    assert check_window(weekend, reference_of(), reports, SETTINGS) == ((), 1.0)
    (problem,), _ = check_window(replace(weekend, requests=20), reference_of(), reports, SETTINGS)
    assert problem.kind == "volume"


def test_volume_is_per_hour_when_summer_time_changes_a_windows_length() -> None:
    # A day of 23 hours that starts an hour later than those before.
    reports = daily_reports(480, 480, 480)
    short = window_of(requests=460, start=START + timedelta(hours=1))
    assert check_window(short, reference_of(), reports, SETTINGS)[1] == pytest.approx(1.0)


def test_missing_outcomes_are_a_problem() -> None:
    (problem,) = problems_of(window_of(coverage=0.31, orphans=7))
    assert problem.kind == "coverage"
    assert "31.0% of 400 answered requests have an outcome, wanted at least 50.0%; 7 outcomes belong" in problem.reason
    assert problems_of(window_of(coverage=0.5)) == ()


def test_a_few_requests_without_outcomes_are_no_problem() -> None:
    """As one client's on the first day of live traffic."""
    assert problems_of(window_of(coverage=0.0, answered_rows=SETTINGS.window.min_rows - 1)) == ()
    assert len(problems_of(window_of(coverage=0.0, answered_rows=SETTINGS.window.min_rows))) == 1


def test_a_window_without_requests_misses_no_outcome() -> None:
    empty = window_of(table(5).clear(), requests=0, coverage=0.0, answered_rows=0)
    assert check_window(empty, reference_of(), (), SETTINGS) == ((), None)


def test_few_rows_alone_are_no_problem() -> None:
    window = window_of(table(10), requests=2)
    assert window.rows.height < SETTINGS.window.min_rows
    assert problems_of(window) == ()


def test_rows_in_the_future_are_a_problem_of_clocks() -> None:
    (problem,) = problems_of(window_of(future=60, answered_rows=1_000))
    assert problem.kind == "clock"
    assert problem.reason.startswith(
        "60 of 1000 rows lie more than 5 minutes in the future, wanted at most 5.0%. Set the clocks"
    )


@pytest.mark.parametrize("future", [1, 494])
def test_few_rows_in_the_future_are_named_and_break_no_window(future: int) -> None:
    window = window_of(future=future, answered_rows=9_893)  # 5 % are 494.65
    assert problems_of(window) == ()
    sentence = f"{future} of 9893 rows lie more than 5 minutes in the future; they are left out."
    assert clock_warnings(window, SETTINGS.checks) == (sentence,)


def test_every_window_with_rows_in_the_future_names_them_once() -> None:
    broken = window_of(future=495, answered_rows=9_893)
    assert [problem.kind for problem in problems_of(broken)] == ["clock"]
    assert (
        clock_warnings(broken, SETTINGS.checks) == clock_warnings(window_of(answered_rows=9_893), SETTINGS.checks) == ()
    )


def test_the_share_of_rows_in_the_future_is_declared() -> None:
    strict = Monitoring(checks=Checks(max_future_share=0))
    problems, _ = check_window(window_of(future=1, answered_rows=9_893), reference_of(), (), strict)
    assert [problem.kind for problem in problems] == ["clock"]


def test_a_log_that_cannot_be_read_is_a_problem() -> None:
    (problem,) = problems_of(window_of(unreadable=("part-000001.parquet: torn; restore it",)))
    assert (problem.kind, problem.reason) == ("schema", "part-000001.parquet: torn; restore it")


def test_all_problems_are_reported_at_once() -> None:
    window = window_of(table(1_000, nulls=500), requests=20, coverage=0.1, future=200, unreadable=("torn",))
    problems, _ = check_window(window, reference_of(), daily_reports(400, 400, 400), SETTINGS)
    assert [problem.kind for problem in problems] == ["schema", "volume", "coverage", "clock", "nulls"]


def test_declared_limits_apply() -> None:
    lax = Monitoring(checks=Checks(max_null_increase=0.5, min_volume_ratio=0.01, volume_windows=1))
    window = window_of(table(1_000, nulls=500), requests=20)
    assert check_window(window, reference_of(), daily_reports(400), lax) == ((), 0.05)
