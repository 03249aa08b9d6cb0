"""An earlier fit of the same declaration, whose counted days need not be counted again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple, Self

import polars as pl

from shortlist.contracts import Files
from shortlist.features.declared.plan import Plan
from shortlist.features.declared.static_view_plan import StaticView
from shortlist.features.feast.feast_store_location import FeastStoreLocation, feast_store_location
from shortlist.features.fits.counted_days import CountedDays, read_day_records
from shortlist.features.fits.counting import DayRecord, day_digest
from shortlist.features.values.columns import IncompatibleFitError
from shortlist.storage.artefacts import IntegrityError, read_json
from shortlist.storage.row_digest import row_hashes
from shortlist.storage.tables import DayPart, DayTable


class DayRange(NamedTuple):
    """Days of the log's own clock, first and last included."""

    first: date
    last: date

    def contains(self, day: date) -> bool:
        """Return whether a day is in the range."""
        return self.first <= day <= self.last

    def __str__(self) -> str:
        return f"{self.first}..{self.last}"


@dataclass(frozen=True)
class PreviousFit:
    """The days that an earlier fit counted; none when there was no earlier fit."""

    folder: Path | None = None
    records: Mapping[date, DayRecord] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path | None, plan: Plan, log: DayTable, corrected: DayRange | None = None) -> Self:
        """Return the days that an earlier fit counted.

        Its last day is counted again where it has grown since, because it may not have been over.

        Args:
            folder: Folder of the earlier fit; None: there is none.
            plan: The plan of what is counted.
            log: The valid log.
            corrected: Days whose rows may have changed, appeared or vanished since: changed days are left out.

        Raises:
            IncompatibleFitError: It counted something else or later days, or the log has changed in the days it
                counted. Days before the log's first one may be missing; one that is missing in between would move the
                split: features would be fitted on a day that the feature table, which knows only the log's days,
                validates on.
        """
        if folder is None:
            return cls()
        saved = _read_fit(folder)
        for group, expected in plan.counting().items():
            for name, expected_settings in expected.items():
                if saved["counting"][group].get(name) != expected_settings:
                    raise IncompatibleFitError(f"{folder}: '{name}' was counted otherwise, or not at all")
        records = read_day_records(saved)
        if corrected is not None:
            records = {
                day: record for day, record in records.items() if not _is_corrected(day, record, corrected, plan, log)
            }
        last = max(records, default=date.min)
        if last > log.days[-1].day:
            raise IncompatibleFitError(f"{folder}: it has seen {last}, the log ends on {log.days[-1].day}")
        lost = sorted(day for day in records if day > log.days[0].day and day not in log.by_day)
        if lost:
            raise IncompatibleFitError(f"{folder}: it has seen {lost[0]}, which is no longer in the log")
        for part in log.days:
            if part.day not in records and part.day < last and not (corrected and corrected.contains(part.day)):
                raise IncompatibleFitError(f"{folder}: {part.day} lies before its last day {last} and is new")
            problem = _change(records[part.day], plan, log, part) if part.day in records else ""
            if problem and part.day == last:
                del records[last]
            elif problem:
                raise IncompatibleFitError(f"{folder}: {part.day} {problem}")
        return cls(folder, records)

    def check_compatible(self, plan: Plan, views: Path, log: DayTable) -> None:
        """Check that this fit can extend the earlier one: no file is missing, no side table changed for counted rows.

        Other rows of side tables may change.

        Args:
            plan: The plan of what is counted.
            views: Folder of this fit's own views of side tables.
            log: The valid log.

        Raises:
            IncompatibleFitError: Names the file, or the side table.
        """
        if self.folder is None or self.counted is None:
            return
        missing = self.counted.missing(plan)
        if missing is not None:
            raise IncompatibleFitError(f"{missing} is missing")
        counted = {day for day in self.records if day in {part.day for part in log.days}}
        for view in plan.static_views:
            changed = _changed_keys(view, plan, self.folder / views.name, views)
            if changed.height and _keys_occur(changed, plan, log, counted):
                difference = f"side table '{view.name}' has other values for counted rows now"
                raise IncompatibleFitError(f"{self.folder}: {difference}")

    @property
    def counted(self) -> CountedDays | None:
        """The days and the folder of their statistics; None when there was no earlier fit."""
        return None if self.folder is None else CountedDays(self.folder, self.records)


def counted_records(folder: Path) -> dict[date, DayRecord]:
    """Return the records of the days that an earlier fit counted.

    Raises:
        IncompatibleFitError: It cannot be read.
    """
    return read_day_records(_read_fit(folder))


def changed_days(folder: Path, plan: Plan, log: DayTable) -> dict[date, str]:
    """Return the days up to an earlier fit's last one whose rows changed since, each with the change.

    Days before the log's first one are not among them: their rows may be gone, and their counts stay.

    Args:
        folder: Folder of the earlier fit.
        plan: The plan of what is counted.
        log: The valid log.

    Raises:
        IncompatibleFitError: It cannot be read.
    """
    records, first = counted_records(folder), log.days[0].day
    change_by_day = {day: "has no rows any more" for day in records if day >= first and day not in log.by_day}
    for part in log.days:
        if part.day in records:
            change_by_day[part.day] = _change(records[part.day], plan, log, part)
        elif part.day < max(records):
            change_by_day[part.day] = f"had no rows then and has {part.rows} now"
    return {day: change_by_day[day] for day in sorted(change_by_day) if change_by_day[day]}


def newest_fit(store: Path | FeastStoreLocation) -> str:
    """Return the path or the address of the fit that a spec's store was last filled from; empty when it never was.

    Args:
        store: The spec's Feast store.
    """
    announced = feast_store_location(store).read_announcement()
    if announced is None:
        return ""
    address, published, _ = announced["views"].partition("#")
    return address if published else str(Path(address).parent)


def _read_fit(folder: Path) -> dict[str, Any]:
    try:
        saved: dict[str, Any] = read_json(folder / Files.FEATURES)
    except (IntegrityError, OSError) as error:
        raise IncompatibleFitError(f"{folder}: holds no earlier fit that can be read ({error})") from None
    days = saved.get("days")
    if not days or not all("digest" in record for record in days.values()):
        raise IncompatibleFitError(f"{folder}: was fitted by another version of Shortlist")
    return saved


def _is_corrected(day: date, record: DayRecord, corrected: DayRange, plan: Plan, log: DayTable) -> bool:
    """Return whether a day is in the corrected range and its rows have changed since they were counted."""
    if not corrected.contains(day):
        return False
    return day not in log.by_day or bool(_change(record, plan, log, log.by_day[day]))


def _change(record: DayRecord, plan: Plan, log: DayTable, part: DayPart) -> str:
    """Return what has changed in a day since it was counted, as text; empty when nothing has."""
    if record.rows != part.rows:
        return f"had {record.rows} rows then and has {part.rows} now"
    digest = day_digest(plan.declared.data, log, part)
    if record.digest.partition(":")[0] != digest.partition(":")[0]:
        return "was counted with another version of Polars"
    return "" if record.digest == digest else "has other values now"


def _changed_keys(view: StaticView, plan: Plan, old_views: Path, new_views: Path) -> pl.DataFrame:
    """Return the keys of a side table whose counted columns changed, appeared or vanished."""
    counted = [name for name in view.features if name in plan.read_for_counting]
    if not counted:
        return pl.DataFrame()
    old_rows, new_rows = (
        _hash_rows(folder / f"{view.name}.parquet", [*view.keys, *counted]) for folder in (old_views, new_views)
    )
    changed = (
        left_rows.join(right_rows, on=left_rows.columns, how="anti")
        for left_rows, right_rows in ((old_rows, new_rows), (new_rows, old_rows))
    )
    return pl.concat(changed).select(view.keys)


def _hash_rows(path: Path, columns: list[str]) -> pl.DataFrame:
    """Return the first column, and a hash of all of them."""
    try:
        rows = pl.read_parquet(path, columns=columns)
    except (OSError, pl.exceptions.ColumnNotFoundError):
        raise IncompatibleFitError(f"{path}: is missing, or lacks one of {', '.join(columns)}") from None
    return rows.select(columns[0], pl.Series(_ROW_HASH, row_hashes(rows)))


def _keys_occur(keys: pl.DataFrame, plan: Plan, log: DayTable, days: set[date]) -> bool:
    """Return whether the rows of some days have any of the keys; a key from another side table always counts."""
    (name,) = keys.columns
    if not days:
        return False
    if plan.declared.side_table_of(name) is not None:
        return True
    return not log.scan(days).select(name).join(keys.lazy(), on=name, how="semi").head(1).collect().is_empty()


_ROW_HASH = ":said"
