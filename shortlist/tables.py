"""Day-partitioned Parquet tables: the shape of the validated log and of the feature table."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, Self

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from shortlist.artefacts import read_json, write_json
from shortlist.contracts import Columns


class DayPart(BaseModel):
    """One day of a table."""

    model_config = ConfigDict(frozen=True)

    day: date
    rows: int = Field(ge=0)
    positives: int = Field(ge=0)
    files: tuple[str, ...]


class DayTable(BaseModel):
    """A folder of Parquet files, a few per day, each of bounded size, and an index that lists them.

    Rows keep the order in which they were appended; every file of a day holds the same columns.
    """

    model_config = ConfigDict(frozen=True)

    folder: Path = Field(exclude=True)
    days: tuple[DayPart, ...]
    notes: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, index: str) -> Self:
        """Return the table in a folder; `index` is the name of its JSON index."""
        return cls(folder=folder, **read_json(folder / index))

    @property
    def rows(self) -> int:
        """Rows of all days."""
        return sum(part.rows for part in self.days)

    @property
    def positives(self) -> int:
        """Rows with label 1, of all days."""
        return sum(part.positives for part in self.days)

    def paths(self, days: frozenset[date] | set[date] | None = None) -> list[Path]:
        """Return the files of some days (of all by default), in time order."""
        return [self.folder / name for part in self.days if days is None or part.day in days for name in part.files]

    def frames(self, days: frozenset[date] | set[date] | None = None) -> Iterator[tuple[date, pl.DataFrame]]:
        """Give the rows file by file, in time order."""
        for part in self.days:
            if days is None or part.day in days:
                for name in part.files:
                    yield part.day, pl.read_parquet(self.folder / name, hive_partitioning=False)

    def scan(self, days: frozenset[date] | set[date] | None = None) -> pl.LazyFrame:
        """Return a lazy frame over some days (over all by default), in time order."""
        return pl.scan_parquet(self.paths(days), hive_partitioning=False)


class DayTableWriter:
    """Writes a `DayTable` into a (staging) folder; between calls it holds at most `chunk_rows` rows.

    Appended frames need the columns `day` and `label`. Call `close` to write what is held and the index.
    """

    def __init__(self, folder: Path, index: str, chunk_rows: int) -> None:
        self._folder = folder
        self._index = index
        self._chunk_rows = chunk_rows
        self._held: dict[date, list[pl.DataFrame]] = {}
        self._files: dict[date, list[str]] = {}
        self._rows: dict[date, int] = {}
        self._positives: dict[date, int] = {}

    def append(self, frame: pl.DataFrame) -> None:
        """Take rows, of one or of many days."""
        for (day,), rows in frame.group_by(Columns.DAY, maintain_order=True):
            assert isinstance(day, date)
            self._held.setdefault(day, []).append(rows)
            while self._height(day) >= self._chunk_rows:
                self._write(day, self._chunk_rows)
        while sum(map(self._height, self._held)) > self._chunk_rows:  # many days are open: the fullest goes early
            self._write(max(self._held, key=self._height), self._chunk_rows)

    def close(self, notes: dict[str, Any] | None = None) -> DayTable:
        """Write the rest and the index; return the table."""
        for day in sorted(self._held):
            if self._height(day):
                self._write(day, self._chunk_rows)
        days = tuple(
            DayPart(day=day, rows=self._rows[day], positives=self._positives[day], files=tuple(self._files[day]))
            for day in sorted(self._files)
        )
        table = DayTable(folder=self._folder, days=days, notes=notes or {})
        write_json(self._folder / self._index, table.model_dump(mode="json"))
        return table

    def _height(self, day: date) -> int:
        return sum(held.height for held in self._held[day])

    def _write(self, day: date, rows: int) -> None:
        held = pl.concat(self._held[day])
        now, later = held.head(rows), held.slice(rows)
        self._held[day] = [later] if later.height else []
        files = self._files.setdefault(day, [])
        name = f"{Columns.DAY}={day}/part-{len(files):05d}.parquet"
        (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
        now.write_parquet(self._folder / name, compression="zstd", compression_level=1)
        files.append(name)
        self._rows[day] = self._rows.get(day, 0) + now.height
        self._positives[day] = self._positives.get(day, 0) + int((now[Columns.LABEL] == 1).sum())
