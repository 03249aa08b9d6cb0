"""Day tables whose rows were written in parts, joined as one writer would have written all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow.parquet as pq

from shortlist.storage.artefacts import write_json
from shortlist.storage.tables import DayPart, DayTable, FileCuts, file_name, link_or_copy, write_file

APPENDED: Final = "appended"
"""Note of a part: what was appended to its writer (see `as_json`)."""


def as_json(appended: Sequence[Sequence[tuple[date, int]]]) -> list[list[list[str | int]]]:
    """Return `DayTableWriter.appended` as a part notes it."""
    return [[[day.isoformat(), rows] for day, rows in frame] for frame in appended]


@dataclass(frozen=True)
class TablePart:
    """Rows of a table that were written on their own."""

    table: DayTable
    """Its notes say what was `APPENDED`."""
    changed: pl.Expr | None = None
    """Column to write in place of the one of its name; None: the rows are right as they are."""


def join_parts(parts: Sequence[TablePart], folder: Path, index: str, chunk_rows: int, notes: Mapping[str, Any]) -> None:
    """Write one table of the rows of several parts; what was appended to them is as if appended to one writer.

    A file of a part that is a file of the table too is linked; rows of others are read and written again.

    Args:
        parts: In the order of their rows.
        folder: Folder to write.
        index: Name of the table's index.
        chunk_rows: As of the parts' writers.
        notes: Of the table.
    """
    files = _files_of(parts, chunk_rows)
    days = []
    for day, heights in sorted(files.items()):
        rows = _DayRows(parts, day)
        (folder / file_name(day, 0)).parent.mkdir()
        names = [file_name(day, number) for number in range(len(heights))]
        for name, height in zip(names, heights, strict=True):
            rows.write(height, folder / name)
        own = [part.table.by_day[day] for part in parts if day in part.table.by_day]
        positives = sum(part.positives for part in own)
        days.append(DayPart(day=day, rows=sum(heights), positives=positives, files=tuple(names)))
    table = DayTable(folder=folder, days=tuple(days), notes=dict(notes))
    write_json(folder / index, table.model_dump(mode="json"))


def _files_of(parts: Sequence[TablePart], chunk_rows: int) -> dict[date, list[int]]:
    """Return the rows of every file of the table, by day."""
    cuts, files = FileCuts(chunk_rows), dict[date, list[int]]()

    def every() -> Iterator[tuple[date, int]]:
        for part in parts:
            for counts in part.table.notes[APPENDED]:
                yield from cuts.append((date.fromisoformat(day), rows) for day, rows in counts)
        yield from cuts.flush()

    for day, rows in every():
        files.setdefault(day, []).append(rows)
    return files


class _DayRows:
    """The rows of a day, part after part, taken file by file of the joined table."""

    def __init__(self, parts: Sequence[TablePart], day: date) -> None:
        self._sources = [
            (part.table.folder / name, part.changed)
            for part in parts
            if day in part.table.by_day
            for name in part.table.by_day[day].files
        ]
        self._source = self._taken = 0

    def write(self, rows: int, file: Path) -> None:
        """Write the next rows into a file."""
        path, changed = self._sources[self._source]
        if self._taken == 0 and changed is None and pq.read_metadata(path).num_rows == rows:
            link_or_copy(path, file)
            self._source += 1
        else:
            write_file(file, pl.concat(self._next(rows)))

    def _next(self, rows: int) -> Iterator[pl.DataFrame]:
        while rows:
            path, changed = self._sources[self._source]
            left = pq.read_metadata(path).num_rows - self._taken
            piece = pl.scan_parquet(path, hive_partitioning=False).slice(self._taken, min(rows, left)).collect()
            yield piece if changed is None else piece.with_columns(changed)
            rows, self._taken = rows - piece.height, self._taken + piece.height
            if piece.height == left:
                self._source, self._taken = self._source + 1, 0
