"""Live counts per key of the impressions that published statistics do not include yet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from heapq import heappop, heappush
from itertools import chain
from sys import getsizeof
from typing import Final

import numpy as np
import polars as pl

from shortlist.contracts import Columns
from shortlist.features.counts.tiles import TILE
from shortlist.features.live.open_events import (
    AnsweredRequest,
    CountedKey,
    Key,
    OpenRequest,
    RowOutcome,
    StreamingPlan,
    key_name,
)
from shortlist.features.live.open_sessions import OpenSessions, Sessions
from shortlist.features.live.open_shares import OpenShares, SharesState
from shortlist.features.values.ordered_events import Ints

Pending = list[tuple[int, int, OpenRequest]]
"""A heap: time, number, and a request with rows of that time."""

SUM_OF_LABELS: Final = f"sum_{Columns.LABEL}"
_OUTCOME_GRACE_US: Final = 60_000_000
"""Microseconds for which a request is remembered after its outcomes were due: they may be delivered late."""
_MIN_REMEMBERED_REQUESTS: Final = 20_000
"""Requests that are remembered however old they are: in a replay, minutes of the log take milliseconds."""
_MAX_UNMATCHED_OUTCOMES: Final = 100_000
"""Outcomes that came before their requests, and that wait for them."""
BEFORE_ALL_TIMES: Final = -(2**63) - 1
"""A time before all others."""
_COUNT_BYTES: Final = 200
"""Most memory of a counted value: its slots in two dictionaries, and two numbers; the size of a text is added."""
_REQUEST_BYTES: Final = 1_000
"""Memory of a request without its values: its objects, and its slots in the heaps."""
_ROW_BYTES: Final = 100
"""Memory of a row without its values: its time, and its label."""


@dataclass
class TileCounts:
    """Counts of one tile, by name and value of a key."""

    rows: dict[str, dict[Key, int]]
    positives: dict[str, dict[Key, int]]
    settled: dict[str, dict[Key, int]]
    """Rows whose outcomes are known."""

    @property
    def bytes(self) -> int:
        """Approximate memory of the counts."""
        values = chain.from_iterable((*self.rows.values(), *self.positives.values(), *self.settled.values()))
        return sum(_COUNT_BYTES + getsizeof(value) for value in values)

    def copy(self) -> TileCounts:
        """Return counts that do not change with these."""
        return TileCounts(
            *(
                {key: dict(counts) for key, counts in counts_by_key.items()}
                for counts_by_key in (self.rows, self.positives, self.settled)
            )
        )


@dataclass(frozen=True)
class ClosedTile:
    """A tile whose impressions are all counted, with their labels."""

    start: int
    end: int
    counts: TileCounts

    def statistics(self, key: str, dtype: pl.DataType) -> pl.DataFrame:
        """Return the statistics of a key column as batch counting gives them: key, `TILE`, rows, sum of labels.

        Args:
            key: A key column.
            dtype: Type of its values.
        """
        rows, positives = self.counts.rows[key], self.counts.positives[key]
        columns = {
            key: list(rows),
            TILE: [self.end] * len(rows),
            Columns.ROWS: list(rows.values()),
            SUM_OF_LABELS: [positives.get(value, 0) for value in rows],
        }
        schema = {key: dtype, TILE: pl.Int64(), Columns.ROWS: pl.Int64(), SUM_OF_LABELS: pl.Int64()}
        return pl.DataFrame(columns, schema=schema).sort(key)


@dataclass(frozen=True)
class OpenState:
    """A snapshot of `OpenTiles`."""

    now: int
    open_since: int
    too_late: int
    tiles: dict[int, TileCounts]
    requests: list[OpenRequest]
    """Requests in order of arrival; their settled times are those whose labels are counted."""
    to_show: Pending
    to_settle: Pending
    to_forget: Pending
    unmatched: list[Sequence[RowOutcome]]
    """Outcomes whose request has not been counted yet."""
    sessions: Sessions
    """Events of the lists."""
    uncounted: int = 0
    lacks_until: int = BEFORE_ALL_TIMES
    """Time of the newest row that was not counted."""
    shares: SharesState = field(default_factory=SharesState)
    """Who contributed the counted rows."""


class OpenTiles:
    """Counts impressions and their labels in the order in which they become visible.

    Rows beyond the share of who contributed them are not counted: the server that answers a request decides which, and
    the event says it.

    Where the declared memory is used up, fully counted requests are forgotten; if that is not enough, new rows are not
    counted, and the counts lack them until the tile is complete.

    Events may arrive in any order and more than once. Time moves by `advance` alone, and only forwards.
    """

    def __init__(self, streaming: StreamingPlan) -> None:
        self._streaming = streaming
        self._tiles: dict[int, TileCounts] = {}
        self._requests: dict[str, dict[str, OpenRequest]] = {}
        self._unmatched: OrderedDict[str, list[RowOutcome]] = OrderedDict()
        self._unmatched_count = 0
        self._to_show: Pending = []
        self._to_settle: Pending = []
        self._to_forget: Pending = []
        self._number = 0
        self._now = -(2**63)
        self._open_since = -(2**63)
        self._tile_bounds = (0, 0)
        self._lacks_until = BEFORE_ALL_TIMES
        self._count_bytes: dict[int, int] = {}
        self._shares = OpenShares(streaming)
        self._max_bytes = streaming.max_count_bytes - self._shares.max_bytes
        self._decided: dict[tuple[str, str], Sequence[int]] = {}
        self.bytes = 0
        """Approximate memory of the counts and the requests."""
        self.uncounted = 0
        """Rows of which something was not counted because the memory was used up."""
        self.sessions = OpenSessions(streaming.lists, streaming.max_bytes)
        """Events of the lists."""
        self.too_late = 0
        """Rows whose tile was closed when they came, and outcomes whose request was forgotten."""

    def state(self) -> OpenState:
        """Return a copy of the state, fast enough that requests can wait for it.

        Call it from the thread of `add_request` and `add_outcome`: requests and their labels are not copied.
        """
        tiles = {start: counts.copy() for start, counts in self._tiles.items()}
        return OpenState(
            self._now, self._open_since, self.too_late, tiles,
            [*chain.from_iterable(map(dict.values, self._requests.values()))],
            self._to_show.copy(), self._to_settle.copy(), self._to_forget.copy(),
            [list(outcomes) for outcomes in self._unmatched.values()],
            self.sessions.state(), self.uncounted, self._lacks_until, self._shares.state(),
        )  # fmt: skip

    def restore(self, state: OpenState) -> None:
        """Restore the state of another instance with the same plan; nothing may have been counted here yet."""
        assert not self._requests and not self._tiles
        self._now, self._open_since, self.too_late = state.now, state.open_since, state.too_late
        self.uncounted, self._lacks_until = state.uncounted, state.lacks_until
        self._tiles = state.tiles
        for request in state.requests:
            request.bytes = _request_bytes(request.impressions)
            self._requests.setdefault(request.impressions.request, {})[request.impressions.sender] = request
        self._to_show, self._to_settle, self._to_forget = state.to_show, state.to_settle, state.to_forget
        self._unmatched = OrderedDict((outcomes[0].request, [*outcomes]) for outcomes in state.unmatched)
        self.sessions.restore(state.sessions)
        self._shares.restore(state.shares)
        self._unmatched_count = sum(map(len, self._unmatched.values()))
        self._count_bytes = {start: counts.bytes for start, counts in self._tiles.items()}
        self.bytes = sum(request.bytes for request in state.requests) + sum(self._count_bytes.values())
        self._number = 1 + max(
            (number for heap in (self._to_show, self._to_settle, self._to_forget) for _, number, _ in heap), default=0
        )

    @property
    def open_since(self) -> int:
        """The moment from which impressions are counted; views can hold all earlier ones."""
        return self._open_since

    def decide(self, impressions: AnsweredRequest) -> AnsweredRequest:
        """Return a request with the rows that do not count, for `add_request`; of a repeated one, the same ones."""
        identity = impressions.request, impressions.sender
        counted_request = self._requests.get(impressions.request, {}).get(impressions.sender)
        uncounted = self._decided.get(identity) if counted_request is None else counted_request.impressions.uncounted
        if uncounted is None:
            uncounted = self._decided[identity] = self._shares.admit(impressions, self._open_since)
        if not uncounted:
            return impressions
        return replace(impressions, uncounted=[row for row in uncounted if row < impressions.rows])

    def forget_decision(self, impressions: AnsweredRequest) -> None:
        """Forget a request that is never added."""
        self._decided.pop((impressions.request, impressions.sender), None)

    def add_request(self, impressions: AnsweredRequest) -> None:
        """Add the rows of a request; a repeated request is ignored."""
        is_decided = self._decided.pop((impressions.request, impressions.sender), None) is not None
        if impressions.sender in self._requests.get(impressions.request, ()):
            return
        if not is_decided:
            self._shares.add(impressions, self._open_since)
        request, latest = OpenRequest(impressions), impressions.answered + self._streaming.clock_skew_us
        request.bytes = _request_bytes(impressions)
        if not self._has_room(request.bytes):
            self._note_uncounted(impressions.rows, min(max(impressions.times), latest))
            return
        self._requests.setdefault(impressions.request, {})[impressions.sender] = request
        self.bytes += request.bytes
        for time in sorted(set(impressions.times)):
            if time > latest:  # the log refuses such rows
                continue
            if time < self._open_since:
                self.too_late += len(request.rows_at(time))
                continue
            heappush(self._to_show, (time, self._next(), request))
            heappush(self._to_settle, (time, self._next(), request))
        heappush(self._to_forget, (min(max(impressions.times), latest), self._next(), request))
        early_outcomes = self._unmatched.pop(impressions.request, ())
        self._unmatched_count -= len(early_outcomes)
        for outcome in early_outcomes:
            self.add_outcome(outcome)

    def add_outcome(self, outcome: RowOutcome) -> None:
        """Add an outcome; it waits where no request of its id has been added."""
        requests = self._requests.get(outcome.request, {})
        for request in requests.values():
            self._add_outcome_of(request, outcome)
        if not requests:
            self._unmatched.setdefault(outcome.request, []).append(outcome)
            self._unmatched_count += 1
            while self._unmatched_count > _MAX_UNMATCHED_OUTCOMES:
                dropped = len(self._unmatched.popitem(last=False)[1])
                self._unmatched_count, self.too_late = self._unmatched_count - dropped, self.too_late + dropped

    def _add_outcome_of(self, request: OpenRequest, outcome: RowOutcome) -> None:
        moment = max(outcome.time, request.impressions.answered)  # clients say when it happened
        row = request.row_of(self._streaming.item, outcome.item) if outcome.row is None else outcome.row
        if row is None or not 0 <= row < request.impressions.rows or not request.counts(row):
            return
        if not self._is_in_time(request, moment):
            return
        previous_label = request.labels.get(row)
        if previous_label is not None and previous_label >= (moment, outcome.label):
            return
        was_positive = request.is_positive(row)
        request.labels[row] = (moment, outcome.label)
        time = request.time_of(row)
        change = request.is_positive(row) - was_positive
        if change and time in request.settled:
            if time < self._open_since:
                self.too_late += 1
                return
            self._add(time, self._tile(time).positives, request, [row], change)
            if change > 0:
                self.sessions.add(self._tile_bounds[0], request, [row], positives=True)
            else:
                self.sessions.withdraw(self._tile_bounds[0], request, row)

    def advance(self, now: int) -> list[ClosedTile]:
        """Count everything that an impression at a moment may see; an earlier moment than before changes nothing.

        Returns:
            The complete tiles, which views can hold now. They are no longer counted here.
        """
        if now <= self._now:
            return []
        self._now = now
        delay, outcome_delay = self._streaming.delay_us, self._streaming.outcome_delay_us
        # Negative times, of clocks that were never set, have no tile.
        open_since = self._streaming.tiles.tile_bounds(max(0, now - outcome_delay))[0]
        self._count_until(open_since, open_since)
        closed = [self._closed(start) for start in sorted(self._tiles) if start < open_since]
        self._shares.close_tiles(open_since)
        self._open_since = open_since
        self._count_until(now - delay, now - delay - outcome_delay)
        forget_before = now - delay - outcome_delay - _OUTCOME_GRACE_US
        while len(self._requests) > _MIN_REMEMBERED_REQUESTS and self._to_forget[0][0] < forget_before:
            self._forget_oldest()
        return closed

    def counts(self, key: CountedKey, values: Sequence[Key | None]) -> tuple[Ints, Ints, Ints]:
        """Return the impressions of each value of a key, the positive and the settled ones, as of the last `advance`.

        Returns:
            Three arrays of shape (values,); 0 for unknown values and for null.
        """
        rows, positives, settled = (np.zeros(len(values), np.int64) for _ in range(3))
        name = key_name(key)
        for tile in self._tiles.values():
            rows += _counts_of_values(tile.rows[name], values)
            positives += _counts_of_values(tile.positives[name], values)
            settled += _counts_of_values(tile.settled[name], values)
        return rows, positives, settled

    @property
    def problem(self) -> str | None:
        """A message about what the counts lack; None when they are complete."""
        if self._lacks_until < self._open_since:
            return None
        return (
            f"{self.uncounted} rows were not counted: the memory of the open tiles is used up"
            f" (features.streaming.max_count_bytes {self._streaming.max_count_bytes})"
        )

    def _has_room(self, size: int) -> bool:
        """Return whether so many bytes fit; forget fully counted requests where they do not."""
        max_bytes = self._max_bytes - size
        settled = self._now - self._streaming.delay_us - self._streaming.outcome_delay_us
        while self.bytes > max_bytes and self._to_forget and self._to_forget[0][0] < settled:
            self._forget_oldest()
        return self.bytes <= max_bytes

    def _forget_oldest(self) -> None:
        request = heappop(self._to_forget)[2]
        self.bytes -= request.bytes
        impressions = request.impressions
        del self._requests[impressions.request][impressions.sender]
        if not self._requests[impressions.request]:
            del self._requests[impressions.request]

    def _note_uncounted(self, rows: int, time: int) -> None:
        self.uncounted += rows
        self._lacks_until = max(self._lacks_until, time)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _is_in_time(self, request: OpenRequest, moment: int) -> bool:
        longest_outcome = self._streaming.longest_outcome
        return longest_outcome is None or (
            timedelta(microseconds=moment - request.impressions.answered) <= longest_outcome
        )

    def _tile(self, time: int) -> TileCounts:
        if not self._tile_bounds[0] <= time < self._tile_bounds[1]:
            self._tile_bounds = self._streaming.tiles.tile_bounds(time)
        start = self._tile_bounds[0]
        if start not in self._tiles:
            names = [key_name(key) for key in self._streaming.keys]
            empty: list[dict[str, dict[Key, int]]] = [{name: {} for name in names} for _ in range(3)]
            self._tiles[start] = TileCounts(*empty)
        return self._tiles[start]

    def _add(
        self, time: int, counted: Mapping[str, dict[Key, int]], request: OpenRequest, rows: Sequence[int], change: int
    ) -> None:
        """Change the counts of the values of some rows; new values are counted as long as there is room."""
        start, max_bytes = self._tile_bounds[0], self._max_bytes
        added, left_out = 0, 0
        for key in self._streaming.keys:
            counts = counted[key_name(key)]
            for value in request.key_values(key, rows):
                if value is None:
                    continue
                if value not in counts:
                    size = _COUNT_BYTES + getsizeof(value)
                    if self.bytes + added + size > max_bytes or change < 0:
                        left_out += 1
                        continue
                    added += size
                counts[value] = counts.get(value, 0) + change
        self.bytes += added
        self._count_bytes[start] = self._count_bytes.get(start, 0) + added
        if left_out:
            self._note_uncounted(min(left_out, len(rows)), time)

    def _closed(self, start: int) -> ClosedTile:
        self.sessions.close(start)
        self.bytes -= self._count_bytes.pop(start, 0)
        return ClosedTile(start, self._streaming.tiles.tile_bounds(start)[1], self._tiles.pop(start))

    def _count_until(self, count_rows_before: int, count_labels_before: int) -> None:
        """Count the rows before a moment, and the labels of those before another one."""
        for time, request in _pop_rows_until(self._to_show, count_rows_before):
            rows = request.rows_at(time)
            self._add(time, self._tile(time).rows, request, rows, 1)
            self.sessions.add(self._tile_bounds[0], request, rows, positives=False)
        for time, request in _pop_rows_until(self._to_settle, count_labels_before):
            request.settled.add(time)
            rows = request.rows_at(time)
            self._add(time, self._tile(time).settled, request, rows, 1)
            positive = [row for row in rows if request.is_positive(row)]
            if positive:
                self._add(time, self._tile(time).positives, request, positive, 1)
                self.sessions.add(self._tile_bounds[0], request, positive, positives=True)


def _request_bytes(impressions: AnsweredRequest) -> int:
    """Return the approximate memory of a request."""
    values = sum(map(_value_bytes, chain.from_iterable(impressions.keys.values())))
    return _REQUEST_BYTES + values + _ROW_BYTES * impressions.rows


def _value_bytes(value: Key | None) -> int:
    return 8 + getsizeof(value)


def _pop_rows_until(heap: Pending, limit: int) -> Iterator[tuple[int, OpenRequest]]:
    while heap and heap[0][0] < limit:
        time, _, request = heappop(heap)
        yield time, request


def _counts_of_values(counts: Mapping[Key, int], values: Sequence[Key | None]) -> Ints:
    get = counts.get
    return np.fromiter((0 if value is None else get(value, 0) for value in values), np.int64, len(values))
