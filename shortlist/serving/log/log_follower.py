"""Follows a log while it is written: each row once, soon after it was appended."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from shortlist.serving.log.log_rows import (
    DAY,
    OFFSET,
    STREAM,
    LogRowsError,
    concat_rows,
    declared_rows,
    decode_rows,
    first_line,
    placed_rows,
)
from shortlist.serving.log.log_tables import file_column
from shortlist.serving.log.serving_log import ROWS_PER_FRAME, ServingLog
from shortlist.storage.append_log.reader import StreamReader
from shortlist.storage.append_log.segments import FramedRecord
from shortlist.storage.append_log.writer import stream_id, streams


class LogFollower:
    """Reads the rows of a log that are new since the last time.

    On the machine of the servers it begins with the table and goes on in the streams; elsewhere it reads the files that
    are new in the table.

    Args:
        log: The log.
        columns: Columns of its schema that are read.
        since: Rows of the table that were received earlier are left out.
        positions: Offsets behind the last record that was read, by stream; None to begin with the table.
        files: Files of the table that were read, where the streams are on other machines.
        where: Condition on the rows of the table that are read; those of streams are all read.
    """

    def __init__(
        self, log: ServingLog, columns: Sequence[str], since: datetime | None = None,
        positions: Mapping[str, int] | None = None, files: Collection[str] = (), where: ds.Expression | None = None,
    ) -> None:  # fmt: skip
        self._log, self._columns, self._since = log, list(columns), since
        self._positions = None if positions is None else dict(positions)
        self._readers: dict[Path, StreamReader] = {}
        self._files, self._where = set(files), where
        self._retried: set[str] = set()
        self._version = -1
        self.skipped: dict[str, str] = {}
        """Why records of streams were left out, by their name."""

    @property
    def positions(self) -> Mapping[str, int]:
        """Offset behind the last record that was read, by stream."""
        return dict(self._positions or {})

    @property
    def files(self) -> frozenset[str]:
        """Files of the table that were read, where the streams are on other machines."""
        return frozenset(self._files - self._retried)

    @property
    def problem(self) -> str | None:
        """A file, record or stream that cannot be read now; None when all can."""
        return next(iter((*self._log.unreadable.values(), *self.skipped.values())), None)

    @property
    def unreadable(self) -> int:
        """Number of files and records that cannot be read."""
        return len(self._log.unreadable) + len(self.skipped)

    def read_new(self) -> Iterator[pl.DataFrame]:
        """Yield the new rows, in frames; those of a stream in their order.

        A frame counts as read when the next one is asked for: after an error its rows come again.

        Raises:
            ShortlistError: The table cannot be read.
        """
        if self._log.streams is None:
            yield from self._read_table()
            return
        if self._positions is None:
            yield from self._begin()
        for folder in streams(self._log.streams):
            try:
                yield from self._read_stream(folder)
                self.skipped.pop(folder.name, None)
            except OSError as error:  # the other streams go on, and this one is read again
                self.skipped[folder.name] = f"{folder}: {error}; it is read again"

    def _begin(self) -> Iterator[pl.DataFrame]:
        """Yield the rows of the table; the streams follow from the records that it holds."""
        table = self._log.open_table()
        if table is None:
            self._positions = {}
            return
        # One version: rows that are committed meanwhile are read from their streams.
        assert self._log.streams is not None
        ids = [stream_id(folder) for folder in streams(self._log.streams)]
        committed = {name: table.transaction_version(name) or 0 for name in ids}
        yield from self._log.read_files(table, self._columns, self._condition())
        self._positions = committed

    def _read_stream(self, folder: Path) -> Iterator[pl.DataFrame]:
        assert self._positions is not None
        name = stream_id(folder)
        reader = self._readers.get(folder)
        if reader is None or self._positions.get(name, 0) != reader.offset:
            reader = self._readers[folder] = StreamReader(folder, self._positions.get(name, 0))
        pieces: list[pa.Table] = []
        end = reader.offset
        for record in reader.read_new():
            if sum(piece.num_rows for piece in pieces) >= ROWS_PER_FRAME:
                yield self._declared(pieces, folder)
                pieces, self._positions[name] = [], end
            end = record.end
            pieces += self._decode(record, folder, name)
        if reader.missed is not None:
            yield from self._read_missed(name, *reader.missed)
            reader.missed = None
        if pieces:
            yield self._declared(pieces, folder)
        self._positions[name] = reader.offset
        for damage in reader.damages:
            self.skipped[str(damage)] = str(damage)

    def _decode(self, record: FramedRecord, folder: Path, name: str) -> list[pa.Table]:
        try:
            return [placed_rows(decode_rows(record.content), name, record.end)]
        except LogRowsError as error:
            self._skip(folder, record.end, error)
            return []

    def _declared(self, pieces: Sequence[pa.Table], folder: Path) -> pl.DataFrame:
        try:
            return declared_rows(concat_rows(pieces), self._log.schema, self._columns)
        except (LogRowsError, pa.ArrowException) as error:
            if len(pieces) == 1:
                self._skip(folder, pieces[0][OFFSET][0].as_py(), error)
                return self._log.empty(self._columns)
            return pl.concat(self._declared([piece], folder) for piece in pieces)

    def _skip(self, folder: Path, end: int, error: Exception) -> None:
        name = f"{folder}: record before byte {end}"
        self.skipped[name] = f"{name}: {first_line(error)}; it is left out"

    def _read_missed(self, name: str, begin: int, end: int) -> Iterator[pl.DataFrame]:
        """Yield rows whose segments were removed before they were read; they are in the table."""
        table = self._log.open_table()
        if table is not None:
            missed = (ds.field(STREAM) == name) & (ds.field(OFFSET) > begin) & (ds.field(OFFSET) <= end)
            yield from self._log.read_files(table, self._columns, missed)

    def _read_table(self) -> Iterator[pl.DataFrame]:
        """Yield the rows of files that are new in the table, without those that were in other files before."""
        table = self._log.open_table()
        if table is None or (table.version() == self._version and not self._log.unreadable):
            return
        files = self._files_since(table)
        before = self.positions
        newest = dict(before)
        is_new = pl.lit(value=True)
        if before:
            is_new = pl.col(OFFSET) > pl.col(STREAM).replace_strict(before, default=-1, return_dtype=pl.Int64)
        # The rows of a file that could not be read before are new, whatever was read of its stream since.
        retried = files & self._retried
        for paths, condition in ((retried, pl.lit(value=True)), (files - self._files - retried, is_new)):
            columns = list(dict.fromkeys((*self._columns, STREAM, OFFSET)))
            for frame in self._log.read_files(table, columns, self._condition(), paths) if paths else ():
                rows = frame.filter(condition)
                for stream, end in rows.group_by(STREAM).agg(pl.col(OFFSET).max()).iter_rows():
                    newest[stream] = max(end, newest.get(stream, 0))
                if rows.height:
                    yield rows.select(self._columns)
        self._retried = {path for path in self._log.unreadable if path in files}
        self._files, self._positions, self._version = files, newest, table.version()

    def _files_since(self, table: DeltaTable) -> set[str]:
        since = None if self._since is None else self._since.date()
        days = file_column(table, f"partition.{DAY}")
        return {path for path, day in days.items() if since is None or day >= since}

    def _condition(self) -> ds.Expression | None:
        return self._log.condition(self._since, None, self._where)
