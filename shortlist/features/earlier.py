"""An earlier fit of the same declaration, whose counted days need not be counted again."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Self

from shortlist.artefacts import read_json
from shortlist.contracts import DataError, Files
from shortlist.features.counting import DayRecord
from shortlist.features.plan import Plan
from shortlist.features.views import day_file
from shortlist.tables import DayTable


@dataclass(frozen=True)
class Earlier:
    """The days that were counted before; none when there was no earlier fit."""

    folder: Path | None = None
    records: Mapping[date, DayRecord] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path | None, plan: Plan, log: DayTable) -> Self:
        """Return what an earlier fit counted.

        Raises:
            DataError: It counted something else, or the log has changed in the days it counted.
        """
        if folder is None:
            return cls()
        saved = read_json(folder / Files.FEATURES)
        for group, wanted in plan.counting().items():
            for name, what in wanted.items():
                if saved["counting"][group].get(name) != what:
                    raise DataError(f"{folder}: '{name}' was counted otherwise, or not at all. {_AGAIN}")
        records = {date.fromisoformat(day): DayRecord.of(record) for day, record in saved["days"].items()}
        for part in log.days:
            if part.day in records and records[part.day].rows != part.rows:
                before = records[part.day].rows
                raise DataError(f"{folder}: {part.day} had {before} rows then and has {part.rows} now. {_AGAIN}")
            if part.day not in records and part.day < max(records):
                raise DataError(f"{folder}: {part.day} lies before its last day {max(records)} and is new. {_AGAIN}")
        return cls(folder, records)

    def copy_statistics(self, plan: Plan, statistics: Path) -> None:
        """Copy the statistics that the plan needs."""
        if self.folder is None:
            return
        for view in plan.counted:
            (statistics / view.name).mkdir(parents=True, exist_ok=True)
            for day in self.records:
                source = day_file(self.folder / statistics.name, view.name, day)
                shutil.copyfile(source, day_file(statistics, view.name, day))


_AGAIN = "Fit without the previous artefact."
