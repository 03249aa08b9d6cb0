"""Day-partitioned Parquet tables: the format of the validated log and of the feature table."""

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
"""Note of the valid log: day (ISO 8601) -> number of quarantined rows, for days that have some."""
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

    Rows keep the order in which they were appended; all files of a day have the same columns.
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
    def rows_by_day(self) -> dict[date, int]:
        """Rows of the days, in time order."""
        return {part.day: part.rows for part in self.days}

    @property
    def positives(self) -> int:
        """Rows with label 1, of all days."""
        return sum(part.positives for part in self.days)

    def paths(self, days: frozenset[date] | set[date] | None = None) -> list[Path]:
        """Return the files of some days (of all by default), in time order."""
        return [self.folder / name for part in self._select_days(days) for name in part.files]

    def frames(self, days: frozenset[date] | set[date] | None = None) -> Iterator[tuple[date, pl.DataFrame]]:
        """Yield the rows file by file, in time order; the next file is read in the background."""
        for day, _, frame in self.files(days):
            yield day, frame

    def files(self, days: frozenset[date] | set[date] | None = None) -> Iterator[tuple[date, Path, pl.DataFrame]]:
        """Yield every file's day, path and rows, in time order; the next file is read in the background."""
        paths = [(part.day, self.folder / name) for part in self._select_days(days) for name in part.files]
        yield from prefetch((day, path, pl.read_parquet(path, hive_partitioning=False)) for day, path in paths)

    def pieces(self, days: frozenset[date] | set[date] | None = None) -> Iterator[tuple[date, Path, pl.DataFrame]]:
        """Yield the rows by row group with day and file, in time order; the next group is read in the background."""
        paths = [(part.day, self.folder / name) for part in self._select_days(days) for name in part.files]
        yield from prefetch((day, path, rows) for day, path in paths for rows in iter_row_groups(path))

    def scan(self, days: frozenset[date] | set[date] | None = None) -> pl.LazyFrame:
        """Return a lazy frame over some days (over all by default), in time order."""
        return pl.scan_parquet(self.paths(days), hive_partitioning=False)

    def _select_days(self, days: frozenset[date] | set[date] | None) -> list[DayPart]:
        return [part for part in self.days if days is None or part.day in days]


def iter_row_groups(path: Path, columns: Sequence[str] | None = None, *, whole: bool = False) -> Iterator[pl.DataFrame]:
    """Yield the rows of a Parquet file by row group, in order, so that memory does not grow with the file.

    A row group of our files has at most 122,880 rows. Reading a file of 500,000 rows this way takes a tenth less CPU
    time than reading it whole, and 110 MiB less memory where a row has 46 columns.

    Args:
        path: The file.
        columns: Columns to read; all by default.
        whole: Whether to yield all rows at once, where each piece has a fixed cost.
    """
    if whole:
        yield pl.read_parquet(path, columns=None if columns is None else list(columns), hive_partitioning=False)
        return
    groups, start = pq.read_metadata(path), 0
    selection = pl.all() if columns is None else pl.col(columns)
    for number in range(groups.num_row_groups):
        rows = groups.row_group(number).num_rows
        yield pl.scan_parquet(path, hive_partitioning=False).slice(start, rows).select(selection).collect()
        start += rows


def files_of_worker(
    table: DayTable, rank: int, world: int, days: frozenset[date] | set[date] | None = None
) -> list[Path]:
    """Return the files that one of several workers reads, in time order; every file belongs to exactly one worker.

    Files are assigned by descending size to the worker with the fewest rows, so that the workers' rows differ by at
    most one file. Every worker computes the same assignment.

    Args:
        table: The table.
        rank: Rank of the worker, from 0.
        world: Number of workers.
        days: The days to divide; all by default.

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
    own_files = []
    for file in sorted(range(len(paths)), key=lambda number: -rows[number]):  # stable: equal files in time order
        worker = loads.index(min(loads))
        loads[worker] += rows[file]
        if worker == rank:
            own_files.append(file)
    return [paths[file] for file in sorted(own_files)]


class FileCuts:
    """Decides where the files of a table's days end, from the numbers of appended rows.

    A file has at most `chunk_rows` rows, and so has the writer's buffer between two calls.

    Args:
        chunk_rows: Most rows of a file.
    """

    def __init__(self, chunk_rows: int) -> None:
        self._chunk_rows = chunk_rows
        self._buffered_rows: dict[date, int] = {}

    def append(self, counts: Iterable[tuple[date, int]]) -> Iterator[tuple[date, int]]:
        """Add the days of a frame and their rows; yield the day and the rows of every file that is now full."""
        for day, rows in counts:
            self._buffered_rows[day] = self._buffered_rows.get(day, 0) + rows
            while self._buffered_rows[day] >= self._chunk_rows:
                yield self._cut(day)
        while sum(self._buffered_rows.values()) > self._chunk_rows:  # many days are open: the fullest is written early
            yield self._cut(max(self._buffered_rows, key=lambda day: self._buffered_rows[day]))

    def flush(self, days: Collection[date] | None = None) -> Iterator[tuple[date, int]]:
        """Yield the day and the rows of every incomplete file, of some days or of all, in time order."""
        for day in sorted(self._buffered_rows if days is None else days):
            if self._buffered_rows.get(day):
                yield self._cut(day)

    def _cut(self, day: date) -> tuple[date, int]:
        rows = min(self._buffered_rows[day], self._chunk_rows)
        self._buffered_rows[day] -= rows
        return day, rows


class DayTableWriter:
    """Writes a `DayTable` into a (staging) folder; between calls it buffers at most `chunk_rows` rows.

    Appended frames need the columns `day` and `label`. `close` writes the buffered rows and the index.

    Args:
        folder: The folder.
        index: Name of the table's index.
        chunk_rows: Most rows of a file.
        compression: Compression of the files; None: LZ4 where there are texts, none where there are only numbers.
    """

    def __init__(
        self, folder: Path, index: str, chunk_rows: int, compression: Compression | None = None
    ) -> None:  # fmt: skip
        self._folder = folder
        self._index = index
        self._compression = compression
        self._cuts = FileCuts(chunk_rows)
        self._buffered_frames: dict[date, list[pl.DataFrame]] = {}
        self._files: dict[date, list[str]] = {}
        self._rows: dict[date, int] = {}
        self._positives: dict[date, int] = {}

    def append(self, frame: pl.DataFrame) -> None:
        """Append rows, of one or of many days."""
        by_day = list(_by_day(frame)) if frame.height else []
        for day, rows in by_day:
            self._buffered_frames.setdefault(day, []).append(rows)
        counts = [(day, rows.height) for day, rows in by_day]
        for day, height in self._cuts.append(counts):
            self._write(day, height)

    def link(self, day: date, path: Path, rows: int, positives: int) -> None:
        """Append a file of one day, by a hard link or a copy, after the rows that were appended.

        Args:
            day: Day of its rows.
            path: The file, of at most `chunk_rows` rows with the columns of the others; it is never changed later.
            rows: Number of its rows.
            positives: Number of its rows with label 1.
        """
        for day_to_write, height in self._cuts.flush({day}):
            self._write(day_to_write, height)
        link_or_copy(path, self._new_file(day, rows, positives))

    def flush(self) -> None:
        """Write the buffered rows, so that the files of a day do not depend on other days."""
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
        buffered = pl.concat(self._buffered_frames[day])
        written, remaining = buffered.head(rows), buffered.slice(rows)
        self._buffered_frames[day] = [remaining] if remaining.height else []
        path = self._new_file(day, written.height, int((written[Columns.LABEL] == 1).sum()))
        write_file(path, written, self._compression)

    def _new_file(self, day: date, rows: int, positives: int) -> Path:
        """Register a new file of a day; return its path."""
        files = self._files.setdefault(day, [])
        files.append(file_name(day, len(files)))
        self._rows[day] = self._rows.get(day, 0) + rows
        self._positives[day] = self._positives.get(day, 0) + positives
        path = self._folder / files[-1]
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def file_name(day: date, number: int) -> str:
    """Return the path of a day's file, relative to its table's folder; files are numbered from 0."""
    return f"{Columns.DAY}={day}/part-{number:05d}.parquet"


def write_file(path: Path, rows: pl.DataFrame, compression: Compression | None = None) -> None:
    """Write a file of a table; its bytes depend only on the rows, not on their chunks in memory."""
    rows.write_parquet(path, compression=compression or _compression_of(rows))


def _compression_of(rows: pl.DataFrame) -> Compression:
    """Return the compression for a table's column types.

    Parquet's dictionaries already shorten repeated numbers: a log of 40 such columns is a fifth larger without LZ4
    (172 MB for a text of 493 MB), and all steps together, which write it once and read it three times, take 0.93 of the
    time. Texts that differ from row to row would be several times as large.
    """
    kinds = (kind for name, kind in rows.schema.items() if name != Columns.SOURCE_FILE)
    return "lz4" if any(kind.base_type() in _MAY_HOLD_TEXT for kind in kinds) else "uncompressed"


def link_or_copy(path: Path, link: Path) -> None:
    """Hard-link a file that never changes, or copy it where that is impossible."""
    try:
        link.hardlink_to(path)
    except OSError:  # on another disk
        shutil.copyfile(path, link)


def _by_day(frame: pl.DataFrame) -> Iterator[tuple[date, pl.DataFrame]]:
    """Yield the rows of each day, in order; without a copy for a single day, as in files in time order."""
    days = frame[Columns.DAY]
    if frame.height and (first := days[0]) == days[-1] and (days == first).all():
        yield first, frame
        return
    for (day,), rows in frame.group_by(Columns.DAY, maintain_order=True):
        assert isinstance(day, date)
        yield day, rows
