"""The world of a drill: a generated log, split into days that are replayed one after another."""

from __future__ import annotations

import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from shortlist.contracts import Files, ShortlistError
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.spec.data import Drift, GeneratedSource, Live
from shortlist.spec.spec import Spec
from shortlist.storage.artefacts import atomic_folder
from shortlist.storage.side_tables import SIDE_FOLDER
from shortlist.storage.tables import DayTable, DayTableWriter


class DrillWorld:
    """All days of a spec's generated log.

    Trainings never read this copy: they generate the first days again, and collect the others from served traffic.
    """

    def __init__(self, spec: Spec, folder: Path) -> None:
        """Generate the log.

        Raises:
            ShortlistError: The spec reads files, or plants no drift.
        """
        source = spec.data.source
        if not isinstance(source, GeneratedSource) or not source.drifts:
            raise ShortlistError(
                f"spec '{spec.name}': wanted data.source of kind generated with drifts, which a drill injects"
            )
        self.source = source
        self.drifts: tuple[Drift, ...] = tuple(sorted(source.drifts, key=lambda drift: drift.from_day))
        """The drifts in the order in which they begin."""
        self._folder = folder
        self._chunk_rows = spec.runtime.chunk_rows
        # All days are generated: with `live.collect` the log would end where collecting begins.
        data = spec.data.model_copy(update={"live": Live()})
        ingest(data, folder, folder / "raw", spec.runtime)
        validate(data, folder / "raw", folder / "log", folder / "quarantine", spec.runtime, datetime.now(UTC))
        self._log = DayTable.open(folder / "log", Files.LOG)

    def date_of(self, number: int) -> date:
        """Return the date of a day counted from 0."""
        return self.source.start + timedelta(days=number)

    def start_of(self, number: int) -> datetime:
        """Return the moment at which a day counted from 0 begins."""
        return datetime.combine(self.date_of(number), datetime.min.time(), UTC)

    def drift_on(self, number: int) -> Drift | None:
        """Return the drift that is active on a day, the newest of several."""
        return next((drift for drift in reversed(self.drifts) if drift.holds_on(number)), None)

    @property
    def log(self) -> Path:
        """Folder of the log of all days."""
        return self._folder / "log"

    def write_day_log(self, number: int) -> Path:
        """Write the log of one day, if it does not exist, and return its folder."""
        folder = self._folder / "days" / str(number)
        if not folder.exists():
            with atomic_folder(folder) as staging:
                writer = DayTableWriter(staging, Files.LOG, self._chunk_rows)
                for _, frame in self._log.frames({self.date_of(number)}):
                    writer.append(frame)
                writer.close(self._log.notes)
                shutil.copytree(self._folder / "log" / SIDE_FOLDER, staging / SIDE_FOLDER)
        return folder
