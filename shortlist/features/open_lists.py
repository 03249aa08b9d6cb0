"""The events of the open tiles as lists: a `live` sequence continues with them what the newest statistics hold.

Training reads them from the log (`OpenLists`), a server keeps them as they arrive (`OpenSessions`). Both list an event
from `features.streaming.delay` after it happened on, a positive one `data.outcome_delay` later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import polars as pl
import pyarrow as pa

from shortlist.contracts import Columns
from shortlist.features.open_events import OpenList
from shortlist.features.ordered_events import Ints, OrderedEvents


def open_list(wanted: OpenList, feature: str) -> str:
    """Return under which name rows hold a list of the events of the open tiles, the newest first."""
    return f"open_{wanted.view}:{feature}"


@dataclass(frozen=True)
class _Listed:
    """The events of a list, ordered by the value of its key and by time."""

    events: OrderedEvents
    features: tuple[pl.Series, ...]
    """As `OpenList.features` names them."""


class OpenLists:
    """Lists, for rows of one day, the events of the log in the tiles that were open."""

    def __init__(self, lists: Sequence[OpenList], log: pl.DataFrame) -> None:
        """Order the events.

        Args:
            lists: What is listed.
            log: Impressions in the order of the log: `event_time`, `label`, and the columns of the lists.
        """
        self._listed = {wanted: _listed(wanted, log) for wanted in lists}

    def columns(self, rows: pl.DataFrame, since: Ints, shown: Ints, settled: Ints) -> list[pl.Series]:
        """Return the lists that rows see, named by `open_list`.

        Args:
            rows: The key columns.
            since: From when on events are in no statistics, of every row, microseconds since 1970-01-01 UTC.
            shown: Up to when impressions are listed.
            settled: Up to when positive ones are.
        """
        found = []
        for wanted, listed in self._listed.items():
            numbers = listed.events.numbers(rows[wanted.key])
            first = listed.events.before(numbers, since)
            last = listed.events.before(numbers, settled if wanted.positives else shown)
            counts = np.minimum(last - first, wanted.most)
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
            places = np.repeat(last - 1 + offsets[:-1], counts) - np.arange(int(offsets[-1]))
            named = zip(wanted.features, listed.features, strict=True)
            found += [_lists(open_list(wanted, feature), own[places], offsets) for feature, own in named]
        return found


def _listed(wanted: OpenList, log: pl.DataFrame) -> _Listed:
    there = pl.col(wanted.of).is_not_null() & pl.col(wanted.key).is_not_null()
    if wanted.positives:
        there &= pl.col(Columns.LABEL) > 0
    kept = log.filter(there)
    times = cast(Ints, kept[Columns.TIME].dt.epoch("us").to_numpy())
    events, order = OrderedEvents.of(kept[wanted.key], times)
    own = kept[wanted.of]
    values = own if own.dtype == pl.String else own.cast(pl.Int64)
    numbers = (kept[name].cast(pl.Float32).fill_null(0.0) for name in wanted.numbers)
    finite = (pl.select(pl.when(one.is_finite()).then(one).otherwise(0.0)).to_series() for one in numbers)
    return _Listed(events, tuple(one[order] for one in (values, pl.Series(times), *finite)))


def _lists(name: str, values: pl.Series, offsets: Ints) -> pl.Series:
    array = values.to_arrow(compat_level=pl.CompatLevel.newest())  # polars takes no elements of older texts in lists
    return pl.Series(name, pa.LargeListArray.from_arrays(pa.array(offsets), array))
