"""Joins day tables that were written in parts into the table that one writer would have written."""

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
"""Note of a part: the frames that were appended to its writer (see `appended_as_json`)."""


def appended_as_json(appended: Sequence[Sequence[tuple[date, int]]]) -> list[list[list[str | int]]]:
    """Return `DayTableWriter.appended` in the form of a part's note."""
    return [[[day.isoformat(), rows] for day, rows in frame] for frame in appended]


@dataclass(frozen=True)
class TablePart:
    """A part of a table, written by a writer of its own."""

    table: DayTable
    """The part as a table; its notes contain `APPENDED`."""
    changed: pl.Expr | None = None
    """Expression that replaces the column of its name; None: no column is replaced."""


def join_parts(parts: Sequence[TablePart], folder: Path, index: str, chunk_rows: int, notes: Mapping[str, Any]) -> None:
    """Write one table from several parts, as if all frames had been appended to one writer.

    A part's file that is also a file of the table is linked; the rows of other files are read and written again.

    Args:
        parts: Parts in the order of their rows.
        folder: Folder to write.
        index: Name of the table's index.
        chunk_rows: Most rows of a file, as in the parts' writers.
        notes: Notes of the table.
    """
    files = _file_rows_by_day(parts, chunk_rows)
    days = []
    for day, heights in sorted(files.items()):
        rows = _DayRows(parts, day)
        (folder / file_name(day, 0)).parent.mkdir()
        names = [file_name(day, number) for number in range(len(heights))]
        for name, height in zip(names, heights, strict=True):
            rows.write(height, folder / name)
        day_parts = [part.table.by_day[day] for part in parts if day in part.table.by_day]
        positives = sum(part.positives for part in day_parts)
        days.append(DayPart(day=day, rows=sum(heights), positives=positives, files=tuple(names)))
    table = DayTable(folder=folder, days=tuple(days), notes=dict(notes))
    write_json(folder / index, table.model_dump(mode="json"))


def _file_rows_by_day(parts: Sequence[TablePart], chunk_rows: int) -> dict[date, list[int]]:
    """Return the rows of every file of the table, by day."""
    cuts, files = FileCuts(chunk_rows), dict[date, list[int]]()

    def file_counts() -> Iterator[tuple[date, int]]:
        for part in parts:
            for counts in part.table.notes[APPENDED]:
                yield from cuts.append((date.fromisoformat(day), rows) for day, rows in counts)
        yield from cuts.flush()

    for day, rows in file_counts():
        files.setdefault(day, []).append(rows)
    return files


class _DayRows:
    """Reads the rows of a day from part after part, and writes the files of the joined table."""

    def __init__(self, parts: Sequence[TablePart], day: date) -> None:
        self._sources = [
            (part.table.folder / name, part.changed)
            for part in parts
            if day in part.table.by_day
            for name in part.table.by_day[day].files
        ]
        self._source = self._rows_read = 0

    def write(self, rows: int, file: Path) -> None:
        """Write the next rows into a file."""
        path, changed = self._sources[self._source]
        if self._rows_read == 0 and changed is None and pq.read_metadata(path).num_rows == rows:
            link_or_copy(path, file)
            self._source += 1
        else:
            write_file(file, pl.concat(self._next(rows)))

    def _next(self, rows: int) -> Iterator[pl.DataFrame]:
        while rows:
            path, changed = self._sources[self._source]
            remaining_rows = pq.read_metadata(path).num_rows - self._rows_read
            piece = (
                pl.scan_parquet(path, hive_partitioning=False)
                .slice(self._rows_read, min(rows, remaining_rows))
                .collect()
            )
            yield piece if changed is None else piece.with_columns(changed)
            rows, self._rows_read = rows - piece.height, self._rows_read + piece.height
            if piece.height == remaining_rows:
                self._source, self._rows_read = self._source + 1, 0
