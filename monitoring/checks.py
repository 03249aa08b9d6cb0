"""Whether the data of a window can be trusted: what is wrong with them pages a person and starts no training."""

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

MEDIAN_OF: Final = 14
"""Windows before that say how many requests are usual."""
_DAY: Final = timedelta(days=1)
_HOUR: Final = timedelta(hours=1)
_MEND: Final = "Fix the client or the upstream job; training is held."


def check_window(
    window: LiveWindow,
    reference: Reference,
    before: Sequence[WindowReport],
    settings: Monitoring,
    sent: Container[str] | None = None,
) -> tuple[tuple[Problem, ...], float | None]:
    """Return what is wrong with the data of a window, and its requests as a multiple of what is usual.

    Few rows are no problem of their own: they leave a window unjudged, and volume or coverage say when they should not
    be few.

    Args:
        window: Of live traffic.
        reference: Of the model that served it.
        before: Reports of other windows; those that start later are ignored.
        settings: The limits.
        sent: Columns that requests carry; all by default. The others are looked up by key in the side tables that the
            model was trained on: there, a null says that the key is new, and that is drift and nobody's mistake.

    Returns:
        The problems, those of the window as a whole first. The ratio is None while too few windows came before.
    """
    usual = _usual_requests(window, before, settings.checks.volume_windows)
    problems = [
        *(Problem(kind="schema", reason=reason) for reason in window.unreadable),
        *_volume(window, usual, settings.checks),
        *_coverage(window, settings.window),
        *_clock(window, settings.checks),
        *_columns(window, _carried(reference, sent), settings),
    ]
    return tuple(problems), window.requests / usual if usual else None


def _usual_requests(window: LiveWindow, before: Sequence[WindowReport], least: int) -> float | None:
    """Return how many requests a window of this length has: the median of the newest ones at its time of day.

    Windows whose own volume was broken are left out: a collapse must not become what is usual.
    """
    comparable = [
        one.requests / ((one.end - one.start) / _HOUR)
        for one in sorted(before, key=lambda report: report.start)
        if one.start < window.start
        and _same_time_of_day(one.start, window.start)
        and all(problem.kind != "volume" for problem in one.problems)
    ]
    if len(comparable) < least:
        return None
    return median(comparable[-MEDIAN_OF:]) * ((window.end - window.start) / _HOUR) or None


def _same_time_of_day(one: datetime, other: datetime) -> bool:
    # Windows follow the clock's timezone, so a change to summer time moves them by an hour.
    apart = abs(one - other) % _DAY
    return min(apart, _DAY - apart) <= _HOUR


def _volume(window: LiveWindow, usual: float | None, limits: Checks) -> Iterator[Problem]:
    if usual is None or limits.min_volume_ratio <= window.requests / usual <= limits.max_volume_ratio:
        return
    least, most = limits.min_volume_ratio, limits.max_volume_ratio
    few = window.requests < usual
    yield Problem(
        kind="volume",
        reason=f"{window.requests} requests, {window.requests / usual:.2g} times the {usual:.0f} that are usual, wanted"
        f" {least:g} to {most:g} times. Find out {'where they went' if few else 'what makes them'}; if it stays so,"
        f" change checks.{'min' if few else 'max'}_volume_ratio. Training is held.",
    )


def _coverage(window: LiveWindow, limits: Window) -> Iterator[Problem]:
    # Without requests there are no outcomes to miss.
    if window.requests and window.coverage < limits.min_coverage:
        yield Problem(
            kind="coverage",
            reason=f"{window.coverage:.1%} of {window.requests} answered requests have an outcome, wanted at least"
            f" {limits.min_coverage:.1%}; {window.orphans} outcomes belong to no request. Fix what writes outcomes, or"
            " raise window.maturity_hours if they only come late; training is held.",
        )


def _clock(window: LiveWindow, limits: Checks) -> Iterator[Problem]:
    if window.future:
        yield Problem(
            kind="clock",
            reason=f"{window.future} rows lie more than {limits.max_clock_skew_minutes:g} minutes in the future, wanted"
            " none. Set the clocks of clients and servers; training is held.",
        )


def _carried(reference: Reference, sent: Container[str] | None) -> dict[str, ColumnReference]:
    return {name: usual for name, usual in reference.columns.items() if sent is None or name in sent}


def _columns(window: LiveWindow, columns: Mapping[str, ColumnReference], settings: Monitoring) -> Iterator[Problem]:
    if not window.rows.height or not columns:
        return
    alpha = settings.drift.alpha / len(columns)  # of all columns together (Bonferroni)
    requests = window.rows[REQUEST].n_unique()
    for name, usual in columns.items():
        share = _null_share(window.rows, name, usual)
        if _chance(share, requests, usual) >= alpha:
            continue
        if share == 1:
            yield Problem(
                kind="schema",
                column=name,
                reason=f"'{name}' is not sent: null in all {window.rows.height} rows, wanted {usual.nulls:.1%} as in"
                f" the reference. {_MEND}",
            )
        elif share > usual.nulls + settings.checks.max_null_increase:
            yield Problem(
                kind="nulls",
                column=name,
                reason=f"'{name}' is null in {share:.1%} of {window.rows.height} rows, wanted at most"
                f" {usual.nulls + settings.checks.max_null_increase:.1%} ({usual.nulls:.1%} in the reference)."
                f" {_MEND}",
            )


def _null_share(rows: pl.DataFrame, name: str, usual: ColumnReference) -> float:
    """Return the share of rows without a value that the bins could count; 1 when the column is not there."""
    if name not in rows.columns:
        return 1.0
    with_values = np.unique(usual.bins.codes(rows[name])[0]).size
    return 1.0 - with_values / rows.height


def _chance(share: float, requests: int, usual: ColumnReference) -> float:
    """Return the chance of as many nulls with the reference's share, as if the rows of a request were one.

    The reference's share is taken with one null more than it has (Laplace): none in 1 000 rows is not never.
    """
    from scipy.stats import binom

    expected = (usual.nulls * usual.rows + 1) / (usual.rows + 2)
    return float(binom.sf(round(share * requests) - 1, requests, expected))
