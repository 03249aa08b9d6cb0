"""An earlier fit of the same declaration, whose counted days need not be counted again."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Final, Self

import polars as pl

from shortlist.artefacts import IntegrityError, read_json
from shortlist.contracts import DataError, Files
from shortlist.features.counting import DayRecord, day_digest
from shortlist.features.plan import Plan
from shortlist.features.standing import StaticView
from shortlist.features.store import SERVING
from shortlist.features.views import day_file
from shortlist.tables import DayPart, DayTable

NEWEST: Final = "newest"
"""Stands for the fit that a store was last filled from."""


class MisfitError(DataError):
    """An earlier fit is no beginning of this one; fitting without it gives the right result."""


@dataclass(frozen=True)
class Earlier:
    """The days that were counted before; none when there was no earlier fit."""

    folder: Path | None = None
    records: Mapping[date, DayRecord] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path | None, plan: Plan, log: DayTable) -> Self:
        """Return what an earlier fit counted.

        Its last day may have grown since, for it may have been cut short: it is counted again.

        Raises:
            MisfitError: It counted something else or later days, or the log has changed in the days it counted.
        """
        if folder is None:
            return cls()
        saved = _saved(folder)
        for group, wanted in plan.counting().items():
            for name, what in wanted.items():
                if saved["counting"][group].get(name) != what:
                    raise MisfitError(f"{folder}: '{name}' was counted otherwise, or not at all. {_AGAIN}")
        records = {date.fromisoformat(day): DayRecord.of(record) for day, record in saved["days"].items()}
        last = max(records)
        if last > log.days[-1].day:
            raise MisfitError(f"{folder}: it has seen {last}, the log ends on {log.days[-1].day}. {_AGAIN}")
        for part in log.days:
            if part.day not in records and part.day < last:
                raise MisfitError(f"{folder}: {part.day} lies before its last day {last} and is new. {_AGAIN}")
            problem = _change(records[part.day], plan, log, part) if part.day in records else ""
            if problem and part.day == last:
                del records[last]
            elif problem:
                raise MisfitError(f"{folder}: {part.day} {problem}. {_AGAIN}")
        return cls(folder, records)

    def refuse_changed_sides(self, plan: Plan, views: Path, log: DayTable) -> None:
        """Refuse side tables that say other things now of what was counted; rows about anything else may come and go.

        Args:
            plan: What is counted.
            views: Folder of this fit's own static views.
            log: The valid log.

        Raises:
            MisfitError: Names the side table.
        """
        if self.folder is None:
            return
        counted = {day for day in self.records if day in {part.day for part in log.days}}
        for view in plan.statics:
            changed = _changed_keys(view, plan, self.folder / views.name, views)
            if changed.height and _occur(changed, plan, log, counted):
                what = f"side table '{view.name}' says other things of old rows now"
                raise MisfitError(f"{self.folder}: {what}. {_AGAIN}")

    def copy_statistics(self, plan: Plan, statistics: Path) -> None:
        """Copy the statistics that the plan needs."""
        if self.folder is None:
            return
        for view in plan.counted:
            (statistics / view.name).mkdir(parents=True, exist_ok=True)
            for day in self.records:
                source = day_file(self.folder / statistics.name, view.name, day)
                if not source.is_file():
                    raise MisfitError(f"{source} is missing. {_AGAIN}")
                shutil.copyfile(source, day_file(statistics, view.name, day))


def newest_fit(store: Path) -> str:
    """Return the path of the fit that a spec's store was last filled from; empty when it never was.

    Args:
        store: Folder of the spec's Feast store.
    """
    pointer = store / SERVING
    return str(Path(read_json(pointer)["views"]).parent) if pointer.is_file() else ""


def _saved(folder: Path) -> dict[str, Any]:
    try:
        saved: dict[str, Any] = read_json(folder / Files.FEATURES)
    except (IntegrityError, OSError) as error:
        raise MisfitError(f"{folder}: holds no earlier fit that can be read ({error}). {_AGAIN}") from None
    days = saved.get("days")
    if not days or not all("digest" in record for record in days.values()):
        raise MisfitError(f"{folder}: was fitted by another version of Shortlist. {_AGAIN}")
    return saved


def _change(before: DayRecord, plan: Plan, log: DayTable, part: DayPart) -> str:
    """Return what has changed in a day since it was counted; nothing when nothing has."""
    if before.rows != part.rows:
        return f"had {before.rows} rows then and has {part.rows} now"
    digest = day_digest(plan.declared, log, part)
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
        raise MisfitError(f"{path}: is missing, or lacks one of {', '.join(columns)}. {_AGAIN}") from None
    return rows.select(columns[0], rows.hash_rows(seed=1, seed_1=2, seed_2=3, seed_3=4).alias(_SAID))


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
