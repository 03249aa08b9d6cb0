"""Counting corrected days of the log again, onto the fit that servers read."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from shortlist.contracts import DataError, Files, ShortlistError
from shortlist.features.columns import IncompatibleFitError
from shortlist.features.fit import fit
from shortlist.features.plan import plan
from shortlist.features.previous_fit import DayRange, changed_days, counted_records
from shortlist.spec.declared import DeclaredSections
from shortlist.spec.runtime import Runtime
from shortlist.storage.objects import local_copy
from shortlist.storage.tables import DayTable


def recount(
    declared: DeclaredSections, runtime: Runtime, log: Path, out: Path, previous: str, corrected: DayRange
) -> None:
    """Write the fit of a corrected log: its corrected days are counted again, and nothing else is.

    Days of the range whose rows are the same are not counted again, nor are days outside it. The last day that was
    counted before and later ones are counted as a refresh counts them. The result equals a fit of the whole log.

    Args:
        declared: What is fitted.
        runtime: Engine and memory.
        log: Folder of the valid log.
        out: Folder to write; see `fit`.
        previous: Path or address of the fit that servers read.
        corrected: The range.

    Raises:
        DataError: Nothing was published yet, the range has no day of the log, other days have changed too, or the fit
            that servers read counted something else. Nothing is written.
    """
    if not previous:
        raise DataError("no features were published yet, so that there is nothing to correct; make run first")
    table, before, planned = DayTable.open(log, Files.LOG), local_copy(previous), plan(*declared)
    try:
        counted = counted_records(before)
        _check_range(table, set(counted), corrected)
        changed = changed_days(before, planned, table)
        others = {day: how for day, how in changed.items() if not corrected.has(day) and day != max(counted)}
        if others:
            day, how = next(iter(others.items()))
            wider = DayRange(min(corrected.first, *others), max(corrected.last, *others))
            raise DataError(
                f"{len(others)} day(s) outside {corrected} have changed too: {day} {how}. Features of a log of which"
                f" only some days are corrected would be no log's; backfill {wider.first} {wider.last}, or give the"
                " log in which those days are as they were"
            )
        fit(*declared, runtime, log, out, before, corrected)
    except IncompatibleFitError as reason:
        raise DataError(
            f"the features that servers read cannot be corrected day by day: {reason} Count every day again, with a"
            " training: make run"
        ) from None


def parse_range(first: str, last: str) -> DayRange:
    """Return the days from one to another.

    Raises:
        ShortlistError: One is no day, or the last one is before the first.

    >>> str(parse_range("2026-03-02", "2026-03-04"))
    '2026-03-02..2026-03-04'
    """
    days = []
    for name, text in (("FROM", first), ("TO", last)):
        try:
            days.append(date.fromisoformat(text))
        except ValueError:
            raise ShortlistError(f"{name}: got '{text}', wanted a day such as 2026-03-02") from None
    if days[1] < days[0]:
        raise ShortlistError(f"TO: got {last}, which is before FROM {first}; the first day comes first")
    return DayRange(*days)


def _check_range(log: DayTable, counted: set[date], corrected: DayRange) -> None:
    start = log.days[0].day
    gone = sorted(day for day in counted if corrected.has(day) and day < start)
    if gone:
        raise DataError(
            f"{corrected}: the log begins on {start}, and {len(gone)} day(s) before it, from {gone[0]} on, were counted"
            f" from rows that it no longer has; their counts would be lost. Give a log with these days, or begin with"
            f" {start}"
        )
    if not any(corrected.has(day) for day in {*counted, *log.by_day}):
        raise DataError(
            f"{corrected}: the log has no such day; it has {start} to {log.days[-1].day} in its own timezone"
        )
