"""The rows of the declared source, and the times of the rows collected from live traffic that follow them."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from shortlist.contracts import Columns, DataError
from shortlist.data.collected import ANSWERED
from shortlist.data.reading.clock import event_days
from shortlist.data.rules.failures import RowFailure, find_failures
from shortlist.data.rules.row_rules import CLIENT_CLOCK
from shortlist.spec.data import Data, EventClock, GeneratedSource
from shortlist.spec.text.durations import parse_duration


class BaseRows:
    """Rows of the declared source: their schema and newest time, which collected rows must match and follow."""

    def __init__(self, data: Data) -> None:
        self._data, self._live, self._generated = data, data.live, isinstance(data.source, GeneratedSource)
        self.schema: pl.Schema | None = None
        self.newest: datetime | None = None
        """Time of the newest row."""
        self.left_out = 0
        """Rows of a generated log at or after `data.live.since`, which are dropped."""

    def prepare_rows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return rows as they are stored, with the columns of collected rows."""
        since = self._live.since
        if not self._live.collect:
            return rows
        if since is not None and self._generated:
            rows_before_since = rows.filter(pl.col(Columns.TIME) < since)
            self.left_out, rows = self.left_out + rows.height - rows_before_since.height, rows_before_since
        elif since is not None and (late_rows := rows.filter(pl.col(Columns.TIME) >= since).height):
            raise DataError(
                f"data.live.since: {late_rows:,} rows of the log are of {since.isoformat()} or later, e.g. in"
                f" {rows.filter(pl.col(Columns.TIME) >= since)[Columns.SOURCE_FILE][0]}; from then on rows come from"
                " live traffic, and would count twice. Take them out of the log, or declare a later moment"
            )
        rows = rows.with_columns(
            pl.lit(None, pl.Int64).alias(Columns.SERVED_VERSION), pl.lit(None, pl.String).alias(Columns.SERVED_TRACK),
            pl.lit(None, pl.Float32).alias(Columns.COUNTS_DELAY), pl.lit(None, pl.Boolean).alias(Columns.UNCOUNTED),
            pl.lit(1.0, pl.Float32).alias(Columns.WEIGHT),
        )  # fmt: skip
        self.schema = rows.schema
        newest = rows[Columns.TIME].max()
        if isinstance(newest, datetime):
            self.newest = newest if self.newest is None else max(newest, self.newest)
        return rows


def as_of_answer(rows: pl.DataFrame, data: Data) -> pl.DataFrame:
    """Return collected rows, in time order, with times up to the clock skew after the answer set to the answer.

    Servers score such a row, and count it, as of the receipt of its request, which is the logged time of the answer.
    Times beyond the clock skew stay as they were sent, for `clock_failures`.

    Args:
        rows: Collected rows. Batches of earlier versions, without `ANSWERED`, stay as they are.
        data: The log's declaration.
    """
    if ANSWERED not in rows.columns:
        return rows
    times, answered = rows[Columns.TIME], rows[ANSWERED]
    is_ahead = ((times > answered) & (times <= answered + parse_duration(data.live.max_clock_skew))).fill_null(False)
    if not is_ahead.any():
        return rows
    assert isinstance(data.clock, EventClock)
    counted_times = times.zip_with(~is_ahead, answered)
    counted_rows = rows.with_columns(counted_times, event_days(counted_times, data.clock))
    return counted_rows.sort(Columns.TIME, Columns.IMPRESSION)


def clock_failures(rows: pl.DataFrame, data: Data) -> list[RowFailure]:
    """Return failures of rows that are later than their answer by more than the clock skew, or too long before it.

    Clients send the time of a row, and could otherwise add days to the log. A generated log, whose days are all in the
    past, is replayed: its rows may be of any time before their answers.

    Args:
        rows: Collected rows. Batches of earlier versions, without `ANSWERED`, were checked when they were collected.
        data: The log's declaration.
    """
    if ANSWERED not in rows.columns:
        return []
    skew, max_age = data.live.max_clock_skew, data.live.max_age
    times, answered = rows[Columns.TIME], rows[ANSWERED]
    expected = f"a time at most {skew} after the answer (live.max_clock_skew)"
    failures = find_failures(CLIENT_CLOCK, times > answered + parse_duration(skew), Columns.TIME, times, expected)
    expected = f"a time at most {max_age} before the answer (live.max_age); a replay of the log sends the log's times"
    return failures + find_failures(CLIENT_CLOCK, flag_old_rows(rows, data), Columns.TIME, times, expected)


def flag_old_rows(rows: pl.DataFrame, declaration: Data) -> pl.Series:
    """Return whether rows are too long before their answer, as those of a replay of the log; see `clock_failures`."""
    max_age = declaration.live.max_age
    if ANSWERED not in rows.columns or max_age is None or isinstance(declaration.source, GeneratedSource):
        return pl.repeat(False, rows.height, dtype=pl.Boolean(), eager=True)
    return (rows[Columns.TIME] < rows[ANSWERED] - parse_duration(max_age)).fill_null(False)
