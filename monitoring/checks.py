"""Checks of a window's data. A failed check pages a person, and no training starts."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from monitoring.windows.kpi import REQUEST
from monitoring.windows.records import Problem, WindowReport
from shortlist.spec.monitoring import Checks, Monitoring, Window

if TYPE_CHECKING:
    from monitoring.reference.reference import ColumnReference, Reference
    from monitoring.windows.windows import LiveWindow

MEDIAN_WINDOWS: Final = 14
"""Most earlier windows whose median is the usual number of requests."""
_DAY: Final = timedelta(days=1)
_HOUR: Final = timedelta(hours=1)
_FIX_ADVICE: Final = "Fix the client or the upstream job; training is held."


def check_window(
    window: LiveWindow,
    reference: Reference,
    reports: Sequence[WindowReport],
    settings: Monitoring,
    sent: Container[str] | None = None,
) -> tuple[tuple[Problem, ...], float | None]:
    """Return the problems of a window's data, and the ratio of its requests to the usual number.

    Few rows are no problem of their own: they leave a window unjudged. The volume and coverage checks report a window
    that has fewer than it should.

    Args:
        window: The window of live traffic.
        reference: The reference of the model that served it.
        reports: Reports of other windows; those that start later are ignored.
        settings: The limits.
        sent: Columns that requests carry; all by default. The others are looked up by key in the side tables that the
            model was trained on: there, a null means that the key is new, which is drift and not a fault.

    Returns:
        The problems, those of the whole window first. The ratio is None while there are too few earlier windows.
    """
    usual_requests = _usual_requests(window, reports, reference, settings.checks)
    problems = [
        *(Problem(kind="schema", reason=reason) for reason in window.unreadable),
        *_volume_problems(window, usual_requests, settings.checks),
        *_coverage_problems(window, settings.window),
        *_clock_problems(window, settings.checks),
        *_column_problems(window, _sent_columns(reference, sent), settings),
    ]
    return tuple(problems), window.requests / usual_requests if usual_requests else None


def _usual_requests(
    window: LiveWindow, reports: Sequence[WindowReport], reference: Reference, limits: Checks
) -> float | None:
    """Return the usual number of requests in a window of this length: the median of the newest at its time of day.

    Windows of other weekdays count as much more or less as the training days of the two weekdays differ. Where that
    number is unusual and windows of the same weekday are not, the median of those is returned: a week repeats itself.
    Windows with a volume problem are left out, so that a collapse does not become the usual number.
    """
    earlier = [
        report
        for report in sorted(reports, key=lambda report: report.start)
        if report.start < window.start
        and _same_time_of_day(report.start, window.start)
        and all(problem.kind != "volume" for problem in report.problems)
    ]
    if len(earlier) < limits.volume_windows:
        return None
    hours, weights = (window.end - window.start) / _HOUR, _weekday_weights(reference)
    comparable = [(_requests_per_hour(report), _middle(report).weekday()) for report in earlier[-MEDIAN_WINDOWS:]]
    weekday = _middle(window).weekday()
    usual = hours * median(requests / weights[day] for requests, day in comparable) * weights[weekday]
    same_weekday = [requests for requests, day in comparable if day == weekday]
    if same_weekday and not _is_usual(window.requests, usual, limits):
        usual_of_weekday = hours * median(same_weekday)
        usual = usual_of_weekday if _is_usual(window.requests, usual_of_weekday, limits) else usual
    return usual or None


def _weekday_weights(reference: Reference) -> list[float]:
    """Return the rows of each weekday's training days as a multiple of their mean; 1 where they miss a weekday."""
    rows_by_weekday: dict[int, list[int]] = {weekday: [] for weekday in range(7)}
    columns = [column for column in reference.columns.values() if column.bins.kind != "tags"]
    column = min(columns, key=lambda column: column.nulls, default=None)
    for day, counts in zip(reference.days, column.counts if column is not None else (), strict=False):
        rows_by_weekday[day.weekday()].append(sum(counts))
    means = [sum(rows) / len(rows) if rows else 0.0 for rows in rows_by_weekday.values()]
    return [7 * mean / sum(means) for mean in means] if all(means) else [1.0] * 7


def _requests_per_hour(report: WindowReport) -> float:
    return report.requests / ((report.end - report.start) / _HOUR)


def _middle(window: LiveWindow | WindowReport) -> datetime:
    # Windows follow the log's timezone: at noon of a day there, the date in UTC is the same in most timezones.
    return window.start + (window.end - window.start) / 2


def _is_usual(requests: int, usual: float, limits: Checks) -> bool:
    return limits.min_volume_ratio * usual <= requests <= limits.max_volume_ratio * usual


def _same_time_of_day(moment: datetime, other_moment: datetime) -> bool:
    # Windows follow the log's timezone, so a change to summer time moves them by an hour.
    distance = abs(moment - other_moment) % _DAY
    return min(distance, _DAY - distance) <= _HOUR


def _volume_problems(window: LiveWindow, usual_requests: float | None, limits: Checks) -> Iterator[Problem]:
    if usual_requests is None or _is_usual(window.requests, usual_requests, limits):
        return
    min_ratio, max_ratio = limits.min_volume_ratio, limits.max_volume_ratio
    is_low = window.requests < usual_requests
    yield Problem(
        kind="volume",
        reason=f"{window.requests} requests, {window.requests / usual_requests:.2g} times the usual"
        f" {usual_requests:.0f}, wanted {min_ratio:g} to {max_ratio:g} times. Find out"
        f" {'where they went' if is_low else 'what sends them'}; if the volume stays like this, change"
        f" checks.{'min' if is_low else 'max'}_volume_ratio. Training is held.",
    )


def _coverage_problems(window: LiveWindow, limits: Window) -> Iterator[Problem]:
    # Of fewer rows no window is evaluated, and a few requests without outcomes are no fault of what writes these.
    if window.answered_rows >= limits.min_rows and window.coverage < limits.min_coverage:
        yield Problem(
            kind="coverage",
            reason=f"{window.coverage:.1%} of {window.requests} answered requests have an outcome, wanted at least"
            f" {limits.min_coverage:.1%}; {window.orphans} outcomes belong to no request. Fix what writes outcomes, or"
            " raise window.maturity_hours if they only arrive late; training is held.",
        )


def clock_warnings(window: LiveWindow, limits: Checks) -> tuple[str, ...]:
    """Return a sentence about rows in the future that are too few for a problem; nothing without such rows."""
    if not window.future or _has_wrong_clocks(window, limits):
        return ()
    return (f"{_describe_future_rows(window, limits)}; they are left out.",)


def _clock_problems(window: LiveWindow, limits: Checks) -> Iterator[Problem]:
    if _has_wrong_clocks(window, limits):
        yield Problem(
            kind="clock",
            reason=f"{_describe_future_rows(window, limits)}, wanted at most {limits.max_future_share:.1%}. Set the"
            " clocks of clients and servers; training is held.",
        )


def _has_wrong_clocks(window: LiveWindow, limits: Checks) -> bool:
    # A share, because clients choose these times: a few wrong clocks among many must not hold the training.
    return window.future > limits.max_future_share * window.answered_rows


def _describe_future_rows(window: LiveWindow, limits: Checks) -> str:
    return (
        f"{window.future} of {window.answered_rows} rows lie more than {limits.max_clock_skew_minutes:g} minutes in the"
        " future"
    )


def _sent_columns(reference: Reference, sent: Container[str] | None) -> dict[str, ColumnReference]:
    return {name: column for name, column in reference.columns.items() if sent is None or name in sent}


def _column_problems(
    window: LiveWindow, columns: Mapping[str, ColumnReference], settings: Monitoring
) -> Iterator[Problem]:
    if not window.rows.height or not columns:
        return
    alpha = settings.drift.alpha / len(columns)  # for all columns together (Bonferroni)
    requests = window.rows[REQUEST].n_unique()
    for name, column in columns.items():
        null_share = _null_share(window.rows, name, column)
        if _null_p_value(null_share, requests, column) >= alpha:
            continue
        if null_share == 1:
            yield Problem(
                kind="schema",
                column=name,
                reason=f"'{name}' is not sent: null in all {window.rows.height} rows, wanted {column.nulls:.1%} as in"
                f" the reference. {_FIX_ADVICE}",
            )
        elif null_share > column.nulls + settings.checks.max_null_increase:
            yield Problem(
                kind="nulls",
                column=name,
                reason=f"'{name}' is null in {null_share:.1%} of {window.rows.height} rows, wanted at most"
                f" {column.nulls + settings.checks.max_null_increase:.1%} ({column.nulls:.1%} in the reference)."
                f" {_FIX_ADVICE}",
            )


def _null_share(rows: pl.DataFrame, name: str, column: ColumnReference) -> float:
    """Return the share of rows whose value the bins cannot count; 1 when the column is missing."""
    if name not in rows.columns:
        return 1.0
    with_values = np.unique(column.bins.codes(rows[name])[0]).size
    return 1.0 - with_values / rows.height


def _null_p_value(share: float, requests: int, column: ColumnReference) -> float:
    """Return the probability of as many nulls at the reference's share, counting the rows of a request as one.

    The reference's share is smoothed by one more null (Laplace): no null in 1 000 rows does not prove a share of 0.
    """
    from scipy.stats import binom

    expected = (column.nulls * column.rows + 1) / (column.rows + 2)
    return float(binom.sf(round(share * requests) - 1, requests, expected))
