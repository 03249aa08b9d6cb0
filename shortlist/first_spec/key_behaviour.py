"""What the values of keys do: how long they live, and which column determines which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from shortlist.contracts import DataError
from shortlist.data.reading.clock import event_times
from shortlist.first_spec.columns import ColumnProfile
from shortlist.first_spec.tables import TableSample

_MIN_DETERMINED_SHARE: Final = 0.99
_MIN_NUMBERED_SHARE: Final = 0.9
_MIN_REPEATED_VALUES: Final = 20
"""Fewest values on several rows that say how long values live."""
_REQUEST_SECONDS: Final = 300.0
_SESSION_SECONDS: Final = 6 * 3_600.0
_DAY_SECONDS: Final = 86_400.0


@dataclass(frozen=True)
class Lifetime:
    """How long the values of a key live: the time from the first row to the last, of values on several rows."""

    median_seconds: float
    """Half of the values live at most so long."""
    long_seconds: float
    """Nine in ten live at most so long."""

    @property
    def is_request(self) -> bool:
        """Whether values live as long as one answer to one request."""
        return self.long_seconds <= _REQUEST_SECONDS

    @property
    def is_session(self) -> bool:
        """Whether values live for a visit, as no user does."""
        return self.long_seconds <= _SESSION_SECONDS

    @property
    def is_lasting(self) -> bool:
        """Whether values come back on other days."""
        return self.median_seconds >= _DAY_SECONDS

    def __str__(self) -> str:
        seconds = self.median_seconds
        for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
            if seconds >= size:
                return f"{seconds / size:.0f} {unit}{'s' if round(seconds / size) != 1 else ''}"
        return f"{seconds:.0f} seconds"


class KeyBehaviour:
    """Looks at the values of a log's keys.

    Args:
        log: The log.
        clock: Source name of its clock; None: nothing lives, as no row has a time.
    """

    def __init__(self, log: TableSample, clock: str | None) -> None:
        self._log = log
        self._times = _seconds(log, clock)
        self._lifetimes: dict[str, Lifetime | None] = {}

    def lifetime(self, column: ColumnProfile) -> Lifetime | None:
        """Return how long the values of a key live; None without times, or where too few values are on several rows."""
        if column.source not in self._lifetimes:
            self._lifetimes[column.source] = self._measure_lifetime(column)
        return self._lifetimes[column.source]

    def young_share(self, column: ColumnProfile) -> float:
        """Return the share of rows, after the first day, whose value first came less than a day before.

        Values on few rows are left out: of a log that was looked at in part, their first row may not have been.
        """
        if self._times is None:
            return 0.0
        rows = pl.DataFrame({"key": column.values, "time": self._times}).drop_nulls()
        key_rows = rows.with_columns(age=pl.col("time") - pl.col("time").min().over("key"), rows=pl.len().over("key"))
        judged = key_rows.filter(
            pl.col("rows") >= _MIN_REPEATED_VALUES,
            pl.col("time") > rows["time"].min() + _DAY_SECONDS,  # type: ignore[operator]
        )
        return float((judged["age"] < _DAY_SECONDS).mean() or 0) if judged.height else 0.0  # type: ignore[arg-type]

    def determines(self, key: ColumnProfile, column: ColumnProfile) -> bool:
        """Return whether rows with the same value of a key have the same value of another column."""
        pairs = pl.DataFrame({"key": key.values, "value": column.values}).drop_nulls("key")
        if pairs["value"].dtype.is_nested():
            return False
        by_key = pairs.group_by("key").agg(pl.len().alias("rows"), pl.col("value").n_unique().alias("values"))
        repeated = by_key.filter(pl.col("rows") > 1)
        if repeated.height < _MIN_REPEATED_VALUES:
            return False
        return int((repeated["values"] == 1).sum()) >= _MIN_DETERMINED_SHARE * repeated.height

    def numbers_requests(
        self, column: ColumnProfile, request: ColumnProfile | None, user: ColumnProfile | None
    ) -> bool:
        """Return whether a column numbers the rows of nearly every request: no gap, and the same first number.

        Args:
            column: A column of integers.
            request: The column that rows of a request share; None: rows of a user with the same time are of one.
            user: The column that names the user.
        """
        if (groups := self._request_groups(request, user)) is None:
            return False
        number = pl.col("number")
        has_first = number.min() == column.values.min()
        is_numbered = has_first & (number.max() - number.min() + 1 == pl.len()) & number.is_unique().all()
        rows = pl.DataFrame({**groups, "number": column.values}).drop_nulls()
        requests = rows.group_by(*groups).agg(pl.len().alias("rows"), is_numbered.alias("numbered"))
        numbered = requests.filter(pl.col("rows") > 1)["numbered"]
        return len(numbered) >= _MIN_REPEATED_VALUES and int(numbered.sum()) >= _MIN_NUMBERED_SHARE * len(numbered)

    def differs_within_requests(
        self, column: ColumnProfile, request: ColumnProfile | None, user: ColumnProfile | None
    ) -> bool:
        """Return whether a column has several values in most requests with several rows.

        Args:
            column: The column.
            request: The column that rows of a request share; None: rows of a user with the same time are of one.
            user: The column that names the user.
        """
        groups = self._request_groups(request, user)
        if groups is None or column.values.dtype.is_nested():
            return False
        rows = pl.DataFrame({**groups, "value": column.values}).drop_nulls(list(groups))
        requests = rows.group_by(*groups).agg(pl.len().alias("rows"), pl.col("value").n_unique().alias("values"))
        differing = requests.filter(pl.col("rows") > 1)["values"] > 1
        return len(differing) >= _MIN_REPEATED_VALUES and 2 * int(differing.sum()) > len(differing)

    def _request_groups(self, request: ColumnProfile | None, user: ColumnProfile | None) -> dict[str, pl.Series] | None:
        if request is not None:
            return {"request": request.values}
        if user is not None and self._times is not None:
            return {"user": user.values, "time": self._times}
        return None

    def _measure_lifetime(self, column: ColumnProfile) -> Lifetime | None:
        if self._times is None or column.values.dtype.is_nested():
            return None
        rows = pl.DataFrame({"key": column.values, "time": self._times}).drop_nulls()
        by_key = rows.group_by("key").agg(pl.len().alias("rows"), (pl.col("time").max() - pl.col("time").min()))
        spans = by_key.filter(pl.col("rows") > 1)["time"]
        if len(spans) < _MIN_REPEATED_VALUES:
            return None
        median, long = spans.quantile(0.5), spans.quantile(0.9)
        assert median is not None and long is not None
        return Lifetime(median, long)


def _seconds(log: TableSample, clock: str | None) -> pl.Series | None:
    if clock is None:
        return None
    declared = log.column(clock).clock
    assert declared is not None
    try:
        return event_times(log.rows[clock], declared).dt.epoch("s").cast(pl.Float64).alias("time")
    except DataError:
        return None
