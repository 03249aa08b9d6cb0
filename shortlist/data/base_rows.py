"""The rows of the declared source, and the rows collected from live traffic that are appended to them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import polars as pl

from shortlist.contracts import Columns, DataError
from shortlist.data.collected import ANSWERED, CollectedRows
from shortlist.data.reading.clock import event_days
from shortlist.data.rules.failures import RowFailure, find_failures, flag_failed_rows, split_failures
from shortlist.data.rules.quarantine import QuarantineWriter
from shortlist.data.rules.row_rules import CLIENT_CLOCK, build_log_checks, find_broken_checks
from shortlist.spec.data import Data, EventClock, GeneratedSource
from shortlist.spec.text.durations import parse_duration
from shortlist.storage.tables import DayTableWriter

_TAIL: Final = timedelta(days=2)


class BaseRows:
    """Rows of the declared source: their schema and newest times, which collected rows must match and follow."""

    def __init__(self, data: Data) -> None:
        self._data, self._live, self._generated = data, data.live, isinstance(data.source, GeneratedSource)
        self.schema: pl.Schema | None = None
        self.tail = pl.DataFrame(schema={Columns.TIME: pl.Datetime("us", "UTC"), Columns.IMPRESSION: pl.Int64})
        """Time and impression of the rows of the newest two days."""
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
            pl.lit(None, pl.Float32).alias(Columns.COUNTS_DELAY), pl.lit(1.0, pl.Float32).alias(Columns.WEIGHT),
        )  # fmt: skip
        self.schema = rows.schema
        tail_and_rows = pl.concat([self.tail, rows.select(Columns.TIME, Columns.IMPRESSION)])
        self.tail = _newest_days(tail_and_rows)
        return rows

    def as_of_answer(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return collected rows `as_of_answer`."""
        return as_of_answer(rows, self._data)

    def drop_before_since(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return collected rows without those before `data.live.since`."""
        return rows if self._live.since is None else rows.filter(pl.col(Columns.TIME) >= self._live.since)

    def split_clock_failures(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Split collected rows into those without `clock_failures` and the others, as quarantine rows."""
        return split_failures(rows, clock_failures(rows, self._data))

    def cast_to_log_schema(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return collected rows with the present columns and types of the log.

        Raises:
            DataError: A column had another type when they were collected, and a value cannot be converted.
        """
        assert self.schema is not None
        # Planted columns of a generated log are unknown for live traffic; columns declared later are null.
        missing_columns = [
            pl.lit(None, kind).alias(name) for name, kind in self.schema.items() if name not in rows.columns
        ]
        return _cast_rows(rows.with_columns(missing_columns).select(self.schema.names()), self.schema)

    def check_follows_log(self, rows: pl.DataFrame) -> None:
        """Refuse valid collected rows that are not later than all rows of the declared source.

        Raises:
            DataError: Collected rows overlap the log; names the number of rows.
        """
        rows = rows.filter(~flag_failed_rows(rows.height, find_broken_checks(rows, build_log_checks(self._data))))
        first_time, newest_log_time = rows[Columns.TIME].min(), self.tail[Columns.TIME].max()
        if (
            not isinstance(first_time, datetime)
            or not isinstance(newest_log_time, datetime)
            or first_time > newest_log_time
        ):
            return
        overlap = self.tail.filter(pl.col(Columns.TIME) >= first_time)
        same_impressions = self.tail.filter(pl.col(Columns.IMPRESSION).is_in(rows[Columns.IMPRESSION].implode())).height
        overlapping = rows.filter(pl.col(Columns.TIME) <= newest_log_time).height
        raise DataError(
            f"the log and the rows collected from live traffic overlap: {overlapping:,} collected rows, the first of"
            f" {first_time:%Y-%m-%d %H:%M:%S} UTC, are not later than the newest row of the log, of"
            f" {newest_log_time:%Y-%m-%d %H:%M:%S} UTC; at least {overlap.height:,} rows of the log are as late,"
            f" {same_impressions:,} of them with the same impression. The log must end before live traffic begins:"
            " leave those rows out, or declare data.live.since: the moment from which on rows are collected"
        )


def append_collected(
    collected: CollectedRows, base: BaseRows, writer: DayTableWriter, rejected: QuarantineWriter
) -> tuple[int, int]:
    """Append collected rows, which validation then checks like all others; return the numbers of good and bad rows.

    Raises:
        DataError: They are not later than all rows of the declared source, or a batch is missing or changed.
    """
    good_rows = bad_rows = 0
    for batch_rows, lost_rows in collected.iter_frames():
        rows, refused = base.split_clock_failures(base.drop_before_since(base.as_of_answer(batch_rows)))
        for quarantined in (lost_rows, refused):
            rejected.append(quarantined)
            bad_rows += quarantined.height
        if not rows.height:
            continue
        log_rows = base.cast_to_log_schema(rows)
        base.check_follows_log(log_rows)
        writer.append(log_rows)
        good_rows += rows.height
    return good_rows, bad_rows


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
    if max_age is not None and not isinstance(data.source, GeneratedSource):
        expected = f"a time at most {max_age} before the answer (live.max_age)"
        failures += find_failures(
            CLIENT_CLOCK, times < answered - parse_duration(max_age), Columns.TIME, times, expected
        )
    return failures


def _newest_days(rows: pl.DataFrame) -> pl.DataFrame:
    newest = rows[Columns.TIME].max()
    return rows if newest is None else rows.filter(pl.col(Columns.TIME) >= pl.lit(newest) - _TAIL)


def _cast_rows(rows: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    try:
        return rows.cast(schema)
    except pl.exceptions.PolarsError:
        for name, kind in schema.items():
            is_lost = rows[name].is_not_null() & rows[name].cast(kind, strict=False).is_null()
            if is_lost.any():
                raise DataError(
                    f"column '{name}': {int(is_lost.sum()):,} of {rows.height:,} collected rows, e.g. of"
                    f" {rows[Columns.SOURCE_FILE].filter(is_lost)[0]}, hold {rows[name].dtype} values that are no"
                    f" {kind}, e.g. {rows[name].filter(is_lost)[0]!r}; the column's type was changed after they were"
                    " served. Declare the new type under another name, with the old column beside it"
                ) from None
        raise
