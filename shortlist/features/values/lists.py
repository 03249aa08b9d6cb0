"""List columns as flat values and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

import numpy as np
import polars as pl
import pyarrow as pa

from shortlist.system.execution import count_cpu_operation

ROW: Final = ":row"
"""Number of the row that a value comes from."""


def one_row_per_tag(rows: pl.DataFrame, tags: Sequence[str]) -> pl.DataFrame:
    """Return rows with their number (`ROW`), one per distinct value of the tags columns; none for an empty list."""
    numbered = rows.with_row_index(ROW)
    for name in tags:
        count_cpu_operation("one row per tag")
        max_values = int(cast(int, rows[name].list.len().max() or 0))
        numbered = numbered.explode(name, empty_as_null=False, keep_nulls=False)
        if max_values > 1:  # several times as fast as making each list unique
            row_and_tags = (ROW, *tags[: tags.index(name) + 1])
            numbered = numbered.filter(pl.struct(row_and_tags).is_first_distinct())
    return numbered


def map_column(values: pl.Series, function: Callable[[pl.Series], pl.Series]) -> pl.Series:
    """Apply a function to a column, or to the values of a column of lists."""
    return map_values(values, function) if isinstance(values.dtype, pl.List) else function(values)


def map_values(lists: pl.Series, function: Callable[[pl.Series], pl.Series]) -> pl.Series:
    """Apply a function to all values of lists at once; return lists of the same lengths. A null list is empty."""
    values = function(lists.explode(empty_as_null=False, keep_nulls=False))
    ends = np.cumsum(lists.list.len().fill_null(0).to_numpy(), dtype=np.int64)
    offsets = pa.array(np.concatenate([np.zeros(1, dtype=np.int64), ends]))
    # Polars 1.39 takes no elements of older texts in lists: it crashes where they are null.
    level = pl.CompatLevel.newest() if values.dtype == pl.String else pl.CompatLevel.oldest()
    array = pa.LargeListArray.from_arrays(offsets, values.to_arrow(compat_level=level))
    return pl.Series(lists.name, array, dtype=pl.List(values.dtype))
