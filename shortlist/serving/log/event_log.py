"""The event log: rows are on disk before they are answered, and every server of a spec on a machine reads them.

A folder of files, one or more per process. A record is its length and CRC-32, four bytes each, followed by JSON.
"""

from __future__ import annotations

import logging
import os
import queue
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import BinaryIO, Final

import orjson

from shortlist.contracts import ShortlistError
from shortlist.features.open_events import AnsweredRequest

_log = logging.getLogger(__name__)

_HEAD: Final = struct.Struct("<II")
MAX_RECORD_BYTES: Final = 64 * 2**20
"""Longer records are refused; longer ones of an earlier version are skipped."""
_CHUNK_BYTES: Final = 4 * 2**20
_EVENTS_PATTERN: Final = "*.events"
_CHECKPOINT_PATTERN: Final = "*.checkpoint*"


class EventLogError(ShortlistError):
    """Events could not be written and are not acknowledged."""


def encode_event(event: AnsweredRequest) -> bytes:
    """Return the record of an event."""
    return orjson.dumps((event.request, event.answered, event.times, event.keys, event.rows))


def decode_event(record: bytes) -> AnsweredRequest:
    """Return the event of a record."""
    return AnsweredRequest(*orjson.loads(record))


class EventWriter:
    """Appends records to files of this process, several with one system call.

    Args:
        folder: Folder of the event log.
        rotate_seconds: Age at which a file gets no further records.
    """

    def __init__(self, folder: Path, rotate_seconds: float) -> None:
        self._folder = folder
        self._rotate_seconds = rotate_seconds
        self._queue: queue.SimpleQueue[tuple[bytes, Future[None]] | None] = queue.SimpleQueue()
        self._file: int | None = None
        self._opened_at = 0.0
        self._size = 0
        self._close_lock = threading.Lock()
        self._closed = False
        self.problem: str | None = None
        """Why events cannot be written; None when they can."""
        self._thread = threading.Thread(target=self._run, name="event-log", daemon=True)
        self._thread.start()

    def append(self, event: AnsweredRequest) -> Future[None]:
        """Append an event; the future is done when it is on disk, or holds an `EventLogError`."""
        written: Future[None] = Future()
        # A client that disconnects must not cancel the write: the event and others of its batch are still written.
        written.set_running_or_notify_cancel()
        with self._close_lock:
            if self._closed:
                written.set_exception(EventLogError("the event log is closed; ask another server"))
                return written
            record = encode_event(event)
            if len(record) > MAX_RECORD_BYTES:
                written.set_exception(
                    EventLogError(f"the event takes {len(record)} bytes; wanted at most {MAX_RECORD_BYTES}")
                )
                return written
            self._queue.put((record, written))
        return written

    def close(self) -> None:
        """Write the queued events and stop the thread."""
        with self._close_lock:
            self._closed = True
            self._queue.put(None)
        self._thread.join()
        self._close_file()

    def _run(self) -> None:
        while (first_record := self._queue.get()) is not None:
            batch = [first_record]
            while True:
                try:
                    next_record = self._queue.get_nowait()
                except queue.Empty:
                    break
                if next_record is None:
                    self._queue.put(None)
                    break
                batch.append(next_record)
            self._commit(batch)

    def _commit(self, batch: list[tuple[bytes, Future[None]]]) -> None:
        try:
            self._write(b"".join(frame_record(record) for record, _ in batch))
        # Usually a full disk. If the thread ended, requests would wait for ever.
        except Exception as error:
            self._fail(error)
            for _, written in batch:
                written.set_exception(EventLogError(f"{self._folder}: {error}; make room, or send it again later"))
            return
        self.problem = None
        for _, written in batch:
            written.set_result(None)

    def _write(self, content: bytes) -> None:
        if self._file is None or time.monotonic() - self._opened_at >= self._rotate_seconds:
            self._open()
        assert self._file is not None
        try:
            written = 0
            while written < len(content):
                written += os.write(self._file, content[written:])
            os.fdatasync(self._file)
        except Exception:
            self._close_file()  # no records may follow a partly written one
            raise
        self._size += len(content)

    def _open(self) -> None:
        self._close_file()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{time.time_ns()}-{os.getpid()}.events"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        self._opened_at, self._size = time.monotonic(), 0
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)  # without it, a power failure may lose the file itself
        finally:
            os.close(folder)

    def _close_file(self) -> None:
        """Close the file, after removing partly written records."""
        if self._file is not None:
            try:
                os.ftruncate(self._file, self._size)
            except OSError as error:
                _log.warning("%s: %s", self._folder, error)
            os.close(self._file)
            self._file = None

    def _fail(self, error: Exception) -> None:
        problem = f"{type(error).__name__}: {error}"
        if self.problem != problem:
            _log.warning("%s: events cannot be kept: %s", self._folder, problem)
        self.problem = problem


class EventReader:
    """Reads the events of all processes once, those of each file in order.

    Args:
        folder: Folder of the event log; it need not exist.
        read: Number of bytes already read, by file name.
    """

    def __init__(self, folder: Path, read: Mapping[str, int] | None = None) -> None:
        self._folder = folder
        self._bytes_read: dict[str, int] = dict(read or {})
        self._broken_files: dict[str, str] = {}
        self._long_records: dict[str, str] = {}

    @property
    def problem(self) -> str | None:
        """Why a file or record was not read; None when all were."""
        return next(iter((*self._broken_files.values(), *self._long_records.values())), None)

    @property
    def is_stuck(self) -> bool:
        """Whether the rest of a file cannot be read."""
        return bool(self._broken_files)

    @property
    def bytes_read(self) -> Mapping[str, int]:
        """Number of bytes read, by file name."""
        return dict(self._bytes_read)

    def read_new(self) -> Iterator[AnsweredRequest]:
        """Yield new events; an incomplete record at the end of a file is read again the next time."""
        paths = sorted(self._folder.glob(_EVENTS_PATTERN))
        self._bytes_read = {path.name: self._bytes_read.get(path.name, 0) for path in paths}
        for problems in (self._broken_files, self._long_records):
            for removed_name in problems.keys() - self._bytes_read:
                del problems[removed_name]
        for path in paths:
            try:
                yield from self._read_file(path)
            except FileNotFoundError:  # another server removed it
                continue

    def _read_file(self, path: Path) -> Iterator[AnsweredRequest]:
        position, size = self._bytes_read[path.name], path.stat().st_size
        if size <= position or path.name in self._broken_files:
            return
        with path.open("rb", buffering=_CHUNK_BYTES) as file:
            file.seek(position)
            while position + _HEAD.size <= size:
                length, checksum = _HEAD.unpack(file.read(_HEAD.size))
                end = position + _HEAD.size + length
                is_long = length > MAX_RECORD_BYTES
                if end > size and not is_long:  # it is being written, or its process ended while writing
                    return
                record = b"" if is_long else file.read(length)
                computed_checksum = _checksum(file, length) if is_long else zlib.crc32(record)
                if not length or end > size or computed_checksum != checksum:
                    self._broken_files[path.name] = (
                        f"{path}: there is no record at byte {position}; the rest of the file is not read"
                    )
                    return
                self._bytes_read[path.name] = position = end
                if is_long:
                    message = f"got a record of {length} bytes; wanted at most {MAX_RECORD_BYTES}; it is not counted"
                    self._long_records[path.name] = f"{path}: {message}"
                else:
                    yield decode_event(record)


def _checksum(file: BinaryIO, length: int) -> int:
    """Return the CRC-32 of the next `length` bytes."""
    checksum = 0
    while length and (chunk := file.read(min(length, _CHUNK_BYTES))):
        checksum, length = zlib.crc32(chunk, checksum), length - len(chunk)
    return checksum


def frame_record(record: bytes) -> bytes:
    """Return a record with its length and checksum."""
    return _HEAD.pack(len(record), zlib.crc32(record)) + record


def iter_records(content: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield every complete record and its end position, up to the first incomplete one."""
    position = 0
    while position + _HEAD.size <= len(content):
        length, checksum = _HEAD.unpack_from(content, position)
        record = content[position + _HEAD.size : position + _HEAD.size + length]
        if not record or len(record) < length or zlib.crc32(record) != checksum:
            return
        position += _HEAD.size + length
        yield record, position


def remove_old_files(folder: Path, seconds: float) -> int:
    """Remove event files and checkpoints last written longer ago than `seconds`; return their number."""
    removed = 0
    for path in [*folder.glob(_EVENTS_PATTERN), *folder.glob(_CHECKPOINT_PATTERN)]:
        try:
            if time.time() - path.stat().st_mtime > seconds:
                path.unlink()
                removed += 1
        except FileNotFoundError:  # another server removed it
            continue
    return removed
