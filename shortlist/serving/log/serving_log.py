"""A log that servers write: streams on their disks, and the Delta table that the streams are committed to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Final, Self

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from polars.exceptions import PanicException, PolarsError

from shortlist.serving.log.log_rows import (
    DAY,
    PLACE_COLUMNS,
    LogRowsError,
    declared_rows,
    first_line,
    polars_schema,
)
from shortlist.serving.log.log_tables import LogKind, file_column, newest_version, table_address, table_errors
from shortlist.serving.log.logs import RECEIVED, REQUIRED_COLUMNS
from shortlist.serving.log.table_committer import UNREADABLE, TableCommitter
from shortlist.serving.paths import ServingPaths
from shortlist.storage.append_log.writer import AppendLog, open_free_stream

ROWS_PER_FRAME: Final = 200_000
"""Most rows of a frame."""
_UNREADABLE: Final = (pa.ArrowException, OSError, UnicodeError, MemoryError, PolarsError, PanicException, LogRowsError)
"""What reading a spoilt file may raise."""
_ADVICE: Final = "restore the file from a backup, and run again"


class ServingLog:
    """A log of a spec. Use from one thread.

    Args:
        schema: Declared schema of the log.
        table: Address of the table: a path, or `s3://...`.
        streams: Folder of the streams on this machine; None where the servers run on others.
    """

    def __init__(self, schema: pa.Schema, table: str, streams: Path | None) -> None:
        self.declared = schema
        self.schema = pa.schema([*map(pa.field, *zip(*PLACE_COLUMNS.items(), strict=True)), *schema])
        """Schema of the table: the places of the rows, and the declared schema."""
        self.address, self.streams = table, streams
        self.written = RECEIVED if RECEIVED in schema.names else "time"
        """Column with the time at which a row was received, by a clock of ours."""
        self.unreadable: dict[str, str] = {}
        """Why files of the table cannot be read, by their path in it; the others are."""
        self._table: DeltaTable | None = None

    @classmethod
    def on_disk(cls, folder: Path, schema: pa.Schema) -> Self:
        """Return a log whose table is a folder, with its streams in `streams/` beside it."""
        return cls(schema, str(folder), stream_folder(folder))

    @classmethod
    def of_spec(cls, paths: ServingPaths, kind: LogKind, schema: pa.Schema) -> Self:
        """Return a log of a spec: on this disk, or in an object store."""
        folder = {"predictions": paths.predictions, "outcomes": paths.outcomes}[kind]
        if not paths.log_objects:
            return cls.on_disk(folder, schema)
        return cls(schema, table_address(paths.log_objects, paths.root.name, kind), None)

    @classmethod
    def in_table(cls, log: ServingLog) -> Self:
        """Return the same log without its streams: readers see what is committed."""
        return cls(log.declared, log.address, None)

    def open_stream(self) -> AppendLog:
        """Return a stream of the log that this process appends to.

        Raises:
            AppendLogError: The folder cannot be written.
        """
        assert self.streams is not None
        return open_free_stream(self.streams)

    def commit(self) -> None:
        """Take what is in the streams of this machine into the table.

        Raises:
            ShortlistError: The table cannot be read or written.
        """
        if self.streams is not None:
            TableCommitter(self.streams, self.address).commit()

    def open_table(self) -> DeltaTable | None:
        """Return the newest version of the table; None when nothing was written yet.

        Raises:
            ShortlistError: It cannot be read.
        """
        table, self._table = self._table, None  # after an error it is opened anew
        self._table = newest_version(table, self.address)
        return self._table

    def read(
        self, columns: Sequence[str] | None = None, since: datetime | None = None, until: datetime | None = None,
        where: ds.Expression | None = None,
    ) -> Iterator[pl.DataFrame]:  # fmt: skip
        """Yield the rows of the table, a bounded number at once, in the order of the days.

        Files and groups of rows whose statistics exclude the conditions are not read. A file that cannot be read is
        left out and named in `unreadable`; it is tried again the next time.

        Args:
            columns: Columns of the schema; None for all.
            since: Only rows received at this time or later.
            until: Only rows received at this time or earlier.
            where: A further condition on columns of the schema.

        Raises:
            ShortlistError: The table cannot be read.
        """
        table = self.open_table()
        if table is not None:
            yield from self.read_files(table, columns, self.condition(since, until, where))

    def read_files(
        self, table: DeltaTable, columns: Sequence[str] | None, where: ds.Expression | None,
        only: set[str] | None = None,
    ) -> Iterator[pl.DataFrame]:  # fmt: skip
        """Yield rows of a version of the table; see `read`.

        Args:
            table: The version.
            columns: Columns of the schema; None for all.
            where: Condition on the rows.
            only: Paths of the files to read; None for all.
        """
        return (rows for _, rows in self.iter_files(table, columns, where, only))

    def iter_files(
        self, table: DeltaTable, columns: Sequence[str] | None, where: ds.Expression | None,
        only: set[str] | None = None,
    ) -> Iterator[tuple[str, pl.DataFrame]]:  # fmt: skip
        """Yield rows as `read_files` does, each frame with the path of its file, in the order of the commits."""
        with table_errors(self.address):
            dataset = table.to_pyarrow_dataset()
            committed_at = file_column(table, "modification_time")
        stored = set(dataset.schema.names)
        wanted = list(columns or self.schema.names)
        present = [name for name in wanted if name in stored] + sorted(_required(self.schema, stored) - set(wanted))
        fragments = [piece for piece in dataset.get_fragments(filter=where) if only is None or piece.path in only]
        for piece in sorted(fragments, key=lambda piece: (committed_at.get(piece.path, 0), piece.path)):
            try:
                for batch in piece.to_batches(
                    schema=dataset.schema, columns=present, filter=where, batch_size=ROWS_PER_FRAME, use_threads=False
                ):
                    if batch.num_rows:
                        yield piece.path, declared_rows(batch, self.schema, wanted)
                self.unreadable.pop(piece.path, None)
            except _UNREADABLE as error:
                self.unreadable[piece.path] = f"{self.address}/{piece.path}: {first_line(error)}; {_ADVICE}"

    def oldest_day(self) -> date | None:
        """Return the oldest day with rows; None without any.

        Raises:
            ShortlistError: The table cannot be read.
        """
        table = self.open_table()
        return None if table is None else min(file_column(table, f"partition.{DAY}").values(), default=None)

    @property
    def problems(self) -> tuple[str, ...]:
        """Files of the table that cannot be read, and records of streams that do not fit it."""
        folder = None if self.streams is None else self.streams / UNREADABLE
        records = [] if folder is None or not folder.exists() else sorted(folder.iterdir())
        left_out = (f"{record}: left out, because it does not fit {self.address}; move it away" for record in records)
        return (*self.unreadable.values(), *left_out)

    def read_all(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return all rows, those in the streams too.

        Raises:
            ShortlistError: The table cannot be read or written.
        """
        self.commit()
        return pl.concat([self.empty(columns), *self.read(columns)])

    def empty(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return no rows."""
        every = polars_schema(self.schema)
        return pl.DataFrame(schema=every if columns is None else {name: every[name] for name in columns})

    def condition(
        self, since: datetime | None, until: datetime | None, where: ds.Expression | None = None
    ) -> ds.Expression | None:
        """Return the condition on the rows that `read` yields; None for all."""
        time = ds.field(self.written)
        conditions = [] if where is None else [where]
        if since is not None:
            conditions.append((ds.field(DAY) >= since.date()) & (time.is_null() | (time >= since)))
        if until is not None:
            conditions.append((ds.field(DAY) <= until.date()) & (time.is_null() | (time <= until)))
        condition = None
        for part in conditions:
            condition = part if condition is None else condition & part
        return condition


def stream_folder(folder: Path) -> Path:
    """Return the folder of the streams of a log.

    >>> str(stream_folder(Path("demo/predictions")))
    'demo/streams/predictions'
    """
    return folder.parent / "streams" / folder.name


def _required(schema: pa.Schema, stored: set[str]) -> set[str]:
    return set(REQUIRED_COLUMNS) & set(schema.names) & stored
