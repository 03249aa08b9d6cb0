"""Counted days of an earlier fit, whose statistics are in its folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

from shortlist.features.declared.plan import Plan
from shortlist.features.fits.counting import DayRecord
from shortlist.features.stored_views.views import day_file
from shortlist.storage.tables import link_or_copy

STATISTICS: Final = "statistics"
"""Folder of the statistics per key and day, below a fitted artefact."""


@dataclass(frozen=True)
class CountedDays:
    """Some counted days of a log, with the folder of the fit that counted them."""

    folder: Path
    records: Mapping[date, DayRecord]

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
    """Return the records that a fit saved, by day."""
    return {date.fromisoformat(day): DayRecord.from_json(record) for day, record in saved["days"].items()}
