"""Appending answers to the prediction log without ever waiting for the disk."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from shortlist.serving.log.log_rows import encode_rows
from shortlist.spec.serving import PredictionLog
from shortlist.storage.append_log.segments import MAX_RECORD_BYTES
from shortlist.storage.append_log.writer import AppendLogError, FreeStream

_log = logging.getLogger(__name__)

_LONGEST_CLOSE_SECONDS: Final = 30.0
_SMALL_ROW: Final = 1_000
"""Bytes of a row without lists, about."""

Convert = Callable[[Sequence[Any], pa.Field], pa.Array | pa.ChunkedArray]


def plain(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Return a column of a log whose values are Python's."""
    return pa.array(values, field.type)


def is_sampled(request_id: str, share: float, key: str = "") -> bool:
    """Whether a request belongs to a share of all; the same for the same id, whoever asks.

    Args:
        request_id: Id of the request, which a client may choose.
        share: The share.
        key: Secret of the log (`sampling_key`), without which a client could choose ids that are sampled.

    >>> is_sampled("a", 1.0), 200 < sum(is_sampled(str(number), 0.25) for number in range(1000)) < 300
    (True, True)
    """
    if share >= 1.0:
        return True
    hashed = int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8, key=key.encode()[:64]).digest())
    return hashed < share * 2**64


class LogWriter:
    """Rows held in memory, at most so many, and appended to a stream by a thread, many in one record.

    What is written survives the process and a power failure. A row that finds the memory full is dropped and counted;
    when the disk is full, that is once the rows held are as many as may be. They are written when there is space again.

    Args:
        folder: Of the log's streams.
        schema: Of the rows.
        settings: How long, how many, and how large, rows are held.
        convert: Makes a column of the values of many rows; the thread calls it.
    """

    def __init__(self, folder: Path, schema: pa.Schema, settings: PredictionLog, convert: Convert = plain) -> None:
        self._folder = folder
        self._schema = schema
        self._convert = convert
        self._flush_seconds = settings.flush_seconds
        self._max_waiting, self._max_bytes = settings.max_waiting, settings.max_waiting_bytes
        self._waiting: deque[Sequence[Any]] = deque()
        self._taken = 0
        self._bytes = 0
        self._stream = FreeStream(folder)
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self.dropped = 0
        """Rows that found no room."""
        self.written = 0
        """Rows on the disk."""
        self.problem: str | None = None
        """Why nothing can be written; None when all is well."""
        self._thread = threading.Thread(target=self._run, name=f"log-{folder.name}", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Rows that are in memory only."""
        return len(self._waiting) + self._taken

    @property
    def waiting_bytes(self) -> int:
        """Memory of them, about."""
        return self._bytes

    def add(self, row: Sequence[Any], size: int = _SMALL_ROW) -> bool:
        """Take a row; return whether there was room. Never waits for a disk.

        Args:
            row: Its values in the order of the schema.
            size: Bytes of memory that it takes, about.
        """
        with self._lock:
            held = len(self._waiting) + self._taken
            if held >= self._max_waiting or self._bytes + size > self._max_bytes or self._closed:
                self.dropped += 1
                return False
            self._waiting.append(row)
            self._bytes += size
        if (2 * held >= self._max_waiting or 2 * self._bytes >= self._max_bytes) and self.problem is None:
            self._wake.set()
        return True

    def flush(self) -> None:
        """Write what is in memory, if the disk takes it."""
        with self._writing:
            with self._lock:
                rows, self._waiting = self._waiting, deque()
                self._taken, size = len(rows), self._bytes
            if not rows:
                return
            try:
                self._write(rows)
            except (AppendLogError, OSError) as error:  # a full disk, most often: the rows stay
                self._fail(error)
                with self._lock:
                    rows.extend(self._waiting)
                    self._waiting, self._taken = rows, 0
                return
            # A row of another shape, which is our mistake. A thread that ends would leave a log that nobody writes.
            except Exception as error:
                self._fail(error)
                with self._lock:
                    self.dropped += len(rows)
                    self._taken = 0
                    self._bytes -= size
                return
            with self._lock:
                self.written += len(rows)
                self._taken = 0
                self._bytes -= size
            self.problem = None

    def close(self) -> None:
        """Write what is left; what the disk does not take is counted as dropped."""
        self._closed = True
        self._wake.set()
        self._thread.join(_LONGEST_CLOSE_SECONDS)
        self.flush()
        with self._lock:
            self.dropped += len(self._waiting)
            self._waiting.clear()
            self._bytes = 0
        self._stream.close()

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(self._flush_seconds)
            self._wake.clear()
            self.flush()

    def _write(self, rows: Sequence[Sequence[Any]]) -> None:
        columns = [
            self._convert(values, field) for values, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        table = pa.Table.from_arrays(columns, schema=self._schema)
        self._stream.append([encode_rows(piece) for piece in _record_pieces(table)]).result()

    def _fail(self, error: Exception) -> None:
        problem = f"{type(error).__name__}: {error}"
        if self.problem != problem:
            _log.warning("%s: the log cannot be written: %s", self._folder, problem)
        self.problem = problem


def _record_pieces(rows: pa.Table) -> list[pa.Table]:
    """Return rows in pieces that each fit into a record."""
    count = min(rows.num_rows, 1 + 2 * rows.nbytes // MAX_RECORD_BYTES)
    length = -(-rows.num_rows // count)
    return [rows.slice(first, length) for first in range(0, rows.num_rows, length)]
