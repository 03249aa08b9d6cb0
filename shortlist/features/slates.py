"""Slates: the candidates of one request, and where each stands among them.

Training and serving call the same function: the table with the slates that the log declares, the server with a request
as one slate. A value is turned to FP32 first and summed in order of size, so the bits do not depend on the rows' order.
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

Given = Literal["rank", "share", "difference", "size"]
Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SlateValue:
    """A number that is compared among the rows of a slate."""

    value: pl.Expr
    """Over looked-up rows."""
    gives: tuple[tuple[str, Given], ...]
    """The features computed from it, each with its column in looked-up rows."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Places of looked-up rows that the value follows from."""
        return tuple(self.value.meta.root_names())


def slate_statistics(values: Floats, slates: Numbers | None) -> dict[Given, Floats]:
    """Return where every row stands among the rows of its slate.

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
        return {what: np.zeros(0) for what in ("rank", "share", "difference", "size")}
    values = np.where(np.isfinite(values), values, np.nan)
    numbers = np.zeros(rows, np.int64) if slates is None else slates
    order = np.lexsort((values, numbers))  # NaN last
    value, slate = values[order], numbers[order]
    known = ~np.isnan(value)
    begins = np.ones(rows, np.bool_)
    begins[1:] = slate[1:] != slate[:-1]
    starts = np.flatnonzero(begins)
    of = np.cumsum(begins) - 1
    counts = np.add.reduceat(known.astype(np.int64), starts)
    sums = np.add.reduceat(np.where(known, value, 0.0), starts)
    sizes = np.diff(np.append(starts, rows))
    changes = begins.copy()
    changes[1:] |= value[1:] != value[:-1]
    runs = np.flatnonzero(changes)
    ends = np.append(runs[1:], rows)[np.cumsum(changes) - 1]  # behind the last row of equal value
    missing = np.where(known, 0.0, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = value / np.where(sums == 0, np.nan, sums)[of]
        difference = value - (sums / counts)[of]
    found: dict[Given, Floats] = {
        "rank": 1.0 + (starts + counts)[of] - ends + missing,
        "share": share,
        "difference": difference,
        "size": sizes[of].astype(np.float64),
    }
    placed: dict[Given, Floats] = {}
    for what, sorted_values in found.items():
        placed[what] = np.empty(rows)
        placed[what][order] = sorted_values
    return placed


def slate_features(rows: pl.DataFrame, values: Sequence[SlateValue], slates: Numbers | None) -> dict[str, Floats]:
    """Return the features computed from values, by column; NaN is null.

    Args:
        rows: Looked-up rows with the places that the values read.
        values: At least one.
        slates: See `slate_statistics`.
    """
    asked = [
        one.value.cast(pl.Float32).cast(pl.Float64).fill_null(np.nan).alias(str(at)) for at, one in enumerate(values)
    ]
    numbers = rows.select(asked)
    found: dict[str, Floats] = {}
    for at, one in enumerate(values):
        stands = slate_statistics(numbers[str(at)].to_numpy(), slates)
        found |= {place: stands[what] for place, what in one.gives}
    return found


def with_slates(rows: pl.DataFrame, values: Sequence[SlateValue]) -> pl.DataFrame:
    """Return looked-up rows with the features computed from values; null for NaN."""
    if not values:
        return rows
    slates = rows[SLATE].to_numpy() if SLATE in rows.columns else None
    found = slate_features(rows, values, slates)
    return rows.with_columns(pl.Series(place, column).fill_nan(None) for place, column in found.items())


def slate_columns(data: Data) -> tuple[str, ...]:
    """Return the columns of the valid log that say which rows are a slate."""
    assert data.slate is not None
    if data.slate.column is not None:
        return (data.slate.column,)
    assert data.user is not None
    return (data.user, Columns.TIME)


def whole_slates(
    table: DayTable, day: DayPart, data: Data, columns: Sequence[str] | None = None
) -> Iterator[pl.DataFrame]:
    """Give the rows of a day of the valid log, about a file at a time, no slate in two pieces; with `SLATE`.

    A slate does not span days: rows of one id on two days are two slates. In memory are a file, the rows of slates that
    go on in a later one, and three numbers per row of the day.

    Args:
        table: The valid log.
        day: The day.
        data: Says what a slate is.
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
    held: pl.DataFrame | None = None
    start = 0
    for at, name in enumerate(day.files):
        wanted = None if columns is None else list(columns)
        rows = pl.read_parquet(table.folder / name, columns=wanted, hive_partitioning=False)
        rows = rows.with_columns(pl.Series(SLATE, numbers[start : start + rows.height]))
        start += rows.height
        rows = rows if held is None else pl.concat([held, rows])
        ends_here = pl.Series(last[rows[SLATE].to_numpy()] <= at)
        held = rows.filter(~ends_here)
        yield rows.filter(ends_here)
    assert held is None or not held.height


def _numbered(rows: pl.DataFrame, data: Data) -> Numbers:
    """Return the number of every row's slate; a row without key is a slate of its own."""
    assert data.slate is not None
    keys = slate_columns(data)
    rows = rows.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("at"))
    if data.slate.column is not None:
        first = pl.col("at").min().over(keys[0])  # of a slate its first row's place
        own = pl.when(pl.col(keys[0]).is_null()).then("at").otherwise(first)
        return cast(Numbers, rows.select(own.rank("dense").cast(pl.Int64) - 1).to_series().to_numpy())
    assert data.slate.gap_seconds is not None
    user, time = keys
    gap = round(1e6 * data.slate.gap_seconds)
    ordered = rows.select(pl.col(user), pl.col(time).dt.epoch("us").alias("time"), "at").sort(user, "time", "at")
    same = (pl.col(user) == pl.col(user).shift()) & (pl.col("time") - pl.col("time").shift() <= gap)
    number = (~same.fill_null(value=False)).cast(pl.Int64).cum_sum() - 1
    return cast(Numbers, ordered.with_columns(number.alias("number")).sort("at")["number"].to_numpy())


def _check_sizes(numbers: Numbers, data: Data, day: DayPart) -> None:
    assert data.slate is not None
    sizes = np.bincount(numbers)
    most = int(sizes.max(initial=0))
    if most > data.slate.max_rows:
        above = int((sizes > data.slate.max_rows).sum())
        raise DataError(
            f"data.slate: on {day.day}, {above} of {sizes.size} slates have more than max_rows"
            f" ({data.slate.max_rows}) rows, the largest {most}; serving never answers such a request. Declare what a"
            " slate is otherwise, or a larger data.slate.max_rows"
        )
