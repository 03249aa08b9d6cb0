"""Fitting over groups of days: each is counted on its own, and what they counted becomes one fit."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from shortlist.contracts import Files
from shortlist.features.columns import IncompatibleFitError
from shortlist.features.counted_days import CountedDays
from shortlist.features.fit import save_fit
from shortlist.features.fitting import Fitting
from shortlist.features.plan import plan
from shortlist.features.previous_fit import PreviousFit
from shortlist.features.split import split_days
from shortlist.features.static_views import widths_on
from shortlist.spec.declared import DeclaredSections
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import atomic_folder
from shortlist.storage.groups import check_all_days_grouped, groups_of, written
from shortlist.storage.objects import local_copy
from shortlist.storage.tables import DayTable
from shortlist.tracking.steps import note


class DayGroups(NamedTuple):
    """How the counting of a log is shared out."""

    groups: list[str]
    """Days to count (see `groups.written`); one group of no day when all were counted earlier."""
    previous: str
    """The earlier fit that has counted the others; empty when there is none, or it does not fit."""


def group_uncounted_days(
    declared: DeclaredSections, runtime: Runtime, log: Path, partitions: int, previous: str
) -> DayGroups:
    """Share out the days of a log that an earlier fit has not counted.

    Args:
        declared: What is to be fitted.
        runtime: Engine and memory.
        log: Folder of the valid log.
        partitions: Most groups.
        previous: Path or address of the earlier fit; empty: none. When it does not fit, the user is told why, and every
            day is counted.

    Raises:
        PlanError: The declared features cannot be made from the declared columns.
        DataError: Too few days.
    """
    planned, table = plan(*declared), DayTable.open(log, Files.LOG)
    earlier = PreviousFit()
    if previous:
        try:
            earlier = _checked(declared, runtime, log, local_copy(previous))
        except IncompatibleFitError as reason:
            note(f"Every day is counted again, for the earlier features do not fit: {reason}")
    split_days([*earlier.records, *table.by_day], planned.declared.data.split)
    groups = groups_of([part for part in table.days if part.day not in earlier.records], partitions)
    return DayGroups([written(group) for group in groups or [[]]], previous if earlier.folder else "")


def count_group(declared: DeclaredSections, runtime: Runtime, log: Path, days: Collection[date], out: Path) -> int:
    """Write the statistics of some days of a log; return their rows.

    Args:
        declared: What is to be fitted.
        runtime: Engine and memory.
        log: Folder of the valid log.
        days: The days.
        out: Folder to write: `counted.json` and `statistics/`.
    """
    planned, table = plan(*declared), DayTable.open(log, Files.LOG)
    with atomic_folder(out) as staging:
        fitting = Fitting(planned, runtime, table, staging)
        fitting.write_side_tables(planned.counted_sides)
        records = fitting.count(days)
        CountedDays(staging, records, widths_on(records, planned.read, table, planned.declared)).save(planned)
        for folder in (fitting.scratch, fitting.views):
            shutil.rmtree(folder, ignore_errors=True)
    return sum(record.rows for record in records.values())


def merge_groups(
    declared: DeclaredSections, runtime: Runtime, log: Path, groups: Sequence[Path], previous: str, out: Path
) -> None:
    """Write the fitted features of a log whose days were counted in groups: the same as `fit` writes.

    Args:
        declared: What is fitted.
        runtime: Engine and memory.
        log: Folder of the valid log.
        groups: What `count_group` wrote.
        previous: Statistics of the fit before.
        out: Folder to write.

    Raises:
        DataError: A day is in two groups, or a day of the log in none; a sum is too large.
    """
    planned, table = plan(*declared), DayTable.open(log, Files.LOG)
    counted = [CountedDays.load(group, planned) for group in groups]
    if previous:
        own = {day for group in counted for day in group.records}
        before = PreviousFit.load_unchecked(local_copy(previous))
        before = before.select_days(before.records.keys() - own)
        try:
            _merge(declared, runtime, table, [before, *counted], before.folder, out)
        except IncompatibleFitError as reason:
            note(f"Ids are given anew, for the earlier features do not fit: {reason}")
            counted.append(before.select_days(table.by_day))
        else:
            return
    _merge(declared, runtime, table, counted, None, out)


def _checked(declared: DeclaredSections, runtime: Runtime, log: Path, previous: Path) -> PreviousFit:
    planned, table = plan(*declared), DayTable.open(log, Files.LOG)
    earlier = PreviousFit.load(previous, planned, table)
    with TemporaryDirectory() as scratch:
        fitting = Fitting(planned, runtime, table, Path(scratch))
        fitting.write_side_tables(planned.counted_sides)
        earlier.check_compatible(planned, fitting.views, table)
    return earlier


def _merge(
    declared: DeclaredSections, runtime: Runtime, log: DayTable, groups: Sequence[CountedDays], previous: Path | None,
    out: Path,
) -> None:  # fmt: skip
    planned = plan(*declared)
    check_all_days_grouped({str(group.folder): list(group.records) for group in groups}, log)
    records = dict(sorted((day, record) for group in groups for day, record in group.records.items()))
    known = {day for group in groups if group.widths is not None for day in group.records}
    widths = [group.widths for group in groups if group.widths is not None]
    widths.append(widths_on(log.by_day.keys() - known, planned.read, log, planned.declared))
    with atomic_folder(out) as staging:
        fitting = Fitting(planned, runtime, log, staging)
        sizes = fitting.write_side_tables(planned.static_views)
        for group in groups:
            group.copy_statistics(planned, fitting.statistics)
        save_fit(declared, fitting, sizes, records, widths, previous)
