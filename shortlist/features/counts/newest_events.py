"""Lists of the newest events of a key: counted per day, merged in any order, and with their value at each moment.

A day's statistics hold a list of structs per key, oldest first; a view holds lists side by side, newest first.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from shortlist.contracts import Columns
from shortlist.features.counts.changes import FIRST, MOMENT
from shortlist.features.counts.keyed import NEWEST_TIMES, NEWEST_VALUES, KeyedView, NewestEvents
from shortlist.features.values.columns import DeclaredColumns
from shortlist.system.execution import count_cpu_operation

_TIME: Final = "time"


def newest_column(view: KeyedView) -> str:
    """Return the name of a view's lists in the statistics of a day."""
    return f"events:{view.name}"


def newest_event(view: KeyedView, declared: DeclaredColumns) -> pl.Expr:
    """Return the event of every row, as a struct; null for a row that is not in the lists."""
    assert view.newest is not None
    event_value = pl.col(declared.row_column(view.newest.column))
    value = event_value if declared.is_text(view.newest.column) else event_value.cast(pl.Int64)
    numbers = (_finite(declared.row_column(name)).alias(f"newest_{name}") for name in view.newest.numbers)
    event = pl.struct(
        pl.col(Columns.TIME).to_physical().alias(_TIME), pl.col(Columns.IMPRESSION).alias("order"),
        value.alias(NEWEST_VALUES), *numbers,
    )  # fmt: skip
    is_event = (
        event_value.is_not_null() & (pl.col(Columns.LABEL) > 0) if view.newest.positives else event_value.is_not_null()
    )
    return pl.when(is_event).then(event).alias(newest_column(view))


def newest_events(view: KeyedView, events: pl.Expr) -> pl.Expr:
    """Return the newest of the events of a group, oldest first, whatever their order."""
    assert view.newest is not None
    count_cpu_operation("newest events of a key")
    # Structs are ordered by their fields: by time, then by the number of the impression.
    return events.drop_nulls().sort().tail(view.newest.max_events).alias(newest_column(view))


def newest_changes(counted: pl.LazyFrame, view: KeyedView, known_from: pl.Expr) -> pl.LazyFrame:
    """Return the events that a day adds to the lists of its keys, and from when on they are known.

    Args:
        counted: The statistics of the day.
        view: The view.
        known_from: The moment from which on each row of the statistics counts.
    """
    column = newest_column(view)
    return counted.filter(pl.col(column).list.len() > 0).select(*view.keys, known_from.alias(MOMENT), column)


def running_newest(changes: pl.DataFrame, view: KeyedView) -> pl.DataFrame:
    """Return the lists of every key from each moment at which they change: keys, `MOMENT`, `FIRST`, features.

    Sorted by moment, then key.

    Args:
        changes: From `newest_changes`, of all days, every key and moment once.
        view: The view.
    """
    assert view.newest is not None
    new_key = pl.any_horizontal(pl.col(name) != pl.col(name).shift(1) for name in view.keys)
    ordered = changes.sort(*view.keys, MOMENT).with_columns(new_key.fill_null(value=True).alias(FIRST))
    column = newest_column(view)
    events = ordered[column].explode(empty_as_null=False, keep_nulls=False).struct.unnest()
    lengths = ordered[column].list.len().to_numpy().astype(np.int64)
    ends = np.cumsum(lengths)
    first = ordered[FIRST].to_numpy()
    starts = (ends - lengths)[first][np.cumsum(first) - 1] if len(ends) else ends
    counts = np.minimum(ends - starts, view.newest.max_events)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    event_order = np.repeat(ends - 1 + offsets[:-1], counts) - np.arange(int(offsets[-1]))
    lists = _lists(events[event_order], offsets, view.newest)
    return ordered.select(*view.keys, MOMENT, FIRST).hstack(lists).sort(MOMENT, *view.keys)


def _lists(events: pl.DataFrame, offsets: np.ndarray, newest: NewestEvents) -> list[pl.Series]:
    lists = []
    for name, field_name in zip(newest.features, (NEWEST_VALUES, _TIME, *newest.features[2:]), strict=True):
        array = pa.LargeListArray.from_arrays(
            pa.array(offsets), events[field_name].to_arrow(compat_level=pl.CompatLevel.oldest())
        )
        lists.append(pl.Series(name, array))
    plain = (NEWEST_VALUES, NEWEST_TIMES)
    return [series if series.name in plain else wide_lists(series, newest.max_events) for series in lists]


def wide_lists(lists: pl.Series, width: int) -> pl.Series:
    """Return lists of numbers as FP32, padded with 0 to a width; what is no finite number is 0."""
    lengths = lists.list.len().to_numpy().astype(np.int64)
    matrix = np.zeros((len(lists), width), np.float32)
    numbers = lists.explode(empty_as_null=False, keep_nulls=False).cast(pl.Float32).fill_null(0.0).to_numpy()
    matrix[np.arange(width) < lengths[:, None]] = np.where(np.isfinite(numbers), numbers, np.float32(0))
    return pl.Series(lists.name, matrix, dtype=pl.Array(pl.Float32, width)).cast(pl.List(pl.Float32))


def _finite(column: str) -> pl.Expr:
    value = pl.col(column).cast(pl.Float32)
    return pl.when(value.is_finite()).then(value).otherwise(pl.lit(0.0, pl.Float32))
