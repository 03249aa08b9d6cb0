"""Items that users were shown and took lately, read from the logs of this machine's servers."""

from __future__ import annotations

import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from shortlist.serving.log.log_follower import LogFollower
from shortlist.serving.log.logs import item_type as logged_item_type
from shortlist.serving.log.logs import logged_name, outcome_schema, prediction_schema
from shortlist.serving.log.serving_log import ServingLog
from shortlist.serving.server.features.refresher import Refresher
from shortlist.slates.filters.base import UserHistory, microseconds
from shortlist.spec.data import Data
from shortlist.spec.serving import Limits

_POLL_SECONDS: Final = 1.0
_FORGET_SECONDS: Final = 60.0
MAX_ITEMS_PER_USER: Final = 1_000
"""Most items remembered per user; the oldest are dropped."""
MAX_REQUESTS: Final = 200_000
"""Most requests whose outcomes can still be matched; the oldest are dropped."""
_USERS_PER_LOCK: Final = 1_000
"""Users that are processed while the lock is held."""


class _ShownItems:
    """Items shown to one user, column by column, in the order in which they were added."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.times = array("q")
        """Microseconds since 1970-01-01 UTC."""
        self.positive = bytearray()
        self.forgotten = 0
        """Number of dropped items, all older than the ones kept."""

    def __len__(self) -> int:
        return len(self.items)

    def add(self, items: Sequence[Any], time: int, positive: Sequence[bool]) -> int:
        """Add items; return the number of the first one, which never changes."""
        first = self.forgotten + len(self)
        self.items += items
        self.times.extend([time] * len(items))
        self.positive += bytes(positive)
        self.forget(len(self) - MAX_ITEMS_PER_USER)
        return first

    def forget(self, count: int) -> None:
        """Drop the first items."""
        if count > 0:
            del self.items[:count], self.times[:count], self.positive[:count]
            self.forgotten += count

    def set_outcome(self, number: int, positive: bool) -> None:
        """Set the outcome of an item, if it is still kept."""
        if number >= self.forgotten:
            self.positive[number - self.forgotten] = positive

    def count_expired(self, time: int) -> int:
        """Return how many items at the beginning are older than a time."""
        return next((count for count, item_time in enumerate(self.times) if item_time >= time), len(self))


class _LoggedSlate(NamedTuple):
    """Items shown in response to one request."""

    shown_items: _ShownItems
    first: int
    """Number of the first item."""
    size: int


class UserItems(Refresher):
    """Keeps the items shown to users, from the prediction and outcome logs of all servers of this machine.

    Slates of this server are added at once, those of others when they are in their streams. When there are too many
    items, the users who were shown nothing for the longest time are dropped.

    Args:
        data: Declared columns of the log.
        item_type: Type of item ids in the release.
        predictions: Folder of the prediction log, of all versions and replicas.
        outcomes: Folder of the outcome log.
        window: How long an item is remembered.
        max_items: Most items remembered, of all users.
    """

    def __init__(
        self, data: Data, item_type: pl.DataType, predictions: Path, outcomes: Path, window: timedelta,
        max_items: int = Limits().max_history_items,
    ) -> None:  # fmt: skip
        super().__init__("items that users were shown", _POLL_SECONDS)
        assert data.user
        self._item_type, self._window = item_type, window
        columns = "time", "request_id", "status", "items", logged_name(data.user)
        since = datetime.now(UTC) - window
        self._predictions = LogFollower(ServingLog.on_disk(predictions, prediction_schema(data)), columns, since)
        outcome_log = ServingLog.on_disk(outcomes, outcome_schema(logged_item_type(data)))
        self._outcomes = LogFollower(outcome_log, ("request_id", "row", "label"), since)
        self._max_items = max_items
        self._users: OrderedDict[Any, _ShownItems] = OrderedDict()
        self._slates: OrderedDict[str, _LoggedSlate] = OrderedDict()
        """Slates whose outcomes may still arrive, by request id."""
        self._slate_items = 0
        self._early_outcomes: OrderedDict[str, dict[int, bool]] = OrderedDict()
        """Outcomes by row of requests not read yet: another server's log may be written later."""
        self._lock = threading.Lock()
        self._forgot_at = -_FORGET_SECONDS
        self.has_polled = False
        """Whether the logs have been read once."""
        self.items = 0
        """Number of items of all users."""
        self.forgotten = 0
        """Number of users who were dropped because there were too many items."""

    def history(self, user: int | str | None) -> UserHistory | None:
        """Return the items that a user was shown, oldest first; None when there are none, or for no user."""
        with self._lock:
            shown_items = self._users.get(user) if user is not None else None
            if not shown_items:
                return None
            items, times = shown_items.items.copy(), np.array(shown_items.times, np.int64)
            positive = np.array(shown_items.positive, np.bool_)
        history = UserHistory(
            pl.Series("item", items, self._item_type),
            pl.Series("time", times).cast(pl.Datetime("us", "UTC")),
            pl.Series("positive", positive),
        )
        if (times[1:] >= times[:-1]).all():
            return history
        order = np.argsort(times, kind="stable")
        return UserHistory(history.items[order], history.times[order], history.positive[order])

    def record_slate(self, request_id: str, user: int | str | None, items: list[Any], moment: datetime) -> None:
        """Add the items shown to a user; a request that was added before is ignored."""
        if user is None:
            return
        with self._lock:
            if request_id in self._slates:
                return
            early = self._early_outcomes.pop(request_id, {})
            shown_at = microseconds(moment)
            shown_items = self._users.setdefault(user, _ShownItems())
            old_length = len(shown_items)
            first = shown_items.add(items, shown_at, [early.get(row, False) for row in range(len(items))])
            self._slates[request_id] = _LoggedSlate(shown_items, first, len(items))
            self._users.move_to_end(user)
            self.items += len(shown_items) - old_length
            self._slate_items += len(items)
            while len(self._slates) > MAX_REQUESTS or self._slate_items > self._max_items:
                self._slate_items -= self._slates.popitem(last=False)[1].size
            while self.items > self._max_items:
                self.items -= len(self._users.popitem(last=False)[1])
                self.forgotten += 1

    def read_logs(self) -> None:
        """Read what is new in the logs; from time to time, drop items older than the window."""
        oldest = datetime.now(UTC) - self._window
        for rows in self._predictions.read_new():
            for moment, name, status, items, users in rows.iter_rows():
                if status == 200 and items and users and len(users) == 1 and moment >= oldest:
                    self.record_slate(name, users[0], items, moment)
        for rows in self._outcomes.read_new():
            self._record_outcomes(rows.filter(pl.col("label").is_not_null()))
        if time.monotonic() - self._forgot_at >= _FORGET_SECONDS:
            self._forgot_at = time.monotonic()
            self._forget(oldest)

    def _forget(self, oldest: datetime) -> None:
        oldest_time = microseconds(oldest)
        with self._lock:
            users = list(self._users)
        for first in range(0, len(users), _USERS_PER_LOCK):
            with self._lock:
                for user in users[first : first + _USERS_PER_LOCK]:
                    shown_items = self._users.get(user)
                    if shown_items is None:
                        continue
                    old_count = shown_items.count_expired(oldest_time)
                    shown_items.forget(old_count)
                    self.items -= old_count
                    if not shown_items:
                        del self._users[user]

    def _record_outcomes(self, outcomes: pl.DataFrame) -> None:
        with self._lock:
            for name, row, label in outcomes.iter_rows():
                if row is None:
                    continue
                slate = self._slates.get(name)
                if slate is None:
                    self._early_outcomes.setdefault(name, {})[row] = bool(label)
                elif 0 <= row < slate.size:
                    slate.shown_items.set_outcome(slate.first + row, bool(label))
            while len(self._early_outcomes) > MAX_REQUESTS:
                self._early_outcomes.popitem(last=False)

    def _refresh(self) -> None:
        self.read_logs()
        self.problem = self._predictions.problem or self._outcomes.problem
        self.has_polled = True
