"""Appending records to a stream: many callers share one write to the disk.

A stream is a folder with segments and an id. One process writes to it at a time; when it has ended, however it ended,
the next process goes on: it cuts off the record that was being written, and begins a new segment.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from shortlist.contracts import ShortlistError
from shortlist.storage.append_log.segments import MAX_RECORD_BYTES, complete_bytes, frame, segment_path, segments
from shortlist.storage.artefacts import sync_path

_log = logging.getLogger(__name__)

ROTATE_BYTES: Final = 64 * 2**20
ROTATE_SECONDS: Final = 60.0
_OFFSETS_PER_START: Final = 2**30
"""Offsets left out at a start: a reader may have read bytes that a power failure took before they were on the disk."""
_MAX_BATCH_BYTES: Final = 2 * MAX_RECORD_BYTES
_LOCK_FILE: Final = "lock"
_ID_FILE: Final = "id"


class AppendLogError(ShortlistError):
    """Records could not be written and are not acknowledged."""


class AppendLog:
    """A stream that this process appends to. Use from any thread.

    Args:
        folder: Folder of the stream; made if it does not exist.
        rotate_bytes: Size at which a segment gets no further records.
        rotate_seconds: Age at which it gets no further ones.

    Raises:
        AppendLogError: Another process appends to the stream, or the folder cannot be written.
    """

    def __init__(self, folder: Path, rotate_bytes: int = ROTATE_BYTES, rotate_seconds: float = ROTATE_SECONDS) -> None:
        self.folder = folder
        self._rotate_bytes, self._rotate_seconds = rotate_bytes, rotate_seconds
        self.problem: str | None = None
        """Why records cannot be written; None when they can."""
        lock: int | None = None
        try:
            lock = _lock_stream(folder)
            self._end = _repair(folder)
            self.stream = stream_id(folder)
            """Id of the stream, unlike any other's."""
        except OSError as error:
            if lock is not None:
                os.close(lock)
            raise AppendLogError(f"{folder}: {error}; make the folder writable, or give the disk room") from None
        self._lock = lock
        self._file: int | None = None
        self._path = folder
        self._opened_at, self._size = 0.0, 0
        self._queue: queue.SimpleQueue[tuple[bytes, Future[None]] | None] = queue.SimpleQueue()
        self._close_lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"append-{folder.name}", daemon=True)
        self._thread.start()

    def append(self, records: Sequence[bytes]) -> Future[None]:
        """Append records, all or none; the future is done when they are on the disk.

        It holds an `AppendLogError` when they could not be written. Batches of several callers share one write.
        """
        durable: Future[None] = Future()
        # A client that disconnects must not cancel the write: its batch shares the write with others.
        durable.set_running_or_notify_cancel()
        longest = max(map(len, records), default=0)
        content = b"".join(map(frame, records))
        if longest > MAX_RECORD_BYTES or len(content) > _MAX_BATCH_BYTES:
            limits = f"{MAX_RECORD_BYTES} bytes a record and {_MAX_BATCH_BYTES} together"
            message = f"the longest record takes {longest} bytes, all take {len(content)}; wanted at most {limits}"
            durable.set_exception(AppendLogError(f"{message}; send them in smaller batches"))
            return durable
        with self._close_lock:
            if self._closed:
                durable.set_exception(AppendLogError(f"{self.folder}: the log is closed; ask another server"))
            else:
                self._queue.put((content, durable))
        return durable

    def close(self) -> None:
        """Write what was appended, and let another process append."""
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join()
        self._close_segment()
        os.close(self._lock)

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch: list[tuple[bytes, Future[None]]] = []
            size, append = 0, self._queue.get()
            while append is not None:
                batch.append(append)
                size += len(append[0])
                if size >= _MAX_BATCH_BYTES or self._queue.empty():  # no other thread takes from the queue
                    break
                append = self._queue.get()
            is_open = append is not None
            if batch:
                self._commit(batch)

    def _commit(self, batch: Sequence[tuple[bytes, Future[None]]]) -> None:
        try:
            self._write(b"".join(content for content, _ in batch))
        # Usually a full disk. If the thread ended, callers would wait for ever.
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            if self.problem != problem:
                _log.warning("%s: records cannot be written: %s", self.folder, problem)
            self.problem = problem
            for _, durable in batch:
                durable.set_exception(AppendLogError(f"{self.folder}: {error}; make room, or send it again later"))
            return
        self.problem = None
        for _, durable in batch:
            durable.set_result(None)

    def _write(self, content: bytes) -> None:
        if self._file is None or (
            self._size >= self._rotate_bytes or time.monotonic() - self._opened_at >= self._rotate_seconds
        ):
            self._open_segment()
        assert self._file is not None
        written = 0
        try:
            while written < len(content):
                written += os.write(self._file, content[written:])
            os.fdatasync(self._file)
        except Exception:
            # No record may follow a partly written one. A reader may have read what is cut off: its offsets are spent.
            self._close_segment()
            self._end += len(content)
            raise
        self._size += len(content)
        self._end += len(content)

    def _open_segment(self) -> None:
        self._close_segment()
        self._path = segment_path(self.folder, self._end)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        self._opened_at, self._size = time.monotonic(), 0
        sync_path(self.folder)  # without it, a power failure may lose the file itself

    def _close_segment(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
                if not self._size:
                    self._path.unlink()
            os.close(self._file)
            self._file = None


def open_free_stream(
    folder: Path, rotate_bytes: int = ROTATE_BYTES, rotate_seconds: float = ROTATE_SECONDS
) -> AppendLog:
    """Return the first stream of a folder that no process appends to; a new one when all are in use.

    Args:
        folder: Folder of the streams: one per process that appends at the same time.
        rotate_bytes: See `AppendLog`.
        rotate_seconds: See `AppendLog`.

    Raises:
        AppendLogError: The folder cannot be written.
    """
    number = 0
    while True:
        try:
            return AppendLog(folder / f"stream-{number:03d}", rotate_bytes, rotate_seconds)
        except StreamInUseError:
            number += 1


class FreeStream:
    """A stream of a folder that no other process appends to, opened with the first append. Use from any thread.

    A process that starts while the disk is full starts nevertheless; its appends fail until there is room.

    Args:
        folder: Folder of the streams; see `open_free_stream`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stream: AppendLog | None = None
        self._lock = threading.Lock()
        self._open_error: str | None = None
        self._closed = False

    @property
    def problem(self) -> str | None:
        """Why records cannot be written; None when they can."""
        return self._open_error if self._stream is None else self._stream.problem

    def append(self, records: Sequence[bytes]) -> Future[None]:
        """Append records, all or none; see `AppendLog.append`."""
        with self._lock:
            try:
                if self._closed:
                    raise AppendLogError(f"{self._folder}: the log is closed; ask another server")
                if self._stream is None:
                    self._stream = open_free_stream(self._folder)
                self._open_error = None
            except AppendLogError as error:
                self._open_error = str(error)
                failed: Future[None] = Future()
                failed.set_exception(error)
                return failed
            return self._stream.append(records)

    def close(self) -> None:
        """Write what was appended, and let another process append."""
        with self._lock:
            self._closed = True
            if self._stream is not None:
                self._stream.close()


class StreamInUseError(AppendLogError):
    """Another process appends to the stream."""


def streams(folder: Path) -> list[Path]:
    """Return the folders of the streams in a folder."""
    return sorted(folder.glob("stream-[0-9]*"))


def stream_id(folder: Path) -> str:
    """Return the id of a stream, which is made with it.

    A stream that is deleted and made again has another id: a committer begins with its first record.
    """
    path = folder / _ID_FILE
    with suppress(FileNotFoundError):
        if text := path.read_text(encoding="ascii").strip():
            return text
        path.unlink(missing_ok=True)  # a power failure left it empty
    new_id = uuid4().hex
    staging = path.with_name(f"{_ID_FILE}.{new_id}.partial")
    staging.write_text(new_id, encoding="ascii")
    # A writer and a reader, of one process or of several, may make the id at once: the first one's counts.
    with suppress(FileExistsError):
        path.hardlink_to(staging)
    staging.unlink()
    sync_path(folder)
    return path.read_text(encoding="ascii")


def _lock_stream(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            message = f"{folder}: another process appends to this stream; wanted one process; use open_free_stream"
            raise StreamInUseError(message) from None
        raise
    return lock


def _repair(folder: Path) -> int:
    """Cut off the record that was being written when the last process ended; return the offset of the next record."""
    stream_segments = segments(folder)
    if not stream_segments:
        return 0
    segment = stream_segments[-1]
    size, complete = segment.path.stat().st_size, complete_bytes(segment.path)
    if complete < size:
        _log.info("%s: %d bytes of a record that was being written are cut off", segment.path, size - complete)
        os.truncate(segment.path, complete)
    return segment.first + size + _OFFSETS_PER_START
