"""An earlier fit of the same declaration, whose counted days need not be counted again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple, Self

import polars as pl

from shortlist.contracts import Files
from shortlist.features.columns import IncompatibleFitError
from shortlist.features.counted_days import CountedDays, records_of
from shortlist.features.counting import DayRecord, day_digest
from shortlist.features.feast_store_location import FeastStoreLocation, feast_store_location
from shortlist.features.plan import Plan
from shortlist.features.static_view_plan import StaticView
from shortlist.storage.artefacts import IntegrityError, read_json
from shortlist.storage.row_digest import row_hashes
from shortlist.storage.tables import DayPart, DayTable


class DayRange(NamedTuple):
    """Days of the log's own clock, first and last included."""

    first: date
    last: date

    def has(self, day: date) -> bool:
        """Whether a day is one of them."""
        return self.first <= day <= self.last

    def __str__(self) -> str:
        return f"{self.first}..{self.last}"


@dataclass(frozen=True)
class PreviousFit:
    """The days that were counted before; none when there was no earlier fit."""

    folder: Path | None = None
    records: Mapping[date, DayRecord] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path | None, plan: Plan, log: DayTable, corrected: DayRange | None = None) -> Self:
        """Return what an earlier fit counted.

        Its last day may have grown since, for it may have been cut short: it is counted again.

        Args:
            folder: Of the earlier fit; None: there is none.
            plan: What is counted.
            log: The valid log.
            corrected: Days whose rows may have changed, come or gone since: they are left out where they did.

        Raises:
            MisfitError: It counted something else or later days, or the log has changed in the days it counted. Days
                before the log's first one may be gone; one that is gone in between would move the split: features
                would be fitted on a day that the feature table, which knows the log's days alone, validates on.
        """
        if folder is None:
            return cls()
        saved = _saved(folder)
        for group, wanted in plan.counting().items():
            for name, what in wanted.items():
                if saved["counting"][group].get(name) != what:
                    raise IncompatibleFitError(f"{folder}: '{name}' was counted otherwise, or not at all. {_AGAIN}")
        records = records_of(saved)
        if corrected is not None:
            records = {day: one for day, one in records.items() if not _is_corrected(day, one, corrected, plan, log)}
        last = max(records, default=date.min)
        if last > log.days[-1].day:
            raise IncompatibleFitError(f"{folder}: it has seen {last}, the log ends on {log.days[-1].day}. {_AGAIN}")
        lost = sorted(day for day in records if day > log.days[0].day and day not in log.by_day)
        if lost:
            raise IncompatibleFitError(f"{folder}: it has seen {lost[0]}, which is no longer in the log. {_AGAIN}")
        for part in log.days:
            if part.day not in records and part.day < last and not (corrected and corrected.has(part.day)):
                raise IncompatibleFitError(f"{folder}: {part.day} lies before its last day {last} and is new. {_AGAIN}")
            problem = _change(records[part.day], plan, log, part) if part.day in records else ""
            if problem and part.day == last:
                del records[last]
            elif problem:
                raise IncompatibleFitError(f"{folder}: {part.day} {problem}. {_AGAIN}")
        return cls(folder, records)

    @staticmethod
    def load_unchecked(folder: Path) -> CountedDays:
        """Return the days of an earlier fit that was checked by an earlier step."""
        return CountedDays(folder, records_of(_saved(folder)))

    def check_compatible(self, plan: Plan, views: Path, log: DayTable) -> None:
        """Refuse what is no beginning of this fit: files that are gone, or side tables that changed for counted rows.

        Side tables' rows about anything else may come and go.

        Args:
            plan: What is counted.
            views: Folder of this fit's own views of side tables.
            log: The valid log.

        Raises:
            MisfitError: Names the file, or the side table.
        """
        if self.folder is None or self.counted is None:
            return
        missing = self.counted.missing(plan)
        if missing is not None:
            raise IncompatibleFitError(f"{missing} is missing. {_AGAIN}")
        counted = {day for day in self.records if day in {part.day for part in log.days}}
        for view in plan.statics:
            changed = _changed_keys(view, plan, self.folder / views.name, views)
            if changed.height and _occur(changed, plan, log, counted):
                what = f"side table '{view.name}' says other things of old rows now"
                raise IncompatibleFitError(f"{self.folder}: {what}. {_AGAIN}")

    @property
    def counted(self) -> CountedDays | None:
        """The days and where their statistics are; None when there was no earlier fit."""
        return None if self.folder is None else CountedDays(self.folder, self.records)


def counted_records(folder: Path) -> dict[date, DayRecord]:
    """Return the records of the days that an earlier fit counted.

    Raises:
        MisfitError: It cannot be read.
    """
    return records_of(_saved(folder))


def changed_days(folder: Path, plan: Plan, log: DayTable) -> dict[date, str]:
    """Return the days up to an earlier fit's last one whose rows are others now, and how they changed.

    Days before the log's first one are not among them: their rows may be gone, and their counts stay.

    Args:
        folder: Of the earlier fit.
        plan: What is counted.
        log: The valid log.

    Raises:
        MisfitError: It cannot be read.
    """
    records, first = counted_records(folder), log.days[0].day
    found = {day: "has no rows any more" for day in records if day >= first and day not in log.by_day}
    for part in log.days:
        if part.day in records:
            found[part.day] = _change(records[part.day], plan, log, part)
        elif part.day < max(records):
            found[part.day] = f"had no rows then and has {part.rows} now"
    return {day: found[day] for day in sorted(found) if found[day]}


def newest_fit(store: Path | FeastStoreLocation) -> str:
    """Return the path or the address of the fit that a spec's store was last filled from; empty when it never was.

    Args:
        store: The spec's Feast store.
    """
    announced = feast_store_location(store).announced()
    if announced is None:
        return ""
    address, published, _ = announced["views"].partition("#")
    return address if published else str(Path(address).parent)


def _saved(folder: Path) -> dict[str, Any]:
    try:
        saved: dict[str, Any] = read_json(folder / Files.FEATURES)
    except (IntegrityError, OSError) as error:
        raise IncompatibleFitError(f"{folder}: holds no earlier fit that can be read ({error}). {_AGAIN}") from None
    days = saved.get("days")
    if not days or not all("digest" in record for record in days.values()):
        raise IncompatibleFitError(f"{folder}: was fitted by another version of Shortlist. {_AGAIN}")
    return saved


def _is_corrected(day: date, before: DayRecord, corrected: DayRange, plan: Plan, log: DayTable) -> bool:
    """Return whether a day is one of the corrected ones, and its rows are no longer those that were counted."""
    if not corrected.has(day):
        return False
    return day not in log.by_day or bool(_change(before, plan, log, log.by_day[day]))


def _change(before: DayRecord, plan: Plan, log: DayTable, part: DayPart) -> str:
    """Return what has changed in a day since it was counted; nothing when nothing has."""
    if before.rows != part.rows:
        return f"had {before.rows} rows then and has {part.rows} now"
    digest = day_digest(plan.declared.data, log, part)
    if before.digest.partition(":")[0] != digest.partition(":")[0]:
        return "was counted with another version of Polars"
    return "" if before.digest == digest else "has other values now"


def _changed_keys(view: StaticView, plan: Plan, before: Path, now: Path) -> pl.DataFrame:
    """Return the keys of a side table whose counted columns changed, came or went."""
    counted = [name for name in view.features if name in plan.read_for_counting]
    if not counted:
        return pl.DataFrame()
    then, said = (_hashed(folder / f"{view.name}.parquet", [*view.keys, *counted]) for folder in (before, now))
    changed = (one.join(other, on=one.columns, how="anti") for one, other in ((then, said), (said, then)))
    return pl.concat(changed).select(view.keys)


def _hashed(path: Path, columns: list[str]) -> pl.DataFrame:
    """Return the first column, and a hash of all of them."""
    try:
        rows = pl.read_parquet(path, columns=columns)
    except (OSError, pl.exceptions.ColumnNotFoundError):
        raise IncompatibleFitError(f"{path}: is missing, or lacks one of {', '.join(columns)}. {_AGAIN}") from None
    return rows.select(columns[0], pl.Series(_SAID, row_hashes(rows)))


def _occur(keys: pl.DataFrame, plan: Plan, log: DayTable, days: set[date]) -> bool:
    """Return whether the rows of some days have any of the keys; a key from another side table always counts."""
    (name,) = keys.columns
    if not days:
        return False
    if plan.declared.owner(name) is not None:
        return True
    return not log.scan(days).select(name).join(keys.lazy(), on=name, how="semi").head(1).collect().is_empty()


_SAID = ":said"
_AGAIN = "Fit without the previous artefact."
