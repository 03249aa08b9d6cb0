"""What rows of the log see of the tiles that were open when they happened: the training values of `OpenTiles`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Self, cast
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from shortlist.contracts import Columns
from shortlist.features.hashing import codes_of
from shortlist.features.open_events import StreamingPlan
from shortlist.features.open_tiles import Ints
from shortlist.features.tiles import moment_of, start_of
from shortlist.storage.tables import DayTable


def open_rows(key: str) -> str:
    """Return under which name looked-up rows hold the impressions of a key column's value in the open tiles."""
    return f"open_{key}:{Columns.ROWS}"


def open_positives(key: str) -> str:
    """Return the name of the positive ones of them."""
    return f"open_{key}:positives"


def open_places(streaming: StreamingPlan | None) -> tuple[str, ...]:
    """Return the names of everything that is counted of the open tiles."""
    keys = () if streaming is None else streaming.keys
    return tuple(place for key in keys for place in (open_rows(key), open_positives(key)))


@dataclass(frozen=True)
class _Events:
    """The impressions of some days, ordered by the value of a key column and by time."""

    codes: Ints
    """Different values of the key column, ascending."""
    places: Ints
    """Of each impression, `_place`: the number of its value, and its time."""
    positives: Ints
    """How many of the first n impressions are positive ones; one entry more than there are impressions."""


class OpenCounts:
    """Counts, for rows of one day, the impressions of the log in the tiles that were open."""

    def __init__(self, streaming: StreamingPlan, log: pl.DataFrame) -> None:
        """Order the impressions.

        Args:
            streaming: What is counted.
            log: Impressions of the day, and of those before as far as their tiles are open on that day: the key
                columns, `event_time` and `label`.
        """
        self._streaming = streaming
        times = log[Columns.TIME].dt.epoch("us").to_numpy()
        self._first, self._span = int(times.min()), int(times.max() - times.min()) + 2
        labels = (log[Columns.LABEL].cast(pl.Int64) > 0).cast(pl.Int64).to_numpy()
        self._events = {key: self._ordered(log[key], times, labels) for key in streaming.keys}

    @classmethod
    def of_day(cls, streaming: StreamingPlan, table: DayTable, day: date) -> Self:
        """Return the counts for rows of one day of a valid log."""
        tiles = streaming.tiles
        first = (start_of(day, tiles.timezone) - tiles.delay).astimezone(ZoneInfo(tiles.timezone)).date()
        there = {one for one in table.by_day if first - timedelta(days=1) < one <= day}
        wanted = [*streaming.keys, Columns.TIME, Columns.LABEL]
        return cls(streaming, table.scan(there).select(wanted).collect())

    def columns(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the counts that rows see, Int64, named as in `open_places`.

        Args:
            rows: The key columns and `event_time`.
        """
        streaming = self._streaming
        times = rows[Columns.TIME].dt.epoch("us").to_numpy()
        since = self._open_since(times)
        shown = np.maximum(times - streaming.delay_us, since)
        settled = np.maximum(times - streaming.delay_us - streaming.outcome_delay_us, since)
        found: dict[str, Ints] = {}
        for key, events in self._events.items():
            numbers = self._numbers(rows[key], events.codes)
            first, last, last_settled = (self._before(events, numbers, moment) for moment in (since, shown, settled))
            found[open_rows(key)] = last - first
            found[open_positives(key)] = events.positives[last_settled] - events.positives[first]
        return pl.DataFrame(found)

    def _open_since(self, times: Ints) -> Ints:
        """Return from when on impressions are in no view for rows of some times."""
        before = times - self._streaming.outcome_delay_us
        tiles = self._streaming.tiles
        days = pl.Series(before).cast(pl.Datetime("us", "UTC")).dt.convert_time_zone(tiles.timezone).dt.date()
        starts = {day: tiles.around(_midnight(day, tiles.timezone))[0] for day in days.unique().to_list()}
        midnight = days.replace_strict(starts, return_dtype=pl.Int64).to_numpy()
        length = tiles.length // timedelta(microseconds=1)
        return cast(Ints, midnight + (before - midnight) // length * length)

    def _ordered(self, values: pl.Series, times: Ints, labels: Ints) -> _Events:
        known = values.is_not_null().to_numpy()
        codes = codes_of(values.drop_nulls()).to_numpy()
        different, numbers = np.unique(codes, return_inverse=True)
        places = self._places(numbers.astype(np.int64), times[known])
        order = np.argsort(places, kind="stable")
        return _Events(different, places[order], np.concatenate([[0], np.cumsum(labels[known][order])]))

    def _numbers(self, values: pl.Series, different: Ints) -> Ints:
        """Return the numbers of values, -1 for those that are null or in no impression."""
        if not len(different):
            return np.full(len(values), -1, np.int64)
        codes = codes_of(values).fill_null(0).to_numpy()
        numbers = np.minimum(different.searchsorted(codes), len(different) - 1)
        known = (different[numbers] == codes) & values.is_not_null().to_numpy()
        return np.where(known, numbers, -1)

    def _before(self, events: _Events, numbers: Ints, moments: Ints) -> Ints:
        """Return how many impressions are ordered before the given values at the given times."""
        return events.places.searchsorted(self._places(numbers, moments))

    def _places(self, numbers: Ints, times: Ints) -> Ints:
        return cast(Ints, numbers * self._span + (times - self._first).clip(0, self._span - 1))


def _midnight(day: date, timezone: str) -> int:
    return (start_of(day, timezone) - moment_of(0)) // timedelta(microseconds=1)
