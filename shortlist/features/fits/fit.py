"""Fitting features: counting days; building vocabularies, moments and point-in-time views from the counts."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Final

from shortlist.contracts import DataError, Files
from shortlist.features.counts.moments import NumberMoments, sum_moments
from shortlist.features.counts.statistics import check_sum_range
from shortlist.features.declared.plan import Plan, plan
from shortlist.features.engines.work import feature_work
from shortlist.features.fits.counting import DayRecord
from shortlist.features.fits.fitting import Fitting
from shortlist.features.fits.previous_fit import DayRange, PreviousFit
from shortlist.features.stored_views.static_views import vector_widths, widths_on
from shortlist.features.stored_views.views import ViewSize
from shortlist.features.values.columns import IncompatibleFitError
from shortlist.spec.data import Data
from shortlist.spec.declared import DeclaredSections
from shortlist.spec.features import Features
from shortlist.spec.gates import Gates
from shortlist.spec.runtime import Runtime
from shortlist.spec.split import SplitDays, split_days
from shortlist.storage.artefacts import atomic_folder, write_json
from shortlist.storage.objects import local_copy
from shortlist.storage.tables import QUARANTINED_BY_DAY, DayTable
from shortlist.tracking.steps import note


@feature_work(lambda out: None)
def fit(  # noqa: PLR0913 - the sections and folders of one step
    data: Data,
    features: Features,
    gates: Gates | None,
    runtime: Runtime,
    log: Path,
    out: Path,
    previous: Path | None = None,
    corrected: DayRange | None = None,
    *,
    learning: bool = True,
) -> None:
    """Write the fitted features of a log.

    Args:
        data: The log's declaration.
        features: The operations.
        gates: Names the columns by which scores will be sliced.
        runtime: Engine and memory.
        log: Folder of the valid log.
        out: Folder to write: `features.json`, `statistics/`, `vocabularies/`, `views/`, and `learnt/` where a
            kind trains something.
        previous: An earlier result for the same declaration. Only days that it has not counted are counted; the
            result is the same as without it.
        corrected: Days that `previous` has counted and whose rows may have changed since: changed days are counted
            again, and ids are assigned anew.
        learning: Whether trained features are trained; not where a model's own preprocessing holds their models.

    Raises:
        PlanError: The declared features cannot be made from the declared columns.
        IncompatibleFitError: `previous` cannot be extended to this fit.
        DataError: Too few days, or a sum too large.
    """
    planned = plan(data, features, gates)
    table = DayTable.open(log, Files.LOG)
    previous_fit = PreviousFit.load(previous, planned, table, corrected)
    counted_rows = {day: record.rows for day, record in previous_fit.records.items()}
    split = _split_all_days(counted_rows, table.rows_by_day, data)  # too few are reported before any is counted
    with atomic_folder(out) as staging, runtime.features.open() as partitions:
        fitting = Fitting(planned, runtime, table, staging, partitions)
        sizes = fitting.write_side_tables(planned.static_views)
        previous_fit.check_compatible(planned, fitting.views, table)
        counted = fitting.count(table.by_day.keys() - previous_fit.records.keys())
        if previous_fit.counted is not None:
            previous_fit.counted.copy_statistics(planned, fitting.statistics)
        records = dict(sorted({**previous_fit.records, **counted}.items()))
        widths = widths_on(table.by_day, planned.read, table, planned.declared)
        previous_ids = previous_fit.folder if corrected is None else None
        declared = DeclaredSections(data, features, gates)
        _save_fit(declared, fitting, sizes, records, split, widths, previous_ids, learning=learning)


def _split_all_days(counted_rows: Mapping[date, int], rows_by_day: Mapping[date, int], declaration: Data) -> SplitDays:
    """Return the split of the days of a log and of earlier ones that have left it.

    Validation and test days are those of the log alone, as in the feature table: how many rows earlier days had does
    not move them. A log of new days alone, too short for a table, is split with the earlier ones.
    """
    every_day, warmup_days = {**counted_rows, **rows_by_day}, declaration.split.warmup_days
    with suppress(DataError):
        split = split_days(rows_by_day, declaration)
        fitted_days = tuple(day for day in sorted(every_day) if day < split.validation[0])
        return replace(split, warmup=fitted_days[:warmup_days], train=fitted_days[warmup_days:])
    return split_days(every_day, declaration)


def _save_fit(
    declared: DeclaredSections,
    fitting: Fitting,
    sizes: Mapping[str, ViewSize],
    records: Mapping[date, DayRecord],
    split: SplitDays,
    widths: Mapping[str, Iterable[int]],
    previous: Path | None,
    *,
    learning: bool = True,
) -> None:
    """Write everything that is derived from the statistics of all days, which are in the fit's folder.

    Args:
        declared: The fitted sections.
        fitting: Writer of the fit's folder.
        sizes: Sizes of the side tables' views, which were written before.
        records: Records of all days, in time order.
        split: The days of each part, as the feature table has them.
        widths: Result of `widths_on` for the days of the log.
        previous: The earlier fit, whose ids are kept.
        learning: Whether trained features are trained.

    Raises:
        IncompatibleFitError: An id of the earlier fit would change.
        DataError: Too few days, or a sum too large, or vectors of two widths.
    """
    planned, days = fitting.plan, list(records)
    check_sum_range(_total_sizes(records.values()), planned.declared)
    fitting.write_vocabularies(split.fitted_on, previous)
    if learning:
        fitting.write_trained(split, {day: record.digest for day, record in records.items()}, previous)
    fitting.write_index({**sizes, **fitting.write_mean_views(), **fitting.write_keyed(days)}, days)
    shutil.rmtree(fitting.scratch, ignore_errors=True)
    moments = _moments(planned, [records[day] for day in split.fitted_on])
    saved = {
        "data": declared.data.model_dump(mode="json"),
        "features": declared.features.model_dump(mode="json"),
        "gates": declared.gates.model_dump(mode="json") if declared.gates is not None else None,
        "moments": {name: asdict(number_moments) for name, number_moments in moments.items()},
        "widths": vector_widths(planned.read, widths, fitting.side, planned.declared),
        "split": split.notes(),
        "counting": planned.counting(),
        "days": {day.isoformat(): record.to_json() for day, record in records.items()},
        # Later days are no part of what was counted: nothing of a fit may depend on them.
        "quarantined": {
            day: rows
            for day, rows in fitting.log.notes.get(QUARANTINED_BY_DAY, {}).items()
            if day <= max(days).isoformat()
        },
    }
    write_json(fitting.out / Files.FEATURES, saved)


_EVERY_DAY: Final = DayRange(date.min, date.max)


def fit_incrementally(
    previous: str, data: Data, features: Features, gates: Gates | None, runtime: Runtime, log: Path, out: Path
) -> bool:
    """Extend an earlier result where possible, else fit from scratch and log why; return whether it was extended.

    Days of the log that have changed since are counted again, and no others: late rows of live traffic, or a batch that
    was withdrawn, must not make every refresh count the whole log.

    Args:
        previous: Path or address of the earlier result; empty: there is none.
        data: See `fit`, likewise the others.
        features: The operations.
        gates: Names the columns by which scores will be sliced.
        runtime: Engine and memory.
        log: Folder of the valid log.
        out: Folder to write.
    """
    reasons: list[IncompatibleFitError] = []
    for corrected in (None, _EVERY_DAY) if previous else ():
        try:
            fit(data, features, gates, runtime, log, out, local_copy(previous), corrected)
        except IncompatibleFitError as reason:
            reasons.append(reason)
            continue
        if reasons:
            note(f"Days that have changed were counted again: {reasons[0]}")
        return True
    if reasons:
        note(f"Every day was counted again, for the earlier features do not fit: {reasons[-1]}")
    fit(data, features, gates, runtime, log, out)
    return False


def _total_sizes(records: Iterable[DayRecord]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for record in records:
        for name, size in record.sizes.items():
            totals[name] = totals.get(name, 0.0) + size
    return totals


def _moments(planned: Plan, records: Sequence[DayRecord]) -> dict[str, NumberMoments]:
    names = [number.output for number in planned.standardised_numbers]
    return {name: sum_moments(record.moments[name] for record in records) for name in names}
