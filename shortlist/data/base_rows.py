"""The log's own rows, and the rows collected from live traffic that follow them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import polars as pl

from shortlist.contracts import Columns, DataError
from shortlist.data.collected import ANSWERED, CollectedRows
from shortlist.data.failures import Failure, failure, flagged, split_failures
from shortlist.data.quarantine import QuarantineWriter
from shortlist.data.rules import broken_checks, log_checks
from shortlist.spec.data import Data, GeneratedSource
from shortlist.spec.durations import parse_duration
from shortlist.storage.tables import DayTableWriter

_TAIL: Final = timedelta(days=2)


class BaseRows:
    """The log's own rows: what collected ones must have in common with them, and come after."""

    def __init__(self, data: Data) -> None:
        self._data, self._live, self._generated = data, data.live, isinstance(data.source, GeneratedSource)
        self.schema: pl.Schema | None = None
        self.tail = pl.DataFrame(schema={Columns.TIME: pl.Datetime("us", "UTC"), Columns.IMPRESSION: pl.Int64})
        """Time and impression of the rows of the newest two days."""
        self.left_out = 0
        """Rows of a generated log that `data.live.since` ends."""

    def take(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return rows as they are stored."""
        since = self._live.since
        if not self._live.collect:
            return rows
        if since is not None and self._generated:
            kept = rows.filter(pl.col(Columns.TIME) < since)
            self.left_out, rows = self.left_out + rows.height - kept.height, kept
        elif since is not None and (later := rows.filter(pl.col(Columns.TIME) >= since).height):
            raise DataError(
                f"data.live.since: {later:,} rows of the log are of {since.isoformat()} or later, e.g. in"
                f" {rows.filter(pl.col(Columns.TIME) >= since)[Columns.SOURCE_FILE][0]}; from then on rows come from"
                " live traffic, and would count twice. Take them out of the log, or declare a later moment"
            )
        rows = rows.with_columns(
            pl.lit(None, pl.Int64).alias(Columns.SERVED_VERSION), pl.lit(None, pl.String).alias(Columns.SERVED_TRACK),
            pl.lit(None, pl.Float32).alias(Columns.COUNTS_DELAY), pl.lit(1.0, pl.Float32).alias(Columns.WEIGHT),
        )  # fmt: skip
        self.schema = rows.schema
        both = pl.concat([self.tail, rows.select(Columns.TIME, Columns.IMPRESSION)])
        self.tail = _newest_days(both)
        return rows

    def from_since_on(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return collected rows without those before `data.live.since`, whenever it was declared."""
        return rows if self._live.since is None else rows.filter(pl.col(Columns.TIME) >= self._live.since)

    def without_wrong_clocks(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return collected rows without those of `clock_failures`, and these as quarantine rows."""
        return split_failures(rows, clock_failures(rows, self._data))

    def as_declared(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return collected rows with the columns and types that the log has now.

        Raises:
            DataError: A column was of another type when they were collected, and a value is not one of the present one.
        """
        assert self.schema is not None
        # What a generated log knows beyond its columns, nobody knows of live traffic; a column declared since is null.
        new = [pl.lit(None, kind).alias(name) for name, kind in self.schema.items() if name not in rows.columns]
        return _as_declared(rows.with_columns(new).select(self.schema.names()), self.schema)

    def add_tail(self, tail: pl.DataFrame) -> None:
        """Take the tail of later files that were read on their own."""
        self.tail = _newest_days(pl.concat([self.tail, tail]))

    def check_later(self, rows: pl.DataFrame) -> None:
        """Refuse collected rows that are not later than every row of the log itself; those that break a rule may be.

        Raises:
            DataError: With how many rows overlap.
        """
        rows = rows.filter(~flagged(rows.height, broken_checks(rows, log_checks(self._data))))
        first, newest = rows[Columns.TIME].min(), self.tail[Columns.TIME].max()
        if not isinstance(first, datetime) or not isinstance(newest, datetime) or first > newest:
            return
        overlap = self.tail.filter(pl.col(Columns.TIME) >= first)
        same = self.tail.filter(pl.col(Columns.IMPRESSION).is_in(rows[Columns.IMPRESSION].implode())).height
        early = rows.filter(pl.col(Columns.TIME) <= newest).height
        raise DataError(
            f"the log and the rows collected from live traffic overlap: {early:,} collected rows, the first of"
            f" {first:%Y-%m-%d %H:%M:%S} UTC, are not later than the newest row of the log, of"
            f" {newest:%Y-%m-%d %H:%M:%S} UTC; at least {overlap.height:,} rows of the log are as late, {same:,} of"
            " them with the same impression. The log must end before live traffic begins: leave those rows out, or"
            " declare data.live.since: the moment from which on rows are collected"
        )


def append_collected(
    collected: CollectedRows, base: BaseRows, writer: DayTableWriter, rejected: QuarantineWriter
) -> tuple[int, int]:
    """Append collected rows, which validation judges like all others; return how many, and how many cannot be rows.

    Raises:
        DataError: They are not later than every row of the log itself, or a batch is missing or changed.
    """
    good = bad = 0
    for every, lost in collected.frames():
        rows, refused = base.without_wrong_clocks(base.from_since_on(every))
        for each in (lost, refused):
            rejected.append(each)
            bad += each.height
        if not rows.height:
            continue
        declared = base.as_declared(rows)
        base.check_later(declared)
        writer.append(declared)
        good += rows.height
    return good, bad


def clock_failures(rows: pl.DataFrame, data: Data) -> list[Failure]:
    """Return the rows that are later than their own answer by more than clocks may differ, or too long before it.

    Clients name the time of a row, and each day of theirs would be a day of the log. A generated log, whose days are
    all in the past, is replayed: its rows may be of any time before their answers.

    Args:
        rows: Collected rows; in batches of earlier versions without `ANSWERED`, they were judged before.
        data: The log's declaration.
    """
    if ANSWERED not in rows.columns:
        return []
    skew, max_age = data.live.max_clock_skew, data.live.max_age
    times, answered = rows[Columns.TIME], rows[ANSWERED]
    wanted = f"a time at most {skew} after the answer (live.max_clock_skew)"
    found = failure("clock", times > answered + parse_duration(skew), Columns.TIME, times, wanted)
    if max_age is not None and not isinstance(data.source, GeneratedSource):
        wanted = f"a time at most {max_age} before the answer (live.max_age)"
        found += failure("clock", times < answered - parse_duration(max_age), Columns.TIME, times, wanted)
    return found


def _newest_days(rows: pl.DataFrame) -> pl.DataFrame:
    newest = rows[Columns.TIME].max()
    return rows if newest is None else rows.filter(pl.col(Columns.TIME) >= pl.lit(newest) - _TAIL)


def _as_declared(rows: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    try:
        return rows.cast(schema)
    except pl.exceptions.PolarsError:
        for name, kind in schema.items():
            lost = rows[name].is_not_null() & rows[name].cast(kind, strict=False).is_null()
            if lost.any():
                raise DataError(
                    f"column '{name}': {int(lost.sum()):,} of {rows.height:,} collected rows, e.g. of"
                    f" {rows[Columns.SOURCE_FILE].filter(lost)[0]}, hold {rows[name].dtype} values that are no {kind},"
                    f" e.g. {rows[name].filter(lost)[0]!r}; the column's type was changed after they were served."
                    " Declare the new type under another name, with the old column beside it"
                ) from None
        raise
