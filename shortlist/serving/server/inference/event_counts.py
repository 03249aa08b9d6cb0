"""Live counts of open tiles: rows are written to the event log before the response, and counted by all servers."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from polars.exceptions import PanicException

from shortlist.contracts import Columns
from shortlist.features.counts.tiles import moment_of
from shortlist.features.live.open_counts import open_positives_column, open_rows_column, open_settled_column
from shortlist.features.live.open_events import (
    AnsweredRequest,
    Key,
    OpenList,
    RowOutcome,
    StreamingPlan,
    join_key_values,
    key_name,
)
from shortlist.features.live.open_lists import open_list_column
from shortlist.features.live.open_sessions import EventLists
from shortlist.features.live.open_shares import describe_contributor, name_sender, name_user
from shortlist.features.live.open_tiles import ClosedTile, OpenTiles
from shortlist.serving.export.signature import NO_CODE
from shortlist.serving.log.event_checkpoint import (
    EventCheckpoint,
    checkpoint_path,
    read_checkpoint,
    remove_old_checkpoints,
    write_checkpoint,
)
from shortlist.serving.log.event_log import EventReader, encode_event, remove_old_events
from shortlist.serving.log.log_follower import LogFollower
from shortlist.serving.log.logs import RECEIVED, item_type, outcome_schema
from shortlist.serving.log.serving_log import ServingLog
from shortlist.serving.server.features.columns import Column, Ragged
from shortlist.serving.server.request_inputs.input_reader import Inputs
from shortlist.serving.server.request_inputs.input_types import request_times
from shortlist.serving.server.requests.headers import RequestContext
from shortlist.serving.server.requests.request_errors import BadRequestError
from shortlist.spec.data import Data
from shortlist.spec.serving import Serving
from shortlist.storage.append_log.segments import MAX_RECORD_BYTES
from shortlist.storage.append_log.writer import AppendLogError, FreeStream

_log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.02
_OUTCOME_POLL_SECONDS: Final = 0.2
_CHECKPOINT_SECONDS: Final = 60.0
"""Time between two checkpoints: a start reads the last checkpoint and the events since."""
_OUTCOME_COLUMNS: Final = ("request_id", "row", "label", "time", "item", RECEIVED)
_RETENTION_MARGIN: Final = timedelta(hours=1)
"""Added to the retention of events: clocks differ, and files are removed as a whole."""
_MAX_BYTES_PER_CHARACTER: Final = 6
"""Most bytes of a character in JSON."""
_MAX_BYTES_PER_NUMBER: Final = 24
_REQUESTS_PER_LOCK: Final = 64
"""Requests that are counted while the lock is held."""
_ROWS_PER_LOCK: Final = 10_000
"""Approximate rows that are counted while the lock is held."""
_MAX_NAMES_BEYOND_SHARE: Final = 1_000
"""Most contributors whose uncounted rows are kept for the next message."""
_MAX_SENDERS: Final = 1_000
"""Most senders of which it is kept whether they vouch for their users: clients have any number of addresses."""
NO_BACKENDS: Final = Serving()


class EventCounts:
    """Writes rows to the event log, and counts the rows and outcomes of all servers' logs.

    Args:
        streaming: Keys and lists that are counted.
        data: Declared columns of the log.
        events: Folder of the event log.
        outcomes: Folder of the outcome log.
        serving: Says who vouches for users.
    """

    def __init__(
        self, streaming: StreamingPlan, data: Data, events: Path, outcomes: Path, serving: Serving = NO_BACKENDS
    ) -> None:
        self._streaming = streaming
        items = () if streaming.item is None else (streaming.item,)  # outcomes may name an item and no row
        self._logged_columns = tuple(dict.fromkeys((*streaming.columns, *items)))
        self._vouches_for_users = lru_cache(_MAX_SENDERS)(serving.vouches_for_users)
        self._events = events
        self._outcome_log = ServingLog.on_disk(outcomes, outcome_schema(item_type(data)))
        retention = streaming.tiles.length + 2 * streaming.tiles.delay + streaming.delay + _RETENTION_MARGIN
        self._retention_seconds = retention.total_seconds()
        self._writer = FreeStream(events)
        self._reader = EventReader(events)
        self._tiles = OpenTiles(streaming)
        self._count_lock = threading.Lock()
        self._outcomes = self._follow_outcomes()
        self._outcomes_polled_at = self._checkpointed_at = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event-counts", daemon=True)
        self._count_error: str | None = None
        self.counted_at: float | None = None
        """All rows acknowledged before this time are counted, in seconds since 1970; None before the first poll."""
        self.counted = 0
        """Number of rows and outcomes that were counted."""
        self.beyond_share = 0
        """Number of answered rows that are not counted, being beyond the share of who contributed them."""
        self._beyond_by_name: Counter[str] = Counter()

    @property
    def problem(self) -> str | None:
        """Why events cannot be written or counted; None when they can."""
        problems = (
            self._writer.problem,
            self._count_error,
            self._reader.problem,
            self._outcomes.problem,
            self._tiles.problem,
        )
        return next(filter(None, problems), None)

    @property
    def delay_seconds(self) -> float:
        """Delay of the counts; infinite before the first poll."""
        return float("inf") if self.counted_at is None else max(0.0, time.time() - self.counted_at)

    @property
    def max_delay_seconds(self) -> float:
        """Allowed delay of the counts: the delay after which training counts an impression."""
        return self._streaming.delay.total_seconds()

    @property
    def too_late(self) -> int:
        """Number of rows and outcomes that arrived after their tile was closed."""
        return self._tiles.too_late

    @property
    def dropped(self) -> int:
        """Number of keys whose events were dropped because the declared memory was used up."""
        return self._tiles.sessions.dropped

    @property
    def uncounted(self) -> int:
        """Number of rows that were not counted because the declared memory was used up."""
        return self._tiles.uncounted

    @property
    def bytes(self) -> int:
        """Memory of the counts, and of requests that wait for outcomes."""
        return self._tiles.bytes

    @property
    def sessions_bytes(self) -> int:
        """Memory of the listed events."""
        return self._tiles.sessions.bytes

    def start(self) -> None:
        """Start counting, beginning with the existing log."""
        self._thread.start()

    def stop(self) -> None:
        """Stop counting; accepted events are written."""
        self._stop.set()
        self._writer.close()

    def check_record_length(self, inputs: Inputs) -> None:
        """Check that the rows fit into a record of the event log.

        Raises:
            BadRequestError: They may take more bytes.
        """
        texts = (inputs.sent.get(key) for key in self._logged_columns)
        characters = sum(
            len(text) for column in texts if isinstance(column, list) for text in column if text is not None
        )
        numbers = inputs.rows * (len(self._logged_columns) + 1)
        if self._streaming.max_share < 1:  # each row's contributor, and which rows do not count
            numbers += 3 * inputs.rows
        if (max_bytes := _MAX_BYTES_PER_CHARACTER * characters + _MAX_BYTES_PER_NUMBER * numbers) > MAX_RECORD_BYTES:
            raise BadRequestError(
                f"inputs {', '.join(self._logged_columns)}: their {inputs.rows} rows may take {max_bytes} bytes of"
                f" the event log; wanted at most {MAX_RECORD_BYTES}"
            )

    def decide(self, request_id: str, answered_at: int, inputs: Inputs, context: RequestContext) -> AnsweredRequest:
        """Return the event of a response, which says which of its rows count.

        Args:
            request_id: Its id.
            answered_at: Microseconds since 1970-01-01 UTC.
            inputs: Of the request.
            context: Headers of the request.
        """
        keys = {key: self._values(inputs, key) for key in self._logged_columns if key in inputs.sent}
        times = self._counted_times(inputs, answered_at)
        contributors = self._contributors(inputs, context)
        event = AnsweredRequest(request_id, answered_at, times, keys, inputs.rows, context.sender or "", contributors)
        with self._count_lock:
            event = self._tiles.decide(event)
        if event.uncounted:
            self._note_beyond_share(event)
        return event

    async def log_rows(self, event: AnsweredRequest) -> None:
        """Write the rows of a response to the event log; they are on disk when this returns."""
        try:
            await asyncio.wrap_future(self.append(event))
        except AppendLogError:  # reported by `problem`; the client still gets its scores
            with self._count_lock:
                self._tiles.forget_decision(event)

    def append(self, event: AnsweredRequest) -> Future[None]:
        """Append an event; the future is done when it is on disk, or holds an `AppendLogError`."""
        return self._writer.append([encode_event(event)])

    def columns(self, inputs: Inputs) -> Mapping[str, Column]:
        """Return the features from open tiles for the rows of a request, by column: counts, and lists of events."""
        # The counts of all clients move with this time: no client may set it later than the server's clock.
        now = min(max(_times(inputs.columns[Columns.TIME])), time.time_ns() // 1000)
        columns: dict[str, Column] = {}
        with self._count_lock:
            closed = self._tiles.advance(now)
            for key in self._streaming.keys:
                values = join_key_values([self._values(inputs, column) for column in key])
                names = (open_rows_column(key), open_positives_column(key), open_settled_column(key))
                counts = self._tiles.counts(key, values)
                columns |= {name: count.astype(np.float64) for name, count in zip(names, counts, strict=True)}
            for live_list in self._streaming.lists:
                columns |= _lists(
                    live_list, self._tiles.sessions.event_lists(live_list, self._values(inputs, live_list.key))
                )
        for tile in closed:
            self._log_closed_tile(tile)
        return columns

    def poll(self) -> None:
        """Count new events and outcomes; at first, those that are not in the checkpoint."""
        began = time.time()
        if self.counted_at is None:
            self._restore()
        impressions: list[AnsweredRequest] = []
        for event in self._reader.read_new():
            impressions.append(event)
            if len(impressions) == _REQUESTS_PER_LOCK or sum(event.rows for event in impressions) >= _ROWS_PER_LOCK:
                self._count_impressions(impressions)
                impressions = []
        self._count_impressions(impressions)
        if began - self._outcomes_polled_at >= _OUTCOME_POLL_SECONDS:
            self._count_new_outcomes()
            self._outcomes_polled_at = began
        # While a stream cannot be read, the counts fall behind.
        if not self._reader.is_stuck or self.counted_at is None:
            self.counted_at = began
        if began - self._checkpointed_at >= _CHECKPOINT_SECONDS:
            self._log_beyond_share()
            remove_old_events(self._events, self._retention_seconds)
            remove_old_checkpoints(self._events, self._retention_seconds)
            self._write_checkpoint()
            self._checkpointed_at = began

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.poll()
                self._count_error = None
            # If the thread ended, the server would keep old counts without reporting it.
            except (Exception, PanicException) as error:
                problem = f"{type(error).__name__}: {error}"
                if self._count_error != problem:
                    _log.warning("events are not counted: %s", problem)
                self._count_error = problem
            self._stop.wait(_POLL_SECONDS)

    def _restore(self) -> None:
        checkpoint = read_checkpoint(checkpoint_path(self._events, self._streaming), self._streaming)
        if checkpoint is None:
            return
        with self._count_lock:
            self._tiles = OpenTiles(self._streaming)
            self._tiles.restore(checkpoint.state)
        self._reader = EventReader(self._events, checkpoint.events)
        self._outcomes = self._follow_outcomes(checkpoint.outcomes)

    def _follow_outcomes(self, positions: Mapping[str, int] | None = None) -> LogFollower:
        since = datetime.now(UTC) - timedelta(seconds=self._retention_seconds)
        return LogFollower(self._outcome_log, _OUTCOME_COLUMNS, since, positions)

    def _write_checkpoint(self) -> None:
        with self._count_lock:
            state = self._tiles.state()
        checkpoint = EventCheckpoint(state, self._reader.positions, self._outcomes.positions)
        try:
            write_checkpoint(checkpoint_path(self._events, self._streaming), checkpoint)
        except OSError as error:  # a full disk: a start takes longer then
            _log.warning("%s: no checkpoint of the counts was kept: %s", self._events, error)

    def _count_impressions(self, events: Sequence[AnsweredRequest]) -> None:
        with self._count_lock:
            for event in events:
                self._tiles.add_request(event)
                self.counted += event.rows

    def _count_new_outcomes(self) -> None:
        for rows in self._outcomes.read_new():
            self._count_outcomes(_row_outcomes(rows))

    def _count_outcomes(self, outcomes: Sequence[RowOutcome]) -> None:
        for first in range(0, len(outcomes), _REQUESTS_PER_LOCK):
            with self._count_lock:
                for outcome in outcomes[first : first + _REQUESTS_PER_LOCK]:
                    self._tiles.add_outcome(outcome)
        self.counted += len(outcomes)

    def _counted_times(self, inputs: Inputs, answered_at: int) -> list[int]:
        """Return the times at which rows count: those after the answer count at it.

        Times beyond the clock skew stay as they were sent: `OpenTiles` leaves such rows out, and so does the log.
        """
        times = request_times(inputs.typed.get(Columns.TIME), answered_at)
        is_refused = times > answered_at + self._streaming.clock_skew_us
        return _times(np.where(is_refused, times, np.minimum(times, answered_at)))

    def _values(self, inputs: Inputs, key: str) -> list[Key | None]:
        sent: Any = inputs.sent.get(key, (None,))
        if isinstance(sent, np.ndarray):
            return [None if value == NO_CODE or value != value else value for value in sent.tolist()]  # noqa: PLR0124
        return list(sent)

    def _contributors(self, inputs: Inputs, context: RequestContext) -> list[str | None]:
        if not self._vouches_for_users(context.sender):
            return [name_sender(context.sender)]
        user = self._streaming.user
        users = [None] if user is None or user not in inputs.sent else self._values(inputs, user)
        return [name_user(context.user if user is None else user) for user in users]

    def _note_beyond_share(self, event: AnsweredRequest) -> None:
        self.beyond_share += len(event.uncounted)
        name = event.contributors[event.uncounted[0] if len(event.contributors) > 1 else 0]
        if name is not None and (name in self._beyond_by_name or len(self._beyond_by_name) < _MAX_NAMES_BEYOND_SHARE):
            self._beyond_by_name[name] += len(event.uncounted)

    def _log_beyond_share(self) -> None:
        names, self._beyond_by_name = self._beyond_by_name, Counter()
        for name, rows in names.most_common(1):
            _log.warning(
                "live counts lack %d rows of the last minute, %d of them of %s %r, beyond their share of a tile or of"
                " one of its values (data.live.max_share %s); a sender that is a server of the application belongs"
                " into serving.backends", names.total(), rows, *describe_contributor(name), self._streaming.max_share,
            )  # fmt: skip

    def _log_closed_tile(self, tile: ClosedTile) -> None:
        for name in map(key_name, self._streaming.keys[:1]):
            rows, positives = (sum(counts[name].values()) for counts in (tile.counts.rows, tile.counts.positives))
            end = moment_of(tile.end).isoformat()
            _log.info("the tile until %s is closed: %d impressions, %d positive, by %s", end, rows, positives, name)


def _lists(live_list: OpenList, events: EventLists) -> dict[str, Column]:
    starts, lengths = np.cumsum(events.lengths) - events.lengths, events.lengths
    values: tuple[Any, ...] = (events.codes, events.times, *events.numbers)
    values_by_feature = zip(live_list.features, values, strict=True)
    return {
        open_list_column(live_list, feature): Ragged(feature_values, starts, lengths)
        for feature, feature_values in values_by_feature
    }


def _times(column: Column) -> list[int]:
    assert isinstance(column, np.ndarray)
    return [int(time) for time in column]


def _row_outcomes(outcomes: pl.DataFrame) -> list[RowOutcome]:
    # Clients say when it happened: not after its receipt.
    outcomes = outcomes.with_columns(time=pl.min_horizontal("time", RECEIVED).dt.epoch("us"))
    rows = outcomes.drop_nulls(["request_id", "label", "time"])
    values = rows.select("request_id", "row", "label", "time", "item").iter_rows()
    return [RowOutcome(*outcome_values) for outcome_values in values]
