"""Counted days whose statistics are in a folder: that of a group of days, or of an earlier fit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, Final, Self

from shortlist.contracts import DataError
from shortlist.features.counting import DayRecord
from shortlist.features.plan import Plan
from shortlist.features.views import day_file
from shortlist.storage.artefacts import read_json, write_json
from shortlist.storage.tables import link_or_copy

STATISTICS: Final = "statistics"
"""Folder of the statistics per key and day, below a fitted artefact or a group's."""
_INDEX: Final = "counted.json"


@dataclass(frozen=True)
class CountedDays:
    """Some counted days of a log, with the folder of their statistics."""

    folder: Path
    records: Mapping[date, DayRecord]
    widths: Mapping[str, Sequence[int]] | None = None
    """The different widths of the vectors on these days, by column of the log (see `widths_on`); None: unknown."""

    @classmethod
    def load(cls, folder: Path, plan: Plan) -> Self:
        """Return what `save` wrote.

        Raises:
            DataError: The counts are for other features than those of the plan.
        """
        saved = read_json(folder / _INDEX)
        if saved["counting"] != plan.counting():
            raise DataError(f"{folder}: counted for other features than the declared ones; count again")
        return cls(folder, read_day_records(saved), saved["widths"])

    def save(self, plan: Plan) -> None:
        """Write the records of the days."""
        days = {day.isoformat(): record.to_json() for day, record in self.records.items()}
        write_json(self.folder / _INDEX, {"counting": plan.counting(), "days": days, "widths": self.widths})

    def select_days(self, days: Collection[date]) -> Self:
        """Return the same with these days only."""
        return replace(self, records={day: record for day, record in self.records.items() if day in days})

    def missing(self, plan: Plan) -> Path | None:
        """Return a missing file of statistics; None when all are there."""
        return next((file for file, _ in self._files(plan) if not file.is_file()), None)

    def copy_statistics(self, plan: Plan, statistics: Path) -> None:
        """Link the statistics that a plan needs into a folder, because they never change, or copy them."""
        for source, name in self._files(plan):
            target = statistics / name
            target.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(source, target)

    def _files(self, plan: Plan) -> Iterable[tuple[Path, Path]]:
        """Yield every file of statistics, and its path below the folder of statistics."""
        for view in plan.counted_views:
            for day in self.records:
                name = day_file(Path(), view.name, day)
                yield self.folder / STATISTICS / name, name


def read_day_records(saved: Mapping[str, Any]) -> dict[date, DayRecord]:
    """Return the records that a fit or a group saved, by day."""
    return {date.fromisoformat(day): DayRecord.from_json(record) for day, record in saved["days"].items()}
