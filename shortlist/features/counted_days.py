"""Days whose statistics lie in a folder: a group's, or an earlier fit's."""

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
"""Folder of what was counted per key and day, below a fitted artefact or a group's."""
_INDEX: Final = "counted.json"


@dataclass(frozen=True)
class CountedDays:
    """Some days of a log, counted."""

    folder: Path
    records: Mapping[date, DayRecord]
    widths: Mapping[str, Sequence[int]] | None = None
    """The different widths of the vectors on these days, by column of the log (see `widths_on`); None: unknown."""

    @classmethod
    def load(cls, folder: Path, plan: Plan) -> Self:
        """Return what `save` wrote.

        Raises:
            DataError: Something else was counted than the plan asks for.
        """
        saved = read_json(folder / _INDEX)
        if saved["counting"] != plan.counting():
            raise DataError(f"{folder}: counted for other features than the declared ones; count again")
        return cls(folder, records_of(saved), saved["widths"])

    def save(self, plan: Plan) -> None:
        """Write what is kept of the days besides their statistics."""
        days = {day.isoformat(): record.saved() for day, record in self.records.items()}
        write_json(self.folder / _INDEX, {"counting": plan.counting(), "days": days, "widths": self.widths})

    def only(self, days: Collection[date]) -> Self:
        """Return the same without all other days."""
        return replace(self, records={day: record for day, record in self.records.items() if day in days})

    def missing(self, plan: Plan) -> Path | None:
        """Return a file of statistics that is not there; None when all are."""
        return next((file for file, _ in self._files(plan) if not file.is_file()), None)

    def copy_statistics(self, plan: Plan, statistics: Path) -> None:
        """Put the statistics that a plan needs into a folder: linked, because they never change, or copied."""
        for source, name in self._files(plan):
            target = statistics / name
            target.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(source, target)

    def _files(self, plan: Plan) -> Iterable[tuple[Path, Path]]:
        """Give every file of statistics, and its place below the folder of statistics."""
        for view in plan.counted:
            for day in self.records:
                name = day_file(Path(), view.name, day)
                yield self.folder / STATISTICS / name, name


def records_of(saved: Mapping[str, Any]) -> dict[date, DayRecord]:
    """Return the records that a fit or a group saved, by day."""
    return {date.fromisoformat(day): DayRecord.of(record) for day, record in saved["days"].items()}
