"""Appending outcomes and events of users: they are on the disk before they are acknowledged."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from shortlist.contracts import ShortlistError
from shortlist.serving.log.log_rows import encode_rows, first_line
from shortlist.serving.log.logs import EVENT_ID, RECEIVED
from shortlist.storage.append_log.writer import FreeStream

MAX_EVENT_IDS: Final = 200_000
"""Most event ids that a writer remembers; readers of the log leave out what is repeated later."""


class OutcomeWriter:
    """Appends rows to the outcome log. Use from any thread.

    Every process has a stream of its own. Rows with an `event_id` that this process appended lately are not appended
    again; readers of the log count an event once however often it was appended.

    Args:
        folder: Folder of the log's streams, `stream_folder(paths.outcomes)`.
        schema: `outcome_schema` of the spec.
    """

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._stream = FreeStream(folder)
        self._events: OrderedDict[str, Future[None]] = OrderedDict()
        self._lock = threading.Lock()
        self.written = 0
        """Rows that are on the disk."""
        self.failed = 0
        """Rows that could not be written."""

    @property
    def problem(self) -> str | None:
        """Why rows cannot be written; None when they can."""
        return self._stream.problem

    def append(self, rows: Sequence[Mapping[str, Any]]) -> Future[None]:
        """Append outcomes, all or none; the future is done when they are on the disk.

        Awaited with `asyncio.wrap_future`; it holds an `AppendLogError` when they are not on the disk: then they are
        not acknowledged, and may be sent again.

        Args:
            rows: Values by column of the schema; a missing one is null, and `received` is set here. `label` may be null
                when only `seen` is reported. `time` is when it happened, by the clock of who reports it.

        Raises:
            ShortlistError: A value has another type than its column; nothing is appended.
        """
        now = datetime.now(UTC)
        with self._lock:
            new_rows = [row for row in rows if not self._is_on_disk(row.get(EVENT_ID))]
            if not new_rows:
                return _completed_future()
            try:
                table = pa.Table.from_pylist([{**row, RECEIVED: now} for row in new_rows], schema=self._schema)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise ShortlistError(
                    f"outcome log: {first_line(error)}; wanted values of the types {self._schema.names}"
                ) from None
            appended = self._stream.append([encode_rows(table)])
            appended.add_done_callback(lambda future: self._count(table.num_rows, future))
            for row in new_rows:
                if row.get(EVENT_ID) is not None:
                    self._events[row[EVENT_ID]] = appended
            while len(self._events) > MAX_EVENT_IDS:
                self._events.popitem(last=False)
            return appended

    def close(self) -> None:
        """Write what was appended."""
        self._stream.close()

    def _count(self, rows: int, appended: Future[None]) -> None:
        if appended.exception() is None:
            self.written += rows
        else:
            self.failed += rows

    def _is_on_disk(self, event_id: str | None) -> bool:
        """Whether an event is on the disk; one that is being written may fail, and is appended again."""
        appended = None if event_id is None else self._events.get(event_id)
        return appended is not None and appended.done() and appended.exception() is None


def _completed_future() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future
