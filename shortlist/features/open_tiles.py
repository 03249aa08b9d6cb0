"""The impressions that no published statistics hold yet, counted per key as they arrive."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from heapq import heappop, heappush
from itertools import chain
from sys import getsizeof
from typing import Final

import numpy as np
import polars as pl

from shortlist.contracts import Columns
from shortlist.features.open_events import Impressions, Key, OpenRequest, Outcome, StreamingPlan
from shortlist.features.open_sessions import OpenSessions, Sessions
from shortlist.features.ordered_events import Ints
from shortlist.features.tiles import TILE

Pending = list[tuple[int, int, OpenRequest]]
"""A heap: time, number, and a request with rows of that time."""

SUM_OF_LABELS: Final = f"sum_{Columns.LABEL}"
_LATEST_OUTCOME: Final = 60_000_000
"""Microseconds for which a request is remembered after its outcomes were due: they may be delivered late."""
_FEWEST_REMEMBERED: Final = 20_000
"""Requests that are remembered however old they are: in a replay, minutes of the log take milliseconds."""
_MOST_STRANGERS: Final = 100_000
"""Outcomes that came before their requests, and that wait for them."""
NEVER: Final = -(2**63) - 1
"""Before all times."""
_COUNT_BYTES: Final = 200
"""What a value takes in the counts, at most: its place in two dictionaries and two numbers; a text beside it."""
_REQUEST_BYTES: Final = 1_000
"""What a request takes beside its values: its objects, and its places in the heaps."""
_ROW_BYTES: Final = 100
"""What a row takes beside its values: its time, and its label."""


@dataclass
class TileCounts:
    """What was counted in one tile, by key column and value."""

    rows: dict[str, dict[Key, int]]
    positives: dict[str, dict[Key, int]]

    @property
    def bytes(self) -> int:
        """What they take, about."""
        every = chain.from_iterable((*self.rows.values(), *self.positives.values()))
        return sum(_COUNT_BYTES + getsizeof(value) for value in every)

    def copy(self) -> TileCounts:
        """Return counts that do not change with these."""
        rows, positives = ({key: dict(counts) for key, counts in kind.items()} for kind in (self.rows, self.positives))
        return TileCounts(rows, positives)


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
            dtype: Of its values.
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
    """What `OpenTiles` knows at one moment."""

    now: int
    open_since: int
    too_late: int
    tiles: dict[int, TileCounts]
    requests: list[OpenRequest]
    """In the order in which they came; the rows of theirs that are settled are those that nothing waits for."""
    to_show: Pending
    to_settle: Pending
    to_forget: list[tuple[int, int, str]]
    unmatched: list[Sequence[Outcome]]
    """Outcomes whose request has not been counted yet."""
    sessions: Sessions
    """The events that are listed."""
    uncounted: int = 0
    lacks_until: int = NEVER
    """Time of the newest row that was not counted."""


class OpenTiles:
    """Counts impressions and their labels in the order in which they become visible.

    Where the declared memory is used up, requests of which everything is counted are forgotten, and beyond that what is
    new is not counted; the counts lack it until the tile is complete.

    Events may arrive in any order and more than once. Time moves by `advance` alone, and only forwards.
    """

    def __init__(self, streaming: StreamingPlan) -> None:
        self._streaming = streaming
        self._tiles: dict[int, TileCounts] = {}
        self._requests: OrderedDict[str, OpenRequest] = OrderedDict()
        self._unmatched: OrderedDict[str, list[Outcome]] = OrderedDict()
        self._waiting = 0
        self._to_show: Pending = []
        self._to_settle: Pending = []
        self._to_forget: list[tuple[int, int, str]] = []
        self._number = 0
        self._now = -(2**63)
        self._open_since = -(2**63)
        self._around = (0, 0)
        self._lacks_until = NEVER
        self._bytes_of: dict[str, int] = {}
        self._count_bytes: dict[int, int] = {}
        self.bytes = 0
        """Of the counts and the requests, about."""
        self.uncounted = 0
        """Rows of which something was not counted because the memory was used up."""
        self.sessions = OpenSessions(streaming.lists, streaming.max_bytes)
        """The events that are listed."""
        self.too_late = 0
        """Rows whose tile was closed when they came, and outcomes whose request was forgotten."""

    def state(self) -> OpenState:
        """Return a copy of all that is known, in so little time that scores can wait for it.

        Whoever calls it also calls `show` and `tell`: requests and their labels are not copied.
        """
        tiles = {start: one.copy() for start, one in self._tiles.items()}
        return OpenState(
            self._now, self._open_since, self.too_late, tiles, list(self._requests.values()), self._to_show.copy(),
            self._to_settle.copy(), self._to_forget.copy(), [list(one) for one in self._unmatched.values()],
            self.sessions.state(), self.uncounted, self._lacks_until,
        )  # fmt: skip

    def restore(self, state: OpenState) -> None:
        """Know what `state` of another one with the same plan gave; nothing was counted here yet."""
        assert not self._requests and not self._tiles
        self._now, self._open_since, self.too_late = state.now, state.open_since, state.too_late
        self.uncounted, self._lacks_until = state.uncounted, state.lacks_until
        self._tiles = state.tiles
        self._requests = OrderedDict((one.impressions.request, one) for one in state.requests)
        self._to_show, self._to_settle, self._to_forget = state.to_show, state.to_settle, state.to_forget
        self._unmatched = OrderedDict((outcomes[0].request, [*outcomes]) for outcomes in state.unmatched)
        self.sessions.restore(state.sessions)
        self._waiting = sum(map(len, self._unmatched.values()))
        self._bytes_of = {name: _bytes_of(one.impressions) for name, one in self._requests.items()}
        self._count_bytes = {start: one.bytes for start, one in self._tiles.items()}
        self.bytes = sum(self._bytes_of.values()) + sum(self._count_bytes.values())
        self._number = 1 + max(
            (number for heap in (self._to_show, self._to_settle, self._to_forget) for _, number, _ in heap), default=0
        )

    @property
    def open_since(self) -> int:
        """From when on impressions are counted; views can hold all earlier ones."""
        return self._open_since

    def show(self, shown: Impressions) -> None:
        """Take the rows of a request; a request that is known is taken once."""
        if shown.request in self._requests:
            return
        request, latest = OpenRequest(shown), shown.answered + self._streaming.clock_skew_us
        if not self._has_room(size := _bytes_of(shown)):
            self._leave_out(shown.rows, min(max(shown.times), latest))
            return
        self._requests[shown.request], self._bytes_of[shown.request] = request, size
        self.bytes += size
        for time in sorted(set(shown.times)):
            if time > latest:  # the log refuses such rows
                continue
            if time < self._open_since:
                self.too_late += len(request.rows_at(time))
                continue
            heappush(self._to_show, (time, self._next(), request))
            heappush(self._to_settle, (time, self._next(), request))
        heappush(self._to_forget, (min(max(shown.times), latest), self._next(), shown.request))
        early_outcomes = self._unmatched.pop(shown.request, ())
        self._waiting -= len(early_outcomes)
        for outcome in early_outcomes:
            self.tell(outcome)

    def tell(self, outcome: Outcome) -> None:
        """Take an outcome; one of a request that is not known waits for it."""
        request = self._requests.get(outcome.request)
        if request is None:
            self._unmatched.setdefault(outcome.request, []).append(outcome)
            self._waiting += 1
            while self._waiting > _MOST_STRANGERS:
                gone = len(self._unmatched.popitem(last=False)[1])
                self._waiting, self.too_late = self._waiting - gone, self.too_late + gone
            return
        if not 0 <= outcome.row < request.impressions.rows or not self._is_in_time(request, outcome):
            return
        known = request.labels.get(outcome.row)
        if known is not None and known >= (outcome.time, outcome.label):
            return
        before = request.is_positive(outcome.row)
        request.labels[outcome.row] = (outcome.time, outcome.label)
        time = request.time_of(outcome.row)
        change = request.is_positive(outcome.row) - before
        if change and time in request.settled:
            if time < self._open_since:
                self.too_late += 1
                return
            self._add(time, self._tile(time).positives, request, [outcome.row], change)
            if change > 0:
                self.sessions.add(self._around[0], request, [outcome.row], positives=True)
            else:
                self.sessions.withdraw(self._around[0], request, outcome.row)

    def advance(self, now: int) -> list[ClosedTile]:
        """Count what an impression of a moment may see; a moment before an earlier one changes nothing.

        Returns:
            The tiles that views can hold now, whole. They are counted here no longer.
        """
        if now <= self._now:
            return []
        self._now = now
        delay, outcome_delay = self._streaming.delay_us, self._streaming.outcome_delay_us
        # Negative times, of clocks that were never set, have no tile.
        open_since = self._streaming.tiles.around(max(0, now - outcome_delay))[0]
        self._count_until(open_since, open_since)
        closed = [self._closed(start) for start in sorted(self._tiles) if start < open_since]
        self._open_since = open_since
        self._count_until(now - delay, now - delay - outcome_delay)
        forgotten = now - delay - outcome_delay - _LATEST_OUTCOME
        while len(self._requests) > _FEWEST_REMEMBERED and self._to_forget[0][0] < forgotten:
            self._forget_oldest()
        return closed

    def counts(self, key: str, values: Sequence[Key | None]) -> tuple[Ints, Ints]:
        """Return the impressions and the positive ones of each value of a key column, as of the last `advance`.

        Returns:
            Two arrays of shape (values,); 0 for values that are not known, and for null.
        """
        rows, positives = np.zeros(len(values), np.int64), np.zeros(len(values), np.int64)
        for tile in self._tiles.values():
            rows += _gathered(tile.rows[key], values)
            positives += _gathered(tile.positives[key], values)
        return rows, positives

    @property
    def problem(self) -> str | None:
        """What the counts lack; None when they lack nothing."""
        if self._lacks_until < self._open_since:
            return None
        return (
            f"{self.uncounted} rows were not counted: the memory of the open tiles is used up"
            f" (features.streaming.max_count_bytes {self._streaming.max_count_bytes})"
        )

    def _has_room(self, size: int) -> bool:
        """Return whether so many bytes fit; where they do not, forget requests of which everything is counted."""
        most = self._streaming.max_count_bytes - size
        settled = self._now - self._streaming.delay_us - self._streaming.outcome_delay_us
        while self.bytes > most and self._to_forget and self._to_forget[0][0] < settled:
            self._forget_oldest()
        return self.bytes <= most

    def _forget_oldest(self) -> None:
        request = heappop(self._to_forget)[2]
        del self._requests[request]
        self.bytes -= self._bytes_of.pop(request)

    def _leave_out(self, rows: int, time: int) -> None:
        self.uncounted += rows
        self._lacks_until = max(self._lacks_until, time)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _is_in_time(self, request: OpenRequest, outcome: Outcome) -> bool:
        after = timedelta(microseconds=outcome.time - request.impressions.answered)
        longest = self._streaming.longest_outcome
        return after >= -self._streaming.clock_skew and (longest is None or after <= longest)

    def _tile(self, time: int) -> TileCounts:
        if not self._around[0] <= time < self._around[1]:
            self._around = self._streaming.tiles.around(time)
        start = self._around[0]
        if start not in self._tiles:
            keys = self._streaming.keys
            self._tiles[start] = TileCounts({key: {} for key in keys}, {key: {} for key in keys})
        return self._tiles[start]

    def _add(
        self, time: int, counted: Mapping[str, dict[Key, int]], request: OpenRequest, rows: Sequence[int], change: int
    ) -> None:
        """Change the counts of the values of some rows, those of new ones as long as there is room."""
        start, most = self._around[0], self._streaming.max_count_bytes
        added, left_out = 0, 0
        for key, counts in counted.items():
            for value in request.values_of(key, rows):
                if value is None:
                    continue
                if value not in counts:
                    size = _COUNT_BYTES + getsizeof(value)
                    if self.bytes + added + size > most or change < 0:
                        left_out += 1
                        continue
                    added += size
                counts[value] = counts.get(value, 0) + change
        self.bytes += added
        self._count_bytes[start] = self._count_bytes.get(start, 0) + added
        if left_out:
            self._leave_out(min(left_out, len(rows)), time)

    def _closed(self, start: int) -> ClosedTile:
        self.sessions.close(start)
        self.bytes -= self._count_bytes.pop(start, 0)
        return ClosedTile(start, self._streaming.tiles.around(start)[1], self._tiles.pop(start))

    def _count_until(self, shown: int, settled: int) -> None:
        """Count the rows before a moment, and the labels of those before another one."""
        for time, request in _before(self._to_show, shown):
            rows = request.rows_at(time)
            self._add(time, self._tile(time).rows, request, rows, 1)
            self.sessions.add(self._around[0], request, rows, positives=False)
        for time, request in _before(self._to_settle, settled):
            request.settled.add(time)
            positive = [row for row in request.rows_at(time) if request.is_positive(row)]
            if positive:
                self._add(time, self._tile(time).positives, request, positive, 1)
                self.sessions.add(self._around[0], request, positive, positives=True)


def _bytes_of(shown: Impressions) -> int:
    """Return what a request takes, about."""
    values = sum(map(_value_bytes, chain.from_iterable(shown.keys.values())))
    return _REQUEST_BYTES + values + _ROW_BYTES * shown.rows


def _value_bytes(value: Key | None) -> int:
    return 8 + getsizeof(value)


def _before(heap: Pending, limit: int) -> Iterator[tuple[int, OpenRequest]]:
    while heap and heap[0][0] < limit:
        time, _, request = heappop(heap)
        yield time, request


def _gathered(counts: Mapping[Key, int], values: Sequence[Key | None]) -> Ints:
    get = counts.get
    return np.fromiter((0 if value is None else get(value, 0) for value in values), np.int64, len(values))
