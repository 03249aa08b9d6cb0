"""What users were shown and took lately, by what the servers of this machine logged."""

from __future__ import annotations

import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from shortlist.filters.base import UserHistory, microseconds
from shortlist.serving.log.log_reader import parts, read_parts
from shortlist.serving.log.logs import item_type as logged_item_type
from shortlist.serving.log.logs import logged_name, outcome_schema, prediction_schema
from shortlist.serving.server.refresher import Refresher
from shortlist.spec.data import Data
from shortlist.spec.serving import Limits

_LOOK_SECONDS: Final = 1.0
_TIDY_SECONDS: Final = 60.0
MOST_ITEMS: Final = 1_000
"""Of a user; the oldest are forgotten."""
MOST_REQUESTS: Final = 200_000
"""Whose outcomes can still be told; the oldest are forgotten."""
_USERS_AT_ONCE: Final = 1_000
"""Users that are looked through while a request may wait for its user's items."""


class _Shown:
    """What a user was shown, column by column, in the order in which it was told: a request reads all of it."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.times = array("q")
        """Microseconds since 1970-01-01 UTC."""
        self.positive = bytearray()
        self.forgotten = 0
        """Items that were here before those that are."""

    def __len__(self) -> int:
        return len(self.items)

    def add(self, items: Sequence[Any], time: int, positive: Sequence[bool]) -> int:
        """Add items; return the number of the first one, which it keeps."""
        first = self.forgotten + len(self)
        self.items += items
        self.times.extend([time] * len(items))
        self.positive += bytes(positive)
        self.forget(len(self) - MOST_ITEMS)
        return first

    def forget(self, count: int) -> None:
        """Forget the first items."""
        if count > 0:
            del self.items[:count], self.times[:count], self.positive[:count]
            self.forgotten += count

    def tell(self, number: int, positive: bool) -> None:
        """Take an item's outcome."""
        if number >= self.forgotten:
            self.positive[number - self.forgotten] = positive

    def older_than(self, time: int) -> int:
        """Return how many of the first items are older than a moment."""
        return next((count for count, own in enumerate(self.times) if own >= time), len(self))


class _Answer(NamedTuple):
    """Items that a request was answered with."""

    shown: _Shown
    first: int
    """Number of the first one."""
    size: int


class UserItems(Refresher):
    """Follows the prediction log and the outcome log of all servers of this machine.

    An answer of this server is known at once, those of others when they are in the log's files. Where more items are
    known than may be, the users who were shown nothing for the longest time are forgotten.

    Args:
        data: The log's declaration.
        item_type: Of the ids of items, as the release has them.
        predictions: The prediction log, of all versions and replicas.
        outcomes: The outcome log.
        window: How long an item is remembered.
        most: Items of all users that are remembered.
    """

    def __init__(
        self, data: Data, item_type: pl.DataType, predictions: Path, outcomes: Path, window: timedelta,
        most: int = Limits().max_history_items,
    ) -> None:  # fmt: skip
        super().__init__("items that users were shown", _LOOK_SECONDS)
        assert data.user
        self._item_type, self._window = item_type, window
        self._predictions, self._outcomes = predictions, outcomes
        self._schemas = prediction_schema(data), outcome_schema(logged_item_type(data))
        self._user = logged_name(data.user)
        self._most = most
        self._users: OrderedDict[Any, _Shown] = OrderedDict()
        self._requests: OrderedDict[str, _Answer] = OrderedDict()
        """Answers whose outcomes may come."""
        self._answered = 0
        self._early: OrderedDict[str, dict[int, bool]] = OrderedDict()
        """Outcomes by row of requests that are not known yet: another server's log may be written later."""
        self._lock = threading.Lock()
        self._seen: set[Path] = set()
        self._tidied = -_TIDY_SECONDS
        self.has_looked = False
        """Whether what was in the logs before is known."""
        self.items = 0
        """Items of all users."""
        self.forgotten = 0
        """Users who were forgotten because there were too many items."""

    def history(self, user: int | str | None) -> UserHistory | None:
        """Return what a user was shown, oldest first; None for one who was shown nothing, or whom nobody names."""
        with self._lock:
            shown = self._users.get(user) if user is not None else None
            if not shown:
                return None
            items, times = shown.items.copy(), np.array(shown.times, np.int64)
            positive = np.array(shown.positive, np.bool_)
        known = UserHistory(
            pl.Series("item", items, self._item_type),
            pl.Series("time", times).cast(pl.Datetime("us", "UTC")),
            pl.Series("positive", positive),
        )
        if (times[1:] >= times[:-1]).all():
            return known
        order = np.argsort(times, kind="stable")
        return UserHistory(known.items[order], known.times[order], known.positive[order])

    def show(self, request_id: str, user: int | str | None, items: list[Any], moment: datetime) -> None:
        """Remember what a user is shown; an answer that is known already is not counted again."""
        if user is None:
            return
        with self._lock:
            if request_id in self._requests:
                return
            early = self._early.pop(request_id, {})
            at = microseconds(moment)
            shown = self._users.setdefault(user, _Shown())
            before = len(shown)
            first = shown.add(items, at, [early.get(row, False) for row in range(len(items))])
            self._requests[request_id] = _Answer(shown, first, len(items))
            self._users.move_to_end(user)
            self.items += len(shown) - before
            self._answered += len(items)
            while len(self._requests) > MOST_REQUESTS or self._answered > self._most:
                self._answered -= self._requests.popitem(last=False)[1].size
            while self.items > self._most:
                self.items -= len(self._users.popitem(last=False)[1])
                self.forgotten += 1

    def read_logs(self) -> None:
        """Read what is new in the logs; now and then, forget what is older than the window."""
        oldest = datetime.now(UTC) - self._window
        for path in self._new(self._predictions, oldest):
            rows = read_parts([path], self._schemas[0], ["time", "request_id", "status", "items", self._user])
            for moment, name, status, items, users in rows.iter_rows():
                if status == 200 and items and users and len(users) == 1 and moment >= oldest:
                    self.show(name, users[0], items, moment)
        for path in self._new(self._outcomes, oldest):
            self._tell(read_parts([path], self._schemas[1], ["request_id", "row", "label"]))
        if time.monotonic() - self._tidied >= _TIDY_SECONDS:
            self._tidied = time.monotonic()
            self._forget(oldest)

    def _forget(self, oldest: datetime) -> None:
        first_kept = microseconds(oldest)
        with self._lock:
            users = list(self._users)
        for first in range(0, len(users), _USERS_AT_ONCE):
            with self._lock:
                for user in users[first : first + _USERS_AT_ONCE]:
                    shown = self._users.get(user)
                    if shown is None:
                        continue
                    old = shown.older_than(first_kept)
                    shown.forget(old)
                    self.items -= old
                    if not shown:
                        del self._users[user]

    def _new(self, folder: Path, oldest: datetime) -> Iterator[Path]:
        """Give the files that were not read before, those left out that hold nothing of the window."""
        for path in parts(folder):
            if path not in self._seen:
                if path.stat().st_mtime >= oldest.timestamp():
                    yield path
                self._seen.add(path)

    def _tell(self, outcomes: pl.DataFrame) -> None:
        with self._lock:
            for name, row, label in outcomes.iter_rows():
                if row is None:
                    continue
                answer = self._requests.get(name)
                if answer is None:
                    self._early.setdefault(name, {})[row] = bool(label)
                elif 0 <= row < answer.size:
                    answer.shown.tell(answer.first + row, bool(label))
            while len(self._early) > MOST_REQUESTS:
                self._early.popitem(last=False)

    def _refresh(self) -> None:
        self.read_logs()
        self.problem, self.has_looked = None, True
