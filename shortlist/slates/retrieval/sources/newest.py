"""Source `newest`: items of the last days, which no count of clicks can find yet."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Literal
from zlib import crc32

import numpy as np
import polars as pl
from pydantic import Field

from shortlist.contracts import Columns
from shortlist.slates.retrieval.catalogue import Rows, open_mapped_array
from shortlist.slates.retrieval.source import FitInputs, Queries, RankedItems, Source, SourceKind, pad_lists
from shortlist.spec.data import Data
from shortlist.spec.retrieval import check_columns, check_days, columns_of, item_tables

_ITEMS = "items.npy"


class Newest(SourceKind):
    """The items of the last days; each user's list begins with another of them, so that all are somebody's first."""

    kind: Literal["newest"]
    """New items."""
    column: str | None = None
    """Column of type `date` in a side table of the items, from which an item is offered; null: new is an item whose
    first row is in the log's last days, or that has none."""
    max_age_days: int = Field(default=7, ge=1, le=3_650)
    """Number of days for which an item is new."""
    min_items: int = Field(default=20, ge=0, le=100_000)
    """Number of its first items that stay candidates however low other sources rank them."""

    def check(self, data: Data) -> None:
        """Check the column, or the clock; see `SourceSection.check`."""
        if self.column is None:
            check_days(data, "max_age_days")
        else:
            check_columns((self.column,), columns_of(item_tables(data)), ("date",), "a side table of the items")

    @property
    def reads_recent(self) -> bool:
        """False: lists do not depend on recent items."""
        return False

    def fit(self, inputs: FitInputs, folder: Path) -> None:
        """Write the rows of the items that are new on the day after the newest one of the log."""
        tomorrow = max(inputs.days) + timedelta(days=1)
        oldest = tomorrow - timedelta(days=self.max_age_days)
        if self.column is not None:
            day = inputs.catalogue.items[self.column]
            is_new = ((day > oldest) & (day <= tomorrow)).fill_null(value=False)
        else:
            day = _first_days(inputs)
            # What the first day of the log shows may have been there for years.
            is_new = day.is_null() | ((day > oldest) & (day > min(inputs.days)))
        np.save(folder / _ITEMS, np.flatnonzero(is_new.to_numpy()).astype(np.int32))

    def load(self, folder: Path) -> NewestItems:
        """Return the items in a folder."""
        return NewestItems(open_mapped_array(folder / _ITEMS))


class NewestItems(Source):
    """The new items, in an order that begins elsewhere for each user."""

    def __init__(self, items: Rows) -> None:
        self._items = items

    def retrieve(self, queries: Queries, max_items: int) -> RankedItems:
        """Return the new items of every query, from a place on that depends on its user, or on the recent items."""
        count = len(self._items)
        askers = [
            recent.tobytes() if user is None else str(user).encode()
            for user, recent in zip(queries.users.to_list(), queries.recent, strict=True)
        ]
        first = np.array([crc32(asker) % max(1, count) for asker in askers], np.int64)
        positions = np.arange(min(count, max_items))
        items = self._items[(first[:, None] + positions) % max(1, count)]
        scores = np.broadcast_to((1.0 / (1 + positions)).astype(np.float32), items.shape)
        return pad_lists(items, scores, max_items)


def _first_days(inputs: FitInputs) -> pl.Series:
    """Return the day of the first row of every item, by row number; null where it has none."""
    item = inputs.data.item
    first_day_by_item: dict[object, date] = {}
    for day in sorted(inputs.days, reverse=True):
        items = inputs.log.scan(frozenset((day,))).select(pl.col(str(item)).drop_nulls().unique()).collect()
        first_day_by_item |= dict.fromkeys(items.to_series().to_list(), day)
    return pl.Series(
        Columns.TIME, [first_day_by_item.get(value) for value in inputs.catalogue.ids.to_list()], dtype=pl.Date
    )
