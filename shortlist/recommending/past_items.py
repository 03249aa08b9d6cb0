"""What users were shown and took by the log: the past that filters ask for, before a server has logged anything."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl

from shortlist.contracts import Columns, Files
from shortlist.filters.base import UserHistory
from shortlist.retrieval.catalogue import Catalogue, places_of, write_mappable
from shortlist.retrieval.source import ROW
from shortlist.spec.data import Data
from shortlist.storage.tables import DayTable

MOST_ITEMS: Final = 1_000
"""Of a user; the oldest are left out."""
_USER: Final = "user"
_FIRST: Final = "first"
_COUNT: Final = "count"
_USERS, _EVENTS = "past_users.arrow", "past_events.arrow"


@dataclass(frozen=True)
class PastItems:
    """Events of all users, one user's after the other's, oldest first."""

    users: pl.DataFrame
    """The user, sorted; place of the first event; number of events."""
    events: pl.DataFrame
    """Row number of the item, time, whether the outcome was positive."""

    @classmethod
    def open(cls, folder: Path) -> Self | None:
        """Return what `write_past_items` wrote into a folder, mapped into memory; None where nothing was written."""
        if not (folder / _USERS).is_file():
            return None
        return cls(*(pl.read_ipc(folder / name, memory_map=True) for name in (_USERS, _EVENTS)))

    def of(self, user: int | str | None, ids: pl.Series) -> UserHistory | None:
        """Return the past of a user; None where nothing is known.

        Args:
            user: Value of `data.user`.
            ids: Of the items, by row number.
        """
        key = self.users[_USER]
        if user is None or not len(key):
            return None
        (place,) = places_of(pl.Series([user], dtype=key.dtype, strict=False), key)
        if place < 0:
            return None
        own = self.events.slice(self.users[_FIRST][int(place)], self.users[_COUNT][int(place)])
        return UserHistory(ids[own[ROW].cast(pl.UInt32)], own[Columns.TIME], own[Columns.LABEL])


def write_past_items(data: Data, log: Path, catalogue: Catalogue, window: timedelta, folder: Path) -> None:
    """Write what users were shown and took within a window before the log's newest row.

    Args:
        data: The spec's section.
        log: Folder of the validated log.
        catalogue: The items; events of others are left out.
        window: How long the filters remember.
        folder: Where to write.
    """
    assert data.user and data.item
    table = DayTable.open(log, Files.LOG)
    newest = max((part.day for part in table.days), default=None)
    days = frozenset(part.day for part in table.days if newest is not None and newest - part.day <= window)
    ids = catalogue.ids.to_frame(data.item).with_row_index(ROW).cast({ROW: pl.Int32}).lazy()
    found: pl.DataFrame | None = None
    for path in table.paths(days):
        rows = (
            pl.scan_parquet(path, hive_partitioning=False)
            .filter(pl.col(data.user).is_not_null())
            .join(ids, on=data.item, how="inner", maintain_order="left")
            .select(pl.col(data.user).alias(_USER), ROW, Columns.TIME, pl.col(Columns.LABEL) == 1)
            .collect()
            .sort(Columns.TIME, maintain_order=True)
        )
        both = rows if found is None else pl.concat([found, rows])
        found = both.group_by(_USER, maintain_order=True).tail(MOST_ITEMS)
    if found is None:
        return
    last = found[Columns.TIME].max()
    events = found.filter(pl.col(Columns.TIME) >= last - window).sort(_USER, Columns.TIME, maintain_order=True)  # type: ignore[operator]
    users = events.group_by(_USER, maintain_order=True).len(_COUNT)
    starts = pl.Series(_FIRST, np.cumsum(np.concatenate([[0], users[_COUNT].to_numpy()]))[:-1])
    write_mappable(users.select(_USER, starts, _COUNT), folder / _USERS)
    write_mappable(events.select(ROW, Columns.TIME, Columns.LABEL), folder / _EVENTS)


def together(past: UserHistory | None, newer: UserHistory | None) -> UserHistory | None:
    """Return two pasts of a user as one, oldest first."""
    if past is None or newer is None:
        return newer if past is None else past
    parts = ((past.items, newer.items), (past.times, newer.times), (past.positive, newer.positive))
    items, times, positive = (pl.concat([old, new.cast(old.dtype)]) for old, new in parts)
    order = np.argsort(times.to_physical().to_numpy(), kind="stable")
    return UserHistory(items[order], times[order], positive[order])
