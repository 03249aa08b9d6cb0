"""Takes the rows of streams into a Delta table, each exactly once, and keeps the table small.

Every commit names, for each stream, the offset up to which it took the records (an application transaction of the Delta
protocol). A committer that is killed at any moment has committed or has not; the next one goes on behind the last
offset. Of two commits of the same stream at the same time, one fails and tries again behind the other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from filelock import FileLock

from shortlist.contracts import ShortlistError
from shortlist.serving.log.log_rows import (
    DAY,
    PLACE_COLUMNS,
    LogRowsError,
    concat_rows,
    decode_rows,
    first_line,
    placed_rows,
    stored_rows,
)
from shortlist.serving.log.log_tables import file_column, newest_version, table_errors, table_options
from shortlist.storage.append_log.reader import StreamReader
from shortlist.storage.append_log.segments import remove_segments
from shortlist.storage.append_log.writer import stream_id, streams

_log = logging.getLogger(__name__)

UNREADABLE: Final = "unreadable"
"""Folder beside the streams with records that do not fit the table."""
_COMMIT_BYTES: Final = 256 * 2**20
"""Most bytes of records of one commit."""
_MAX_RETRIES: Final = 20
_MAX_CONFLICTS: Final = 20
_SMALL_FILES: Final = 32
"""Files of a day from which they are put together."""
_TARGET_BYTES: Final = 128 * 2**20
_VACUUM_HOURS: Final = 6
"""Age of files that were put together or removed; a reader that holds an older version has to open the table again."""
_CONFIGURATION: Final = {
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": f"interval {_VACUUM_HOURS} hours",
    "delta.checkpointInterval": "50",
}
_PROPERTIES: Final = WriterProperties(compression="ZSTD")


@dataclass
class _StreamRecords:
    """Records of one stream that are taken by the next commit."""

    stream: Path
    id: str
    end: int
    """Offset behind the last of them."""
    records: list[tuple[int, bytes]] = field(default_factory=list)


class TableCommitter:
    """Commits the streams of a folder to a table.

    Args:
        folder: Folder of the streams; it need not exist.
        table: Address of the table, a path or `s3://...`; made with the first rows.
        keep_seconds: Time that segments of committed records stay for processes that follow them.
    """

    def __init__(self, folder: Path, table: str, keep_seconds: float = 3_600.0) -> None:
        self._folder, self._address, self._keep_seconds = folder, table, keep_seconds
        self._table: DeltaTable | None = None
        self.committed = 0
        """Number of rows that this committer took into the table."""
        self.skipped = 0
        """Number of records that do not fit the table; they are in the folder `unreadable`."""
        self.problems: dict[str, str] = {}
        """Why records of a stream, or a day of the table, cannot be read or written, by their name."""

    def commit(self) -> int:
        """Take all records into the table; return the number of rows.

        Raises:
            ShortlistError: The table cannot be read or written; no record is lost.
        """
        if not streams(self._folder):
            return 0
        total, conflicts = 0, 0
        with self._locked():
            while conflicts < _MAX_CONFLICTS:
                try:
                    rows = self._commit_once()
                except CommitFailedError:  # another committer took the same records
                    conflicts += 1
                    continue
                if rows is None:
                    return total
                total += rows
        raise ShortlistError(
            f"{self._address}: {conflicts} commits failed, each because another one came first; is a second committer"
            f" at work on {self._folder}? Nothing is lost; it is tried again"
        )

    def maintain(self, keep: timedelta | None = None) -> None:
        """Put small files of a day together, and remove old rows, and files that nobody reads any more.

        Args:
            keep: Time that rows are kept; None for ever.

        Raises:
            ShortlistError: The table cannot be read or written.
        """
        table = self._open()
        if table is None:
            return
        with self._locked(), suppress(CommitFailedError), table_errors(self._address):  # a conflict: the next time
            if keep is not None:
                oldest = (datetime.now(UTC) - keep).date()
                if any(day < oldest for day in _days(table)):
                    table.delete(f"{DAY} < '{oldest}'")
            for day in _fragmented_days(table):
                self._compact(table, day)
            table.vacuum(retention_hours=_VACUUM_HOURS, enforce_retention_duration=False, dry_run=False)
            table.cleanup_metadata()

    def retry_unreadable(self) -> None:
        """Try again to commit the records that did not fit the table: its schema may have got their columns since.

        Raises:
            ShortlistError: The table cannot be read or written.
        """
        folder = self._folder / UNREADABLE
        for path in sorted(folder.iterdir()) if folder.exists() else ():
            with self._locked():
                self._retry(path)

    def _commit_once(self) -> int | None:
        """Make one commit; return its number of rows, None when there were no records.

        Raises:
            CommitFailedError: Another committer took records of the same streams.
        """
        table = self._open()
        batch = list(self._new_records(table))
        if not any(taken.records for taken in batch):
            self._tidy(table)
            return None
        schema = None if table is None else pa.schema(table.schema().to_arrow())
        rows = self._rows(batch, schema)
        transactions = [Transaction(taken.id, taken.end) for taken in batch if taken.records]
        self._write(table, rows, transactions)
        self.committed += rows.num_rows
        return int(rows.num_rows)

    def _write(self, table: DeltaTable | None, rows: pa.Table, transactions: list[Transaction]) -> None:
        properties = CommitProperties(app_transactions=transactions, max_commit_retries=_MAX_RETRIES)
        with table_errors(self._address):
            write_deltalake(
                self._address if table is None else table, rows, mode="append", partition_by=[DAY],
                schema_mode="merge", configuration=_CONFIGURATION if table is None else None,
                storage_options=table_options(self._address) if table is None else None,
                writer_properties=_PROPERTIES, commit_properties=properties,
            )  # fmt: skip

    def _new_records(self, table: DeltaTable | None) -> Iterator[_StreamRecords]:
        size = 0
        for stream in streams(self._folder):
            try:
                taken = _StreamRecords(stream, stream_id(stream), 0)
                reader = StreamReader(stream, _committed(table, taken.id))
                for record in reader.read_new():
                    taken.records.append((record.end, record.content))
                    taken.end = record.end
                    size += len(record.content)
                    if size >= _COMMIT_BYTES:
                        break
                self._note(stream.name, str(reader.damages[0]) if reader.damages else None)
            except OSError as error:  # the other streams go on, and this one is read again
                self._note(stream.name, f"{stream}: {error}; its records are taken as soon as it can be read")
                continue
            yield taken
            if size >= _COMMIT_BYTES:
                return

    def _rows(self, batch: list[_StreamRecords], schema: pa.Schema | None) -> pa.Table:
        tables = [] if schema is None else [schema.empty_table()]
        for taken in batch:
            for end, content in taken.records:
                try:
                    rows = decode_rows(content)
                    if rows.num_rows:
                        placed = placed_rows(rows, taken.id, end)
                        stored = placed if not tables else stored_rows(placed, tables[-1].schema)
                        tables.append(stored)
                except LogRowsError as error:
                    self._skip(taken, end, content, error)
        # Of several chunks the order would be lost.
        return concat_rows(tables).combine_chunks() if tables else pa.schema(PLACE_COLUMNS).empty_table()

    def _skip(self, taken: _StreamRecords, end: int, content: bytes, error: LogRowsError) -> None:
        folder = self._folder / UNREADABLE
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{taken.stream.name}-{taken.id}-{end}.record"
        path.write_bytes(content)
        self.skipped += 1
        self._note(path.name, f"{path}: {error}; the record is left out of {self._address}, and kept in this file")

    def _retry(self, path: Path) -> None:
        _, stream, end = path.stem.rsplit("-", 2)
        table = self._open()
        try:
            if table is not None and table.transaction_version(path.name) is None:
                schema = pa.schema(table.schema().to_arrow())
                rows = stored_rows(placed_rows(decode_rows(path.read_bytes()), stream, int(end)), schema)
                self._write(table, rows, [Transaction(path.name, 1)])
        except LogRowsError:
            return  # it is named already
        except OSError as error:
            self._note(path.name, f"{path}: {error}")
            return
        path.unlink(missing_ok=True)
        self._note(path.name, None)

    def _compact(self, table: DeltaTable, day: date) -> None:
        try:
            table.optimize.compact(
                partition_filters=[(DAY, "=", str(day))], target_size=_TARGET_BYTES, writer_properties=_PROPERTIES
            )
            self._note(str(day), None)
        except (DeltaError, OSError) as error:  # one bad file must not keep the other days from being compacted
            self._note(str(day), f"{self._address}: the files of {day} cannot be put together ({first_line(error)})")

    def _tidy(self, table: DeltaTable | None) -> None:
        for stream in streams(self._folder):
            try:
                remove_segments(stream, _committed(table, stream_id(stream)), self._keep_seconds)
            except OSError as error:
                self._note(stream.name, f"{stream}: {error}; old segments stay")

    def _open(self) -> DeltaTable | None:
        table, self._table = self._table, None  # after an error it is opened anew: it may have been moved
        self._table = newest_version(table, self._address)
        return self._table

    def _note(self, name: str, problem: str | None) -> None:
        if problem is None:
            self.problems.pop(name, None)
        elif self.problems.get(name) != problem:
            _log.warning("%s", problem)
            self.problems[name] = problem

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self._folder / "commit.lock"):
            yield


def _committed(table: DeltaTable | None, stream: str) -> int:
    """Return the offset up to which a stream's records are in the table."""
    return 0 if table is None else table.transaction_version(stream) or 0


def _days(table: DeltaTable) -> dict[date, list[int]]:
    """Return the sizes of the files of each day in bytes."""
    size_of_file, sizes = file_column(table, "size_bytes"), dict[date, list[int]]()
    for path, day in file_column(table, f"partition.{DAY}").items():
        sizes.setdefault(day, []).append(size_of_file[path])
    return sizes


def _fragmented_days(table: DeltaTable) -> list[date]:
    """Return the days whose small files are to be put together: a past day's always, today's when they are many."""
    today = datetime.now(UTC).date()
    small = {day: sum(size < _TARGET_BYTES // 2 for size in sizes) for day, sizes in _days(table).items()}
    return [day for day, count in small.items() if count >= (_SMALL_FILES if day >= today else 2)]
