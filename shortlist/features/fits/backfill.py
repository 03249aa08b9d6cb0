"""Backfill: counting the corrected days of a log again, on top of the fit that servers read."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from shortlist.contracts import DataError, Files, ShortlistError
from shortlist.features.declared.plan import plan
from shortlist.features.fits.fit import fit
from shortlist.features.fits.previous_fit import DayRange, changed_days, counted_records
from shortlist.features.values.columns import IncompatibleFitError
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
        declared: The sections to fit.
        runtime: Engine and memory.
        log: Folder of the valid log.
        out: Folder to write; see `fit`.
        previous: Path or address of the fit that servers read.
        corrected: The range of days.

    Raises:
        DataError: Nothing was published yet, the range has no day of the log, other days have changed too, or the fit
            that servers read counted something else. Then nothing is written.
    """
    if not previous:
        raise DataError("no features were published yet, so that there is nothing to correct; train first")
    table, previous_folder, planned = DayTable.open(log, Files.LOG), local_copy(previous), plan(*declared)
    try:
        counted = counted_records(previous_folder)
        _check_range(table, set(counted), corrected)
        changed = changed_days(previous_folder, planned, table)
        changed_outside = {
            day: change for day, change in changed.items() if not corrected.contains(day) and day != max(counted)
        }
        if changed_outside:
            day, change = next(iter(changed_outside.items()))
            wider = DayRange(min(corrected.first, *changed_outside), max(corrected.last, *changed_outside))
            raise DataError(
                f"{len(changed_outside)} day(s) outside {corrected} have changed too: {day} {change}. Features of a"
                f" log in which only some days are corrected would match no log; backfill {wider.first}"
                f" {wider.last}, or give the log in which those days are as they were"
            )
        fit(*declared, runtime, log, out, previous_folder, corrected)
    except IncompatibleFitError as reason:
        raise DataError(
            f"the features that servers read cannot be corrected day by day: {reason}. Count every day again, with a"
            " training"
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
    lost_days = sorted(day for day in counted if corrected.contains(day) and day < start)
    if lost_days:
        raise DataError(
            f"{corrected}: the log begins on {start}, and {len(lost_days)} day(s) before it, from {lost_days[0]} on,"
            f" were counted from rows that it no longer has; their counts would be lost. Give a log with these days,"
            f" or begin with {start}"
        )
    if not any(corrected.contains(day) for day in {*counted, *log.by_day}):
        raise DataError(
            f"{corrected}: the log has no such day; it has {start} to {log.days[-1].day} in its own timezone"
        )
