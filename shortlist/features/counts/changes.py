"""Changes of a view's values: what the counts of each day or tile add, and from when they are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Final

import polars as pl

from shortlist.contracts import Columns
from shortlist.features.counts.keyed import LAST_TIME, KeyedView

MOMENT: Final = ":moment"
"""Moment from which values hold, in microseconds since 1970-01-01 UTC."""
FIRST: Final = ":first"
"""Whether a row is the first of its key."""
NO_MOMENT: Final = -(2**63) + 1
"""A moment before all others, for values known before the log began."""
_NO_TIME: Final = -(2**63)
_CHANGED: Final = ":changed"


def window_lengths(view: KeyedView) -> list[int]:
    """Return the view's windows, in days."""
    return sorted({total.window_days for total in view.totals} - {0})


def tile_windows(view: KeyedView) -> list[timedelta]:
    """Return the view's windows of tiles."""
    return sorted({total.window for total in view.totals} - {timedelta()})


def day_changes(
    counted: pl.LazyFrame, view: KeyedView, known_from: pl.Expr, leaving: Mapping[int, int], last: int
) -> Iterator[pl.LazyFrame]:
    """Yield what a day's statistics add to the values of its keys, and what leaves them when a window has passed.

    A window of days moves by whole days: the counts of a day's tiles leave it together, so that the work grows with the
    number of days and not of tiles. A window of tiles moves with every tile.

    Args:
        counted: The statistics of the day.
        view: The view.
        known_from: The moment (see `MOMENT`) from which on each row of the statistics counts.
        leaving: The moment at which the day leaves each window of days.
        last: The moment from which nothing is known any more.
    """
    added = {total.name: pl.col(total.measure) for total in view.totals}
    # NaN stands for "no value" on the way, so that it is not mistaken for "unchanged".
    newest = {f"last_{name}": pl.col(f"last_{name}").fill_null(float("nan")) for name in view.last_value_columns}
    times = {LAST_TIME: pl.col(LAST_TIME)} if view.timed else {}
    yield counted.select(*view.keys, *_row(view, known_from, {**added, **newest, **times}))
    for window, moment in leaving.items():
        leaving_totals = {total.name: -pl.col(total.measure) for total in view.totals if total.window_days == window}
        yield counted.select(*view.keys, *_row(view, pl.lit(moment, dtype=pl.Int64), leaving_totals))
    for tile_window in tile_windows(view):
        totals = {total.name: -pl.col(total.measure) for total in view.totals if total.window == tile_window}
        left_at = known_from + tile_window // timedelta(microseconds=1)
        yield counted.select(*view.keys, *_row(view, left_at, totals)).filter(pl.col(MOMENT) <= last)


def history_changes(counted: pl.LazyFrame, view: KeyedView, history: str) -> pl.LazyFrame:
    """Return what the counts of a history add before the log."""
    return counted.select(
        *view.keys, *_row(view, pl.lit(NO_MOMENT, dtype=pl.Int64), {f"count_{history}": pl.col(Columns.ROWS)})
    )


def running_values(changes: pl.LazyFrame, view: KeyedView) -> pl.LazyFrame:
    """Return the values of every key from each moment at which they change: keys, `MOMENT`, `FIRST`, features.

    Sorted by moment, then key. It takes only sums, shifts and fills over the whole frame, in order of key: a fraction
    of the time of windows per key, and supported by cuDF.
    """
    lasts = [f"last_{name}" for name in view.last_value_columns]
    sums = [name for name in view.features if name not in (LAST_TIME, *lasts)]
    times = [pl.col(LAST_TIME).max()] if view.timed else []
    merged = changes.group_by(*view.keys, MOMENT).agg(*(pl.col(name).sum() for name in [*sums, *lasts]), *times)
    new_key = pl.any_horizontal(pl.col(name) != pl.col(name).shift(1) for name in view.keys)
    ordered = merged.sort(*view.keys, MOMENT).with_columns(new_key.fill_null(value=True).alias(FIRST))
    changed = ordered.with_columns(
        *(running_sum(name) for name in sums),
        *(_newest_value(name) for name in lasts),
        *([_newest_time()] if view.timed else []),
        pl.any_horizontal(pl.col(name) != 0 for name in sums).alias(_CHANGED),
    ).filter(_CHANGED)
    return changed.select(*view.keys, MOMENT, FIRST, *view.features).sort(MOMENT, *view.keys)


def _row(view: KeyedView, moment: pl.Expr, changes_by_feature: Mapping[str, pl.Expr]) -> list[pl.Expr]:
    columns = [moment.alias(MOMENT)]
    for name in view.features:
        if name in changes_by_feature:
            columns.append(changes_by_feature[name].alias(name))
        elif name == LAST_TIME:
            columns.append(pl.lit(None, dtype=pl.Int64).alias(name))
        else:
            dtype = pl.Float64 if name in {f"last_{last}" for last in view.last_value_columns} else pl.Int64
            columns.append(pl.lit(0, dtype=dtype).alias(name))
    return columns


def running_sum(name: str) -> pl.Expr:
    """Sum the changes of a key up to each row: the sum over all rows less what came before the key."""
    running_total = pl.col(name).cum_sum()
    total_before_key = pl.when(FIRST).then(running_total - pl.col(name)).forward_fill()
    return (running_total - total_before_key).alias(name)


def _newest_time() -> pl.Expr:
    # A key's first row is never null here, so that nothing is filled from the key before.
    start = pl.when(pl.col(LAST_TIME).is_null() & pl.col(FIRST)).then(pl.lit(_NO_TIME, dtype=pl.Int64))
    last_time = start.otherwise(pl.col(LAST_TIME)).forward_fill()
    return pl.when(last_time != _NO_TIME).then(last_time).alias(LAST_TIME)


def _newest_value(name: str) -> pl.Expr:
    # Without a new impression the sum is empty, 0, and is no value.
    is_seen = pl.col(LAST_TIME).is_not_null()
    start = pl.when(pl.col(FIRST) & is_seen.not_()).then(pl.lit(float("nan")))
    value = pl.when(is_seen).then(pl.col(name)).otherwise(start).forward_fill()
    return pl.when(value.is_nan().not_()).then(value).alias(name)
