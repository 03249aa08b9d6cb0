"""Day-partitioned Parquet tables: the shape of the validated log and of the feature table."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final, Literal, Self

import polars as pl
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field

from shortlist.contracts import Columns, ShortlistError
from shortlist.storage.artefacts import read_json, write_json
from shortlist.system.prefetch import prefetch

Compression = Literal["lz4", "uncompressed"]
QUARANTINED_BY_DAY: Final = "quarantined_by_day"
"""Note of the valid log: day (ISO 8601) -> rows that were quarantined, for days that have some."""
_MAY_HOLD_TEXT: Final = (pl.String, pl.List)


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
    def by_day(self) -> dict[date, DayPart]:
        """The days, in time order."""
        return {part.day: part for part in self.days}

    @property
    def positives(self) -> int:
        """Rows with label 1, of all days."""
        return sum(part.positives for part in self.days)

    def paths(self, days: frozenset[date] | set[date] | None = None) -> list[Path]:
        """Return the files of some days (of all by default), in time order."""
        return [self.folder / name for part in self._of(days) for name in part.files]

    def frames(self, days: frozenset[date] | set[date] | None = None) -> Iterator[tuple[date, pl.DataFrame]]:
        """Give the rows file by file, in time order; the next file is read meanwhile."""
        for day, _, frame in self.files(days):
            yield day, frame

    def files(self, days: frozenset[date] | set[date] | None = None) -> Iterator[tuple[date, Path, pl.DataFrame]]:
        """Give every file's day, path and rows, in time order; the next file is read meanwhile."""
        paths = [(part.day, self.folder / name) for part in self._of(days) for name in part.files]
        yield from prefetch((day, path, pl.read_parquet(path, hive_partitioning=False)) for day, path in paths)

    def pieces(self, days: frozenset[date] | set[date] | None = None) -> Iterator[tuple[date, Path, pl.DataFrame]]:
        """Give the rows piece by piece with their day and file, in time order; the next piece is read meanwhile."""
        paths = [(part.day, self.folder / name) for part in self._of(days) for name in part.files]
        yield from prefetch((day, path, rows) for day, path in paths for rows in pieces_of(path))

    def scan(self, days: frozenset[date] | set[date] | None = None) -> pl.LazyFrame:
        """Return a lazy frame over some days (over all by default), in time order."""
        return pl.scan_parquet(self.paths(days), hive_partitioning=False)

    def _of(self, days: frozenset[date] | set[date] | None) -> list[DayPart]:
        return [part for part in self.days if days is None or part.day in days]


def pieces_of(path: Path, columns: Sequence[str] | None = None, *, whole: bool = False) -> Iterator[pl.DataFrame]:
    """Give the rows of a Parquet file, in order, one row group at a time: pieces do not grow with files.

    Of our own files that is 122,880 rows at most. Reading a file of 500,000 so takes a tenth less processor time than
    reading it whole, and 110 MiB less memory where a row has 46 columns.

    Args:
        path: The file.
        columns: Wanted columns; all by default.
        whole: Whether to give all of them at once, where every piece would cost as much again.
    """
    if whole:
        yield pl.read_parquet(path, columns=None if columns is None else list(columns), hive_partitioning=False)
        return
    groups, start = pq.read_metadata(path), 0
    wanted = pl.all() if columns is None else pl.col(columns)
    for number in range(groups.num_row_groups):
        rows = groups.row_group(number).num_rows
        yield pl.scan_parquet(path, hive_partitioning=False).slice(start, rows).select(wanted).collect()
        start += rows


def share_of(table: DayTable, rank: int, world: int, days: frozenset[date] | set[date] | None = None) -> list[Path]:
    """Return the files that one of several workers reads, in time order: every file is one worker's, none has two.

    The largest file goes first, to whoever has the fewest rows: the shares differ by the rows of one file at most. All
    workers come to the same answer by themselves.

    Args:
        table: The table.
        rank: Of the worker, from 0.
        world: Number of workers.
        days: The days that are shared; all by default.

    Raises:
        ShortlistError: There are fewer files than workers.
    """
    assert 0 <= rank < world
    paths = table.paths(days)
    if len(paths) < world:
        raise ShortlistError(
            f"{table.folder}: {len(paths)} file(s) cannot be shared among {world} workers, each needs one at least;"
            f" declare fewer workers, or a smaller runtime.chunk_rows"
        )
    rows = [pq.read_metadata(path).num_rows for path in paths]
    loads = [0] * world
    own = []
    for file in sorted(range(len(paths)), key=lambda number: -rows[number]):  # stable: equal files in time order
        worker = loads.index(min(loads))
        loads[worker] += rows[file]
        if worker == rank:
            own.append(file)
    return [paths[file] for file in sorted(own)]


class FileCuts:
    """Decides where the files of a table's days end, from the numbers of rows that are appended.

    A file holds at most `chunk_rows` rows, and so does the writer between two calls.

    Args:
        chunk_rows: Of a file, at most.
    """

    def __init__(self, chunk_rows: int) -> None:
        self._chunk_rows = chunk_rows
        self._held: dict[date, int] = {}

    def append(self, counts: Iterable[tuple[date, int]]) -> Iterator[tuple[date, int]]:
        """Take the days of a frame and their rows; give the day and the rows of every file that is full now."""
        for day, rows in counts:
            self._held[day] = self._held.get(day, 0) + rows
            while self._held[day] >= self._chunk_rows:
                yield self._cut(day)
        while sum(self._held.values()) > self._chunk_rows:  # many days are open: the fullest goes early
            yield self._cut(max(self._held, key=lambda day: self._held[day]))

    def flush(self, days: Collection[date] | None = None) -> Iterator[tuple[date, int]]:
        """Give the day and the rows of every file that is held, of some days or of all, in time order."""
        for day in sorted(self._held if days is None else days):
            if self._held.get(day):
                yield self._cut(day)

    def _cut(self, day: date) -> tuple[date, int]:
        rows = min(self._held[day], self._chunk_rows)
        self._held[day] -= rows
        return day, rows


class DayTableWriter:
    """Writes a `DayTable` into a (staging) folder; between calls it holds at most `chunk_rows` rows.

    Appended frames need the columns `day` and `label`. Call `close` to write what is held and the index.

    Args:
        folder: The folder.
        index: Name of the table's index.
        chunk_rows: Of a file, at most.
        compression: Of the files; None: LZ4 where there are texts, none where there are only numbers.
    """

    def __init__(
        self, folder: Path, index: str, chunk_rows: int, compression: Compression | None = None
    ) -> None:  # fmt: skip
        self._folder = folder
        self._index = index
        self._compression = compression
        self.appended: list[list[tuple[date, int]]] = []
        """What was appended: of every frame its days, in order, and their rows (see `joined_tables`)."""
        self._cuts = FileCuts(chunk_rows)
        self._held: dict[date, list[pl.DataFrame]] = {}
        self._files: dict[date, list[str]] = {}
        self._rows: dict[date, int] = {}
        self._positives: dict[date, int] = {}

    def append(self, frame: pl.DataFrame) -> None:
        """Take rows, of one or of many days."""
        by_day = list(_by_day(frame)) if frame.height else []
        for day, rows in by_day:
            self._held.setdefault(day, []).append(rows)
        counts = [(day, rows.height) for day, rows in by_day]
        self.appended += [counts] if counts else []
        for day, height in self._cuts.append(counts):
            self._write(day, height)

    def link(self, day: date, path: Path, rows: int, positives: int) -> None:
        """Take a file of one day as it is, after the rows that were appended: it is linked, or copied, not written.

        Args:
            day: Of its rows.
            path: The file, of at most `chunk_rows` rows with the columns of the others; nobody changes it later.
            rows: In it.
            positives: Rows with label 1.
        """
        for held, height in self._cuts.flush({day}):
            self._write(held, height)
        link_or_copy(path, self._new_file(day, rows, positives))

    def link_day(self, folder: Path, part: DayPart) -> None:
        """Take all files of a day of another table as they are; see `link`."""
        assert part.day not in self._files
        for name in part.files:
            link_or_copy(folder / name, self._new_file(part.day, 0, 0))
        self._rows[part.day], self._positives[part.day] = part.rows, part.positives

    def flush(self) -> None:
        """Write what is held: the files of a day do not depend on what was appended of others."""
        for day, height in self._cuts.flush():
            self._write(day, height)

    def close(self, notes: dict[str, Any] | None = None) -> DayTable:
        """Write the rest and the index; return the table."""
        self.flush()
        days = tuple(
            DayPart(day=day, rows=self._rows[day], positives=self._positives[day], files=tuple(self._files[day]))
            for day in sorted(self._files)
        )
        table = DayTable(folder=self._folder, days=days, notes=notes or {})
        write_json(self._folder / self._index, table.model_dump(mode="json"))
        return table

    def _write(self, day: date, rows: int) -> None:
        held = pl.concat(self._held[day])
        now, later = held.head(rows), held.slice(rows)
        self._held[day] = [later] if later.height else []
        path = self._new_file(day, now.height, int((now[Columns.LABEL] == 1).sum()))
        write_file(path, now, self._compression)

    def _new_file(self, day: date, rows: int, positives: int) -> Path:
        """Count a file of so many rows in; return where it goes."""
        files = self._files.setdefault(day, [])
        files.append(file_name(day, len(files)))
        self._rows[day] = self._rows.get(day, 0) + rows
        self._positives[day] = self._positives.get(day, 0) + positives
        path = self._folder / files[-1]
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def file_name(day: date, number: int) -> str:
    """Return the name, below its table's folder, of a file of a day; files are numbered from 0."""
    return f"{Columns.DAY}={day}/part-{number:05d}.parquet"


def write_file(path: Path, rows: pl.DataFrame, compression: Compression | None = None) -> None:
    """Write a file of a table; its bytes depend on the rows alone, however they lie in memory."""
    rows.write_parquet(path, compression=compression or _compression_of(rows))


def _compression_of(rows: pl.DataFrame) -> Compression:
    """Return the compression that is worth its time.

    Numbers that repeat are short already, by Parquet's dictionaries: a log of 40 columns of them is a fifth larger
    without LZ4 (172 MB for a text of 493 MB), and all steps together, which write it once and read it three times, take
    0.93 of the time. Texts that differ from row to row would be several times as large.
    """
    kinds = (kind for name, kind in rows.schema.items() if name != Columns.SOURCE_FILE)
    return "lz4" if any(kind.base_type() in _MAY_HOLD_TEXT for kind in kinds) else "uncompressed"


def link_or_copy(path: Path, own: Path) -> None:
    """Make a file that never changes appear under another name too."""
    try:
        own.hardlink_to(path)
    except OSError:  # on another disk
        shutil.copyfile(path, own)


def _by_day(frame: pl.DataFrame) -> Iterator[tuple[date, pl.DataFrame]]:
    """Give the rows of each day, in order; those of a single day, which is what files in time order hold, uncopied."""
    days = frame[Columns.DAY]
    if frame.height and (first := days[0]) == days[-1] and (days == first).all():
        yield first, frame
        return
    for (day,), rows in frame.group_by(Columns.DAY, maintain_order=True):
        assert isinstance(day, date)
        yield day, rows
