"""What rows of the log see of the tiles that were open when they happened: the training values of `OpenTiles`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final, Self, cast
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from shortlist.contracts import Columns
from shortlist.features.open_events import StreamingPlan
from shortlist.features.open_lists import OpenLists
from shortlist.features.ordered_events import Ints, OrderedEvents
from shortlist.features.tiles import moment_of, start_of
from shortlist.storage.tables import DayTable

_LONGEST_MS: Final = 1e12
"""What is infinitely far behind (nothing was read yet), in milliseconds."""


def open_rows(key: str) -> str:
    """Return under which name looked-up rows hold the impressions of a key column's value in the open tiles."""
    return f"open_{key}:{Columns.ROWS}"


def open_positives(key: str) -> str:
    """Return the name of the positive ones of them."""
    return f"open_{key}:positives"


def open_places(streaming: StreamingPlan | None) -> tuple[str, ...]:
    """Return the names of all counts of the open tiles."""
    keys = () if streaming is None else streaming.keys
    return tuple(place for key in keys for place in (open_rows(key), open_positives(key)))


@dataclass(frozen=True)
class _Counted:
    """The impressions of some days by a key column."""

    events: OrderedEvents
    positives: Ints
    """How many of the first n impressions are positive ones; one entry more than there are impressions."""


class OpenCounts:
    """Counts, for rows of one day, the impressions of the log in the tiles that were open, and lists them."""

    def __init__(self, streaming: StreamingPlan, log: pl.DataFrame) -> None:
        """Order the impressions.

        Args:
            streaming: What is counted and listed.
            log: Impressions of the day, and of those before as far as their tiles are open on that day, in the order of
                the log: the columns of the plan, `event_time` and `label`.
        """
        self._streaming = streaming
        times = cast(Ints, log[Columns.TIME].dt.epoch("us").to_numpy())
        labels = (log[Columns.LABEL].cast(pl.Int64) > 0).cast(pl.Int64).to_numpy()
        self._counted = {key: _counted(log[key], times, labels) for key in streaming.keys}
        self._lists = OpenLists(streaming.lists, log)

    @classmethod
    def of_day(cls, streaming: StreamingPlan, table: DayTable, day: date) -> Self:
        """Return the counts for rows of one day of a valid log."""
        tiles = streaming.tiles
        first = (start_of(day, tiles.timezone) - tiles.delay).astimezone(ZoneInfo(tiles.timezone)).date()
        there = {one for one in table.by_day if first - timedelta(days=1) < one <= day}
        wanted = [*streaming.columns, Columns.TIME, Columns.LABEL]
        rows = table.scan(there).select(*wanted, Columns.IMPRESSION).sort(Columns.TIME, Columns.IMPRESSION)
        return cls(streaming, rows.collect())

    def columns(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return what rows see: counts, Int64, named as in `open_places`, and lists, named by `open_list`.

        Args:
            rows: The key columns and `event_time`; and how far behind the counts were that scored a collected row.
        """
        streaming = self._streaming
        times = rows[Columns.TIME].dt.epoch("us").to_numpy()
        since, delays = self._open_since(times), self._delays(rows)
        shown = np.maximum(times - delays, since)
        settled = np.maximum(times - delays - streaming.outcome_delay_us, since)
        found: dict[str, Ints] = {}
        for key, counted in self._counted.items():
            numbers = counted.events.numbers(rows[key])
            first, last, last_settled = (counted.events.before(numbers, moment) for moment in (since, shown, settled))
            found[open_rows(key)] = last - first
            found[open_positives(key)] = counted.positives[last_settled] - counted.positives[first]
        return pl.DataFrame([*pl.DataFrame(found), *self._lists.columns(rows, since, shown, settled)])

    def _delays(self, rows: pl.DataFrame) -> Ints:
        """Return how long before each row an impression must be to count, in microseconds, as when it was served.

        A server that is further behind than declared scores with what it has, and logs how far that is.
        """
        declared = self._streaming.delay_us
        if Columns.COUNTS_DELAY not in rows.columns:
            return np.full(rows.height, declared, np.int64)
        logged = rows[Columns.COUNTS_DELAY].cast(pl.Float64).fill_null(0.0).clip(0.0, _LONGEST_MS)
        return cast(Ints, np.maximum((1_000 * logged.to_numpy()).astype(np.int64), declared))

    def _open_since(self, times: Ints) -> Ints:
        """Return from when on impressions are in no view for rows of some times."""
        before = times - self._streaming.outcome_delay_us
        tiles = self._streaming.tiles
        days = pl.Series(before).cast(pl.Datetime("us", "UTC")).dt.convert_time_zone(tiles.timezone).dt.date()
        starts = {day: tiles.around(_midnight(day, tiles.timezone))[0] for day in days.unique().to_list()}
        midnight = days.replace_strict(starts, return_dtype=pl.Int64).to_numpy()
        length = tiles.length // timedelta(microseconds=1)
        return cast(Ints, midnight + (before - midnight) // length * length)


def _counted(values: pl.Series, times: Ints, labels: Ints) -> _Counted:
    events, order = OrderedEvents.of(values, times)
    return _Counted(events, np.concatenate([[0], np.cumsum(labels[order])]))


def with_open_events(rows: pl.DataFrame, streaming: StreamingPlan | None, table: DayTable, day: date) -> pl.DataFrame:
    """Return rows of one day of a valid log with what they see of the open tiles."""
    return rows if streaming is None else rows.hstack(OpenCounts.of_day(streaming, table, day).columns(rows))


def _midnight(day: date, timezone: str) -> int:
    return (start_of(day, timezone) - moment_of(0)) // timedelta(microseconds=1)
