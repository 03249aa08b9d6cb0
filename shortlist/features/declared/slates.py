"""Slates: the candidates of one request, and the rank of each among them.

Training and serving call the same function: the table with the slates that the log declares, the server with a request
as one slate. Values are cast to FP32 first and summed in order of size, so the bits do not depend on the rows' order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.contracts import Columns, DataError
from shortlist.spec.data import Data
from shortlist.storage.tables import DayPart, DayTable

SLATE: Final = "slate:number"
"""Int64, in rows of a log: equal in rows of one slate. Rows without it are one slate."""

SlateStatistic = Literal["rank", "share", "difference", "size"]
Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SlateValue:
    """A number that is compared among the rows of a slate."""

    value: pl.Expr
    """Query over looked-up rows."""
    statistics: tuple[tuple[str, SlateStatistic], ...]
    """Columns of looked-up rows, with the statistic that each holds."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns of looked-up rows that the value depends on."""
        return tuple(self.value.meta.root_names())


def slate_statistics(values: Floats, slates: Numbers | None) -> dict[SlateStatistic, Floats]:
    """Return the statistics of every row within its slate.

    Args:
        values: NaN and infinity are null.
        slates: Number of every row's slate; None: all rows are one slate.

    Returns:
        `rank`: 1 and the rows of greater value. `share`: of the slate's sum; NaN where that is 0. `difference`: to the
        mean of those that have a value. `size`: rows of the slate. All but the size are NaN for a null value.

    >>> slate_statistics(np.array([3.0, 1.0, 3.0, np.nan]), None)["rank"].tolist()
    [1.0, 3.0, 1.0, nan]
    """
    rows = len(values)
    if not rows:
        return {statistic: np.zeros(0) for statistic in ("rank", "share", "difference", "size")}
    values = np.where(np.isfinite(values), values, np.nan)
    numbers = np.zeros(rows, np.int64) if slates is None else slates
    order = np.lexsort((values, numbers))  # NaN last
    value, slate = values[order], numbers[order]
    is_known = ~np.isnan(value)
    is_first = np.ones(rows, np.bool_)
    is_first[1:] = slate[1:] != slate[:-1]
    starts = np.flatnonzero(is_first)
    slate_index = np.cumsum(is_first) - 1
    counts = np.add.reduceat(is_known.astype(np.int64), starts)
    sums = np.add.reduceat(np.where(is_known, value, 0.0), starts)
    sizes = np.diff(np.append(starts, rows))
    is_change = is_first.copy()
    is_change[1:] |= value[1:] != value[:-1]
    runs = np.flatnonzero(is_change)
    ends = np.append(runs[1:], rows)[np.cumsum(is_change) - 1]  # behind the last row of equal value
    missing = np.where(is_known, 0.0, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = value / np.where(sums == 0, np.nan, sums)[slate_index]
        difference = value - (sums / counts)[slate_index]
    statistics: dict[SlateStatistic, Floats] = {
        "rank": 1.0 + (starts + counts)[slate_index] - ends + missing,
        "share": share,
        "difference": difference,
        "size": sizes[slate_index].astype(np.float64),
    }
    in_row_order: dict[SlateStatistic, Floats] = {}
    for statistic, sorted_values in statistics.items():
        in_row_order[statistic] = np.empty(rows)
        in_row_order[statistic][order] = sorted_values
    return in_row_order


def slate_features(rows: pl.DataFrame, values: Sequence[SlateValue], slates: Numbers | None) -> dict[str, Floats]:
    """Return the features computed from values, by column; NaN is null.

    Args:
        rows: Looked-up rows with the columns that the values read.
        values: At least one.
        slates: See `slate_statistics`.
    """
    value_queries = [
        slate_value.value.cast(pl.Float32).cast(pl.Float64).fill_null(np.nan).alias(str(position))
        for position, slate_value in enumerate(values)
    ]
    numbers = rows.select(value_queries)
    features_by_column: dict[str, Floats] = {}
    for position, slate_value in enumerate(values):
        statistics = slate_statistics(numbers[str(position)].to_numpy(), slates)
        features_by_column |= {column: statistics[statistic] for column, statistic in slate_value.statistics}
    return features_by_column


def with_slates(rows: pl.DataFrame, values: Sequence[SlateValue]) -> pl.DataFrame:
    """Return looked-up rows with the features computed from values; null for NaN."""
    if not values:
        return rows
    slates = rows[SLATE].to_numpy() if SLATE in rows.columns else None
    features_by_column = slate_features(rows, values, slates)
    return rows.with_columns(pl.Series(name, column).fill_nan(None) for name, column in features_by_column.items())


def slate_columns(data: Data) -> tuple[str, ...]:
    """Return the columns of the valid log that identify slates."""
    assert data.slate is not None
    if data.slate.column is not None:
        return (data.slate.column,)
    assert data.user is not None
    return (data.user, Columns.TIME)


def whole_slates(
    table: DayTable, day: DayPart, data: Data, columns: Sequence[str] | None = None
) -> Iterator[pl.DataFrame]:
    """Yield the rows of a day of the valid log, about a file at a time, no slate in two pieces; with `SLATE`.

    A slate does not span days: rows of one id on two days are two slates. In memory are a file, the rows of slates that
    go on in a later one, and three numbers per row of the day.

    Args:
        table: The valid log.
        day: The day.
        data: Declares what a slate is.
        columns: Wanted columns; all by default.

    Raises:
        DataError: A slate has more rows than declared.
    """
    keys = slate_columns(data)
    read = [pl.read_parquet(table.folder / name, columns=list(keys), hive_partitioning=False) for name in day.files]
    numbers = _numbered(pl.concat(read), data)
    _check_sizes(numbers, data, day)
    files = np.repeat(np.arange(len(read)), [frame.height for frame in read])
    last = np.zeros(int(numbers.max(initial=-1)) + 1, np.int64)
    np.maximum.at(last, numbers, files)
    unfinished: pl.DataFrame | None = None
    start = 0
    for at, name in enumerate(day.files):
        columns_to_read = None if columns is None else list(columns)
        rows = pl.read_parquet(table.folder / name, columns=columns_to_read, hive_partitioning=False)
        rows = rows.with_columns(pl.Series(SLATE, numbers[start : start + rows.height]))
        start += rows.height
        rows = rows if unfinished is None else pl.concat([unfinished, rows])
        ends_here = pl.Series(last[rows[SLATE].to_numpy()] <= at)
        unfinished = rows.filter(~ends_here)
        yield rows.filter(ends_here)
    assert unfinished is None or not unfinished.height


def at_slate_start(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with `SLATE` as of one moment per slate, the time of its first row: a request has one, too."""
    return rows.with_columns(pl.col(Columns.TIME).min().over(SLATE))


def _numbered(rows: pl.DataFrame, data: Data) -> Numbers:
    """Return the number of every row's slate; a row whose key is null is a slate of its own."""
    assert data.slate is not None
    keys = slate_columns(data)
    rows = rows.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("at"))
    if data.slate.column is not None:
        first_row = pl.col("at").min().over(keys[0])  # of a slate its first row's place
        slate_start = pl.when(pl.col(keys[0]).is_null()).then("at").otherwise(first_row)
        return cast(Numbers, rows.select(slate_start.rank("dense").cast(pl.Int64) - 1).to_series().to_numpy())
    assert data.slate.gap_seconds is not None
    user, time = keys
    gap = round(1e6 * data.slate.gap_seconds)
    ordered = rows.select(pl.col(user), pl.col(time).dt.epoch("us").alias("time"), "at").sort(user, "time", "at")
    is_same_slate = (pl.col(user) == pl.col(user).shift()) & (pl.col("time") - pl.col("time").shift() <= gap)
    number = (~is_same_slate.fill_null(value=False)).cast(pl.Int64).cum_sum() - 1
    return cast(Numbers, ordered.with_columns(number.alias("number")).sort("at")["number"].to_numpy())


def _check_sizes(numbers: Numbers, data: Data, day: DayPart) -> None:
    assert data.slate is not None
    sizes = np.bincount(numbers)
    largest = int(sizes.max(initial=0))
    if largest > data.slate.max_rows:
        too_large = int((sizes > data.slate.max_rows).sum())
        raise DataError(
            f"data.slate: on {day.day}, {too_large} of {sizes.size} slates have more than max_rows"
            f" ({data.slate.max_rows}) rows, the largest {largest}; serving never answers such a request. Declare what"
            " a slate is otherwise, or a larger data.slate.max_rows"
        )
