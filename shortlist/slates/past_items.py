"""Histories of users from the log, which filters read until a server has logged newer events."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl

from shortlist.contracts import Columns, Files
from shortlist.slates.filters.base import UserHistory
from shortlist.slates.retrieval.catalogue import Catalogue, find_positions, write_mappable
from shortlist.slates.retrieval.source import ROW
from shortlist.spec.data import Data
from shortlist.storage.tables import DayTable

MAX_ITEMS: Final = 1_000
"""Largest number of items per user; the oldest are left out."""
_USER: Final = "user"
_FIRST: Final = "first"
_COUNT: Final = "count"
_USERS, _EVENTS = "past_users.arrow", "past_events.arrow"


@dataclass(frozen=True)
class PastItems:
    """Events of all users, grouped by user, oldest first."""

    users: pl.DataFrame
    """Columns: the user, sorted; position of the first event; number of events."""
    events: pl.DataFrame
    """Columns: row number of the item, time, whether the outcome was positive."""

    @classmethod
    def open(cls, folder: Path) -> Self | None:
        """Return the events that `write_past_items` wrote into a folder, mapped into memory; None without files."""
        if not (folder / _USERS).is_file():
            return None
        return cls(*(pl.read_ipc(folder / name, memory_map=True) for name in (_USERS, _EVENTS)))

    def find_history(self, user: int | str | None, ids: pl.Series) -> UserHistory | None:
        """Return the history of a user; None for an unknown user.

        Args:
            user: Value of `data.user`.
            ids: Ids of the items, by row number.
        """
        key = self.users[_USER]
        if user is None or not len(key):
            return None
        (place,) = find_positions(pl.Series([user], dtype=key.dtype, strict=False), key)
        if place < 0:
            return None
        user_events = self.events.slice(self.users[_FIRST][int(place)], self.users[_COUNT][int(place)])
        return UserHistory(ids[user_events[ROW].cast(pl.UInt32)], user_events[Columns.TIME], user_events[Columns.LABEL])


def write_past_items(data: Data, log: Path, catalogue: Catalogue, window: timedelta, folder: Path) -> None:
    """Write the histories of users within a window before the log's newest row.

    Args:
        data: The spec's section.
        log: Folder of the validated log.
        catalogue: The items; events of other items are left out.
        window: Length of the history that filters read.
        folder: Folder to write.
    """
    assert data.user and data.item
    table = DayTable.open(log, Files.LOG)
    newest = max((part.day for part in table.days), default=None)
    days = frozenset(part.day for part in table.days if newest is not None and newest - part.day <= window)
    ids = catalogue.ids.to_frame(data.item).with_row_index(ROW).cast({ROW: pl.Int32}).lazy()
    latest_rows: pl.DataFrame | None = None
    for path in table.paths(days):
        rows = (
            pl.scan_parquet(path, hive_partitioning=False)
            .filter(pl.col(data.user).is_not_null())
            .join(ids, on=data.item, how="inner", maintain_order="left")
            .select(pl.col(data.user).alias(_USER), ROW, Columns.TIME, pl.col(Columns.LABEL) == 1)
            .collect()
            .sort(Columns.TIME, maintain_order=True)
        )
        all_rows = rows if latest_rows is None else pl.concat([latest_rows, rows])
        latest_rows = all_rows.group_by(_USER, maintain_order=True).tail(MAX_ITEMS)
    if latest_rows is None:
        return
    last = latest_rows[Columns.TIME].max()
    events = latest_rows.filter(pl.col(Columns.TIME) >= last - window).sort(_USER, Columns.TIME, maintain_order=True)  # type: ignore[operator]
    users = events.group_by(_USER, maintain_order=True).len(_COUNT)
    starts = pl.Series(_FIRST, np.cumsum(np.concatenate([[0], users[_COUNT].to_numpy()]))[:-1])
    write_mappable(users.select(_USER, starts, _COUNT), folder / _USERS)
    write_mappable(events.select(ROW, Columns.TIME, Columns.LABEL), folder / _EVENTS)


def merge_histories(older_history: UserHistory | None, newer_history: UserHistory | None) -> UserHistory | None:
    """Return two histories of a user as one, oldest first."""
    if older_history is None or newer_history is None:
        return newer_history if older_history is None else older_history
    parts = (
        (older_history.items, newer_history.items),
        (older_history.times, newer_history.times),
        (older_history.positive, newer_history.positive),
    )
    items, times, positive = (pl.concat([old, new.cast(old.dtype)]) for old, new in parts)
    order = np.argsort(times.to_physical().to_numpy(), kind="stable")
    return UserHistory(items[order], times[order], positive[order])
