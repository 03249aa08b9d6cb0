"""The event log: requests are on disk when they are answered, and every server of a spec on a machine reads them.

A folder of files, one or more per process. A file holds records: their length and CRC-32, four bytes each, and JSON.
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
from shortlist.features.open_events import Impressions

_log = logging.getLogger(__name__)

_HEAD: Final = struct.Struct("<II")
LONGEST_RECORD: Final = 64 * 2**20
"""Bytes; a longer one is refused, and one that an earlier version wrote is passed over."""
_PIECE: Final = 4 * 2**20
_NAME: Final = "*.events"
_KEPT: Final = "*.checkpoint*"


class EventLogError(ShortlistError):
    """Events cannot be kept: they are not acknowledged."""


def encoded(event: Impressions) -> bytes:
    """Return an event as a record holds it."""
    return orjson.dumps((event.request, event.answered, event.times, event.keys, event.rows))


def decoded(record: bytes) -> Impressions:
    """Return what `encoded` was given."""
    return Impressions(*orjson.loads(record))


class EventWriter:
    """Appends records to files of this process, several with one call of the system.

    Args:
        folder: Of the event log.
        rotate_seconds: A file that is older gets no further records.
    """

    def __init__(self, folder: Path, rotate_seconds: float) -> None:
        self._folder = folder
        self._rotate_seconds = rotate_seconds
        self._waiting: queue.SimpleQueue[tuple[bytes, Future[None]] | None] = queue.SimpleQueue()
        self._file: int | None = None
        self._opened = 0.0
        self._size = 0
        self._closing = threading.Lock()
        self._closed = False
        self.problem: str | None = None
        """Why nothing can be written; None when all is well."""
        self._thread = threading.Thread(target=self._run, name="event-log", daemon=True)
        self._thread.start()

    def append(self, event: Impressions) -> Future[None]:
        """Take an event; the result is there when it is on disk, or says why it is not (`EventLogError`)."""
        done: Future[None] = Future()
        # Who waits may hang up. The event is kept then all the same, and others' must be: this cannot be cancelled.
        done.set_running_or_notify_cancel()
        with self._closing:
            if self._closed:
                done.set_exception(EventLogError("the event log is closed; ask another server"))
                return done
            record = encoded(event)
            if len(record) > LONGEST_RECORD:
                done.set_exception(
                    EventLogError(f"the event takes {len(record)} bytes; wanted at most {LONGEST_RECORD}")
                )
                return done
            self._waiting.put((record, done))
        return done

    def close(self) -> None:
        """Write what waits, and end."""
        with self._closing:
            self._closed = True
            self._waiting.put(None)
        self._thread.join()
        self._let_go()

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            together = [first]
            while True:
                try:
                    more = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    self._waiting.put(None)
                    break
                together.append(more)
            self._commit(together)

    def _commit(self, together: list[tuple[bytes, Future[None]]]) -> None:
        try:
            self._write(b"".join(framed(record) for record, _ in together))
        # A full disk, most often. A thread that ends would leave requests that wait for it for ever.
        except Exception as error:
            self._fail(error)
            for _, done in together:
                done.set_exception(EventLogError(f"{self._folder}: {error}; make room, or send it again later"))
            return
        self.problem = None
        for _, done in together:
            done.set_result(None)

    def _write(self, content: bytes) -> None:
        if self._file is None or time.monotonic() - self._opened >= self._rotate_seconds:
            self._open()
        assert self._file is not None
        try:
            written = 0
            while written < len(content):
                written += os.write(self._file, content[written:])
            os.fdatasync(self._file)
        except Exception:
            self._let_go()  # what it holds of these records is not to be followed by others
            raise
        self._size += len(content)

    def _open(self) -> None:
        self._let_go()
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{time.time_ns()}-{os.getpid()}.events"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)
        self._opened, self._size = time.monotonic(), 0
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)  # or the file itself may be gone after a power cut
        finally:
            os.close(folder)

    def _let_go(self) -> None:
        """Close the file, without the beginning of records that were not written whole."""
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
    """Reads the events of all processes, each once; those of a file in their order.

    Args:
        folder: Of the event log; it need not be there yet.
        read: Files of which so many bytes were read before.
    """

    def __init__(self, folder: Path, read: Mapping[str, int] | None = None) -> None:
        self._folder = folder
        self._read: dict[str, int] = dict(read or {})
        self._spoilt: dict[str, str] = {}
        self._too_long: dict[str, str] = {}

    @property
    def problem(self) -> str | None:
        """What of the files that are there was not read, or cannot be; None when all is well."""
        return next(iter((*self._spoilt.values(), *self._too_long.values())), None)

    @property
    def is_stuck(self) -> bool:
        """Whether there is a file whose rest cannot be read."""
        return bool(self._spoilt)

    @property
    def read(self) -> Mapping[str, int]:
        """How many bytes of each file were read."""
        return dict(self._read)

    def new(self) -> Iterator[Impressions]:
        """Give what is new; the end of a file that is not whole is looked at again the next time."""
        there = sorted(self._folder.glob(_NAME))
        self._read = {path.name: self._read.get(path.name, 0) for path in there}
        for problems in (self._spoilt, self._too_long):
            for gone in problems.keys() - self._read:
                del problems[gone]
        for path in there:
            try:
                yield from self._of(path)
            except FileNotFoundError:  # it was removed, being old
                continue

    def _of(self, path: Path) -> Iterator[Impressions]:
        at, size = self._read[path.name], path.stat().st_size
        if size <= at or path.name in self._spoilt:
            return
        with path.open("rb", buffering=_PIECE) as file:
            file.seek(at)
            while at + _HEAD.size <= size:
                length, checksum = _HEAD.unpack(file.read(_HEAD.size))
                end = at + _HEAD.size + length
                is_long = length > LONGEST_RECORD
                if end > size and not is_long:  # it is being written, or was when its process ended
                    return
                record = b"" if is_long else file.read(length)
                found = _checksum(file, length) if is_long else zlib.crc32(record)
                if not length or end > size or found != checksum:
                    self._spoilt[path.name] = (
                        f"{path}: there is no record at byte {at}; the rest of the file is not read"
                    )
                    return
                self._read[path.name] = at = end
                if is_long:
                    said = f"got a record of {length} bytes; wanted at most {LONGEST_RECORD}; it is not counted"
                    self._too_long[path.name] = f"{path}: {said}"
                else:
                    yield decoded(record)


def _checksum(file: BinaryIO, length: int) -> int:
    """Return the CRC-32 of so many bytes."""
    found = 0
    while length and (piece := file.read(min(length, _PIECE))):
        found, length = zlib.crc32(piece, found), length - len(piece)
    return found


def framed(record: bytes) -> bytes:
    """Return a record as it stands in a file."""
    return _HEAD.pack(len(record), zlib.crc32(record)) + record


def records(content: bytes) -> Iterator[tuple[bytes, int]]:
    """Give every whole record, and where it ends; nothing behind the first one that is not whole."""
    at = 0
    while at + _HEAD.size <= len(content):
        length, checksum = _HEAD.unpack_from(content, at)
        record = content[at + _HEAD.size : at + _HEAD.size + length]
        if not record or len(record) < length or zlib.crc32(record) != checksum:
            return
        at += _HEAD.size + length
        yield record, at


def remove_older(folder: Path, seconds: float) -> int:
    """Remove files, and what servers kept of them, that were written last before so many seconds; return how many."""
    removed = 0
    for path in [*folder.glob(_NAME), *folder.glob(_KEPT)]:
        try:
            if time.time() - path.stat().st_mtime > seconds:
                path.unlink()
                removed += 1
        except FileNotFoundError:  # another server was first
            continue
    return removed
