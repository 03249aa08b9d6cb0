"""Lists of the events of the open tiles, which a `live` sequence adds to those of the newest statistics.

Training reads them from the log (`OpenLists`), a server collects them as they arrive (`OpenSessions`). Both list an
event `features.streaming.delay` after it happened, a positive one `data.outcome_delay` later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import polars as pl
import pyarrow as pa

from shortlist.contracts import Columns
from shortlist.features.live.open_events import OpenList
from shortlist.features.values.ordered_events import Ints, OrderedEvents


def open_list_column(open_list: OpenList, feature: str) -> str:
    """Return the name under which rows hold a list of the events of the open tiles, the newest first."""
    return f"open_{open_list.view}:{feature}"


@dataclass(frozen=True)
class _ListEvents:
    """The events of a list, ordered by key value and by time."""

    events: OrderedEvents
    features: tuple[pl.Series, ...]
    """Values of the events, in the order of `OpenList.features`."""


class OpenLists:
    """Lists, for rows of one day, the events of the log in the tiles that were open."""

    def __init__(self, lists: Sequence[OpenList], log: pl.DataFrame) -> None:
        """Order the events.

        Args:
            lists: The lists.
            log: Impressions in the order of the log: `event_time`, `label`, and the columns of the lists.
        """
        self._events_by_list = {open_list: _order_events(open_list, log) for open_list in lists}

    def columns(
        self, rows: pl.DataFrame, open_since: Ints, visible_until: Ints, settled_until: Ints
    ) -> list[pl.Series]:
        """Return the lists of each row, named by `open_list_column`.

        Args:
            rows: The key columns.
            open_since: Moment of each row from which events are in no statistics, microseconds since 1970-01-01 UTC.
            visible_until: Moment of each row up to which impressions are listed.
            settled_until: Moment of each row up to which positive impressions are listed.
        """
        columns = []
        for open_list, list_events in self._events_by_list.items():
            numbers = list_events.events.numbers(rows[open_list.key])
            first = list_events.events.count_preceding(numbers, open_since)
            last = list_events.events.count_preceding(numbers, settled_until if open_list.positives else visible_until)
            counts = np.minimum(last - first, open_list.max_events)
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
            event_order = np.repeat(last - 1 + offsets[:-1], counts) - np.arange(int(offsets[-1]))
            named = zip(open_list.features, list_events.features, strict=True)
            columns += [
                _lists(open_list_column(open_list, feature), feature_values[event_order], offsets)
                for feature, feature_values in named
            ]
        return columns


def _order_events(open_list: OpenList, log: pl.DataFrame) -> _ListEvents:
    is_listed = pl.col(open_list.column).is_not_null() & pl.col(open_list.key).is_not_null()
    if open_list.positives:
        is_listed &= pl.col(Columns.LABEL) > 0
    listed_rows = log.filter(is_listed)
    times = cast(Ints, listed_rows[Columns.TIME].dt.epoch("us").to_numpy())
    events, order = OrderedEvents.order(listed_rows[open_list.key], times)
    listed_values = listed_rows[open_list.column]
    values = listed_values if listed_values.dtype == pl.String else listed_values.cast(pl.Int64)
    numbers = (listed_rows[name].cast(pl.Float32).fill_null(0.0) for name in open_list.numbers)
    finite = (
        pl.select(pl.when(number_values.is_finite()).then(number_values).otherwise(0.0)).to_series()
        for number_values in numbers
    )
    return _ListEvents(events, tuple(feature_values[order] for feature_values in (values, pl.Series(times), *finite)))


def _lists(name: str, values: pl.Series, offsets: Ints) -> pl.Series:
    array = values.to_arrow(compat_level=pl.CompatLevel.newest())  # polars takes no elements of older texts in lists
    return pl.Series(name, pa.LargeListArray.from_arrays(pa.array(offsets), array))
