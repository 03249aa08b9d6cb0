"""Counts of the tiles that were open at the time of each row of the log: the training values of `OpenTiles`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final, Self, cast
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from shortlist.contracts import Columns
from shortlist.features.counts.tiles import moment_of, start_of
from shortlist.features.live.open_events import CountedKey, StreamingPlan, joined_keys, key_name
from shortlist.features.live.open_lists import OpenLists
from shortlist.features.values.ordered_events import Ints, OrderedEvents
from shortlist.storage.tables import DayTable

_LONGEST_MS: Final = 1e12
"""Largest delay, in milliseconds; it is infinite where nothing was read yet."""


def open_rows_column(key: CountedKey) -> str:
    """Return the name of the column of looked-up rows with the impressions of a key in the open tiles."""
    return f"open_{key_name(key)}:{Columns.ROWS}"


def open_positives_column(key: CountedKey) -> str:
    """Return the name of the column of looked-up rows with the positive impressions of a key in the open tiles."""
    return f"open_{key_name(key)}:positives"


def open_settled_column(key: CountedKey) -> str:
    """Return the name of the column with the impressions of a key in the open tiles whose outcomes are known."""
    return f"open_{key_name(key)}:settled"


def open_count_columns(streaming: StreamingPlan | None) -> tuple[str, ...]:
    """Return the names of all counts of the open tiles."""
    keys = () if streaming is None else streaming.keys
    return tuple(name_column(key) for key in keys for name_column in _COLUMN_NAMES)


_COLUMN_NAMES: Final = (open_rows_column, open_positives_column, open_settled_column)


@dataclass(frozen=True)
class _KeyImpressions:
    """The impressions of some days by a key column."""

    events: OrderedEvents
    positives: Ints
    """Number of positive ones among the first n impressions, for n from 0 to the number of impressions."""


class OpenCounts:
    """Counts and lists, for rows of one day, the impressions of the log in the tiles that were open."""

    def __init__(self, streaming: StreamingPlan, log: pl.DataFrame) -> None:
        """Order the impressions.

        Args:
            streaming: The keys and lists.
            log: Impressions of the day, and of those before as far as their tiles are open on that day, in the order of
                the log: the columns of the plan, `event_time` and `label`.
        """
        self._streaming = streaming
        times = cast(Ints, log[Columns.TIME].dt.epoch("us").to_numpy())
        labels = (log[Columns.LABEL].cast(pl.Int64) > 0).cast(pl.Int64).to_numpy()
        self._impressions_by_key = {
            key: _order_impressions(joined_keys(log, key), times, labels) for key in streaming.keys
        }
        self._lists = OpenLists(streaming.lists, log)

    @classmethod
    def of_day(cls, streaming: StreamingPlan, table: DayTable, day: date) -> Self:
        """Return the counts for rows of one day of a valid log."""
        tiles = streaming.tiles
        first = (start_of(day, tiles.timezone) - tiles.delay).astimezone(ZoneInfo(tiles.timezone)).date()
        days_to_read = {log_day for log_day in table.by_day if first - timedelta(days=1) < log_day <= day}
        columns_to_read = [*streaming.columns, Columns.TIME, Columns.LABEL, Columns.IMPRESSION]
        rows = table.scan(days_to_read)
        if Columns.UNCOUNTED in rows.collect_schema():
            rows = rows.filter(~pl.col(Columns.UNCOUNTED).fill_null(value=False))
        rows = rows.select(columns_to_read).sort(Columns.TIME, Columns.IMPRESSION)
        return cls(streaming, rows.collect())

    def columns(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return counts, Int64, named by `open_count_columns`, and lists, named by `open_list_column`, for each row.

        Args:
            rows: The key columns and `event_time`; for collected rows, also the delay of the counts that scored them.
        """
        streaming = self._streaming
        times = rows[Columns.TIME].dt.epoch("us").to_numpy()
        open_since, delays = self._open_since(times), self._delays(rows)
        visible_until = np.maximum(times - delays, open_since)
        settled_until = np.maximum(times - delays - streaming.outcome_delay_us, open_since)
        counts_by_column: dict[str, Ints] = {}
        for key, impressions in self._impressions_by_key.items():
            numbers = impressions.events.numbers(joined_keys(rows, key))
            first, last, last_settled = (
                impressions.events.count_preceding(numbers, moment)
                for moment in (open_since, visible_until, settled_until)
            )
            counts_by_column[open_rows_column(key)] = last - first
            counts_by_column[open_positives_column(key)] = (
                impressions.positives[last_settled] - impressions.positives[first]
            )
            counts_by_column[open_settled_column(key)] = last_settled - first
        return pl.DataFrame(
            [*pl.DataFrame(counts_by_column), *self._lists.columns(rows, open_since, visible_until, settled_until)]
        )

    def _delays(self, rows: pl.DataFrame) -> Ints:
        """Return the age at which an impression counted for each row when it was served, in microseconds.

        A server whose counts are later than declared scores with them, and logs their delay.
        """
        declared = self._streaming.delay_us
        if Columns.COUNTS_DELAY not in rows.columns:
            return np.full(rows.height, declared, np.int64)
        logged = rows[Columns.COUNTS_DELAY].cast(pl.Float64).fill_null(0.0).clip(0.0, _LONGEST_MS)
        return cast(Ints, np.maximum((1_000 * logged.to_numpy()).astype(np.int64), declared))

    def _open_since(self, times: Ints) -> Ints:
        """Return the moment from which impressions are in no view yet, for rows of the given times."""
        settled_times = times - self._streaming.outcome_delay_us
        tiles = self._streaming.tiles
        days = pl.Series(settled_times).cast(pl.Datetime("us", "UTC")).dt.convert_time_zone(tiles.timezone).dt.date()
        starts = {day: tiles.tile_bounds(_midnight(day, tiles.timezone))[0] for day in days.unique().to_list()}
        # Of no rows, such as those of a file whose slates go on in the next one, nothing says the type of the starts.
        midnight = days.replace_strict(starts, return_dtype=pl.Int64).cast(pl.Int64).to_numpy()
        length = tiles.length // timedelta(microseconds=1)
        return cast(Ints, midnight + (settled_times - midnight) // length * length)


def _order_impressions(values: pl.Series, times: Ints, labels: Ints) -> _KeyImpressions:
    events, order = OrderedEvents.order(values, times)
    return _KeyImpressions(events, np.concatenate([[0], np.cumsum(labels[order])]))


def _midnight(day: date, timezone: str) -> int:
    return (start_of(day, timezone) - moment_of(0)) // timedelta(microseconds=1)
