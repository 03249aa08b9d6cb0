"""Counting the rows of a day per value of a key, exactly and in any order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import polars as pl

from shortlist.contracts import Columns, DataError
from shortlist.features.counts.keyed import LAST_IMPRESSION, LAST_TIME, KeyedView
from shortlist.features.counts.newest_events import newest_column, newest_event, newest_events
from shortlist.features.counts.tiles import TILE
from shortlist.features.values.columns import DeclaredColumns
from shortlist.features.values.lists import ROW, one_row_per_tag
from shortlist.features.values.ranges import key_ranges, scan_all, write_frames
from shortlist.system.execution import count_cpu_operation
from shortlist.system.query_engine import Engine, collect, collect_all, resolve_engine

LARGEST_SUM: Final = 2**57
"""Most units a sum may reach; it leaves room in 64 bits for a row's several tags."""

COMPRESSION: Final = "none"
"""Compression of sorted keys and small counts, stored as differences: zstd saves a third of the bytes (12 MB of 26 keys
of 2 M rows), and adds half to the processor time (0.10 s)."""


def countable(rows: pl.DataFrame, views: Sequence[KeyedView], declared: DeclaredColumns) -> pl.DataFrame:
    """Return the columns to count: keys, one integer column per measure, last values; in time order.

    Args:
        rows: Rows of the log with their side tables looked up.
        views: The views of the counted keys.
        declared: The declared columns.
    """
    count_cpu_operation("keys and measures of rows")
    keys = dict.fromkeys(key for view in views for key in view.counted_by)
    measures = dict.fromkeys(name for view in views for name in view.measures if name != Columns.ROWS)
    lasts = dict.fromkeys(name for view in views for name in view.last_value_columns)
    columns = [_key(name, declared) for name in keys] + [_measure(name, declared) for name in measures]
    if any(view.ordered for view in views):
        rows = rows.sort(Columns.TIME, Columns.IMPRESSION)
    columns += [newest_event(view, declared) for view in views if view.newest is not None]
    if any(view.timed for view in views):
        columns += [_finite(name, declared).cast(pl.Float64).alias(f"last_{name}") for name in lasts]
        columns.append(pl.col(Columns.TIME).to_physical().alias(LAST_TIME))
        columns.append(pl.col(Columns.IMPRESSION).alias(LAST_IMPRESSION))
    return rows.select(columns)


def count(rows: pl.DataFrame, views: Sequence[KeyedView], engine: Engine) -> list[pl.DataFrame]:
    """Return each view's statistics of some rows (of `countable`): one row per value of the key, null keys nowhere."""
    return collect_all([_counting(rows, view, engine) for view in views], engine)


def _counting(rows: pl.DataFrame, view: KeyedView, engine: Engine) -> pl.LazyFrame:
    carried = rows.select(*view.counted_by, *_carried_columns(view))
    tag_rows = one_row_per_tag(carried, view.tags).drop(ROW) if view.tags else carried
    counted = [pl.len().cast(pl.Int64).alias(Columns.ROWS), *(pl.col(name).sum() for name in view.measures[1:])]
    keyed_rows = tag_rows.lazy().drop_nulls(view.keys)
    # Where nothing but integers has to move, sorting them and counting neighbours takes 0.68 s of processor time for 26
    # keys of 2 M rows; hashing them and sorting the counts takes 1.17. With a sum beside the key it is the other way.
    if tag_rows.width == 1 and tag_rows.dtypes[0].is_integer() and resolve_engine(engine) == "cpu":
        return keyed_rows.sort(view.keys).group_by(view.keys, maintain_order=True).agg(counted)
    lists = [newest_events(view, pl.col(newest_column(view)))] if view.newest is not None else []
    return keyed_rows.group_by(view.counted_by).agg(*counted, *_newest(view), *lists)


def merge(parts: pl.LazyFrame, view: KeyedView, engine: Engine) -> pl.DataFrame:
    """Return the statistics of all parts together, sorted by key; the same bits in whatever order they come."""
    if view.timed:
        parts = parts.sort(LAST_TIME, LAST_IMPRESSION)
    summed = (pl.col(name).sum() for name in view.measures)
    lists = [newest_events(view, pl.col(newest_column(view)).explode())] if view.newest is not None else []
    aggregates = [*summed, *_newest(view), *lists]
    return collect(parts.group_by(view.counted_by).agg(aggregates).sort(view.counted_by), engine)


def merge_frames(frames: Sequence[pl.DataFrame], view: KeyedView, engine: Engine) -> pl.DataFrame:
    """Return the statistics of some frames together, as `merge` does."""
    if len(frames) == 1:
        return frames[0].sort(view.counted_by)
    return merge(pl.concat(frames).lazy(), view, engine)


class KeyCount:
    """The statistics of one key, merged part by part in bounded memory."""

    def __init__(self, view: KeyedView, scratch: Path, engine: Engine) -> None:
        self.view = view
        self._engine = engine
        self._scratch = scratch
        self._held_frames: list[pl.DataFrame] = []
        self._spilled: list[Path] = []

    @property
    def is_spilled(self) -> bool:
        """Whether some of it is on disk."""
        return bool(self._spilled)

    @property
    def held_bytes(self) -> int:
        """Memory of the statistics that are not on disk."""
        return sum(int(frame.estimated_size()) for frame in self._held_frames)

    def add(self, part: pl.DataFrame) -> None:
        """Add the statistics of some rows, as `count` returns them."""
        self._held_frames.append(part)

    def spill(self) -> None:
        """Merge the statistics in memory and move them to disk."""
        path = self._scratch / f"{self.view.name}-{len(self._spilled):05d}.parquet"
        write_frames(path, [self._merged()])
        self._spilled.append(path)
        self._forget()

    def finish(self, path: Path, rows: int) -> None:
        """Write the statistics, sorted by key, holding about `rows` of them at once; then clear them."""
        if not self._spilled:
            write_frames(path, [self._merged()], COMPRESSION)
            self._held_frames = []
            return
        if self.held_bytes:
            self.spill()
        write_frames(path, self._merged_ranges(rows), COMPRESSION)
        for spilled in self._spilled:
            spilled.unlink()
        self._spilled = []

    def _forget(self) -> None:
        self._held_frames = []

    def _merged(self) -> pl.DataFrame:
        return merge_frames(self._held_frames, self.view, self._engine)

    def _merged_ranges(self, rows: int) -> Iterator[pl.DataFrame]:
        for key_range in key_ranges(self._spilled, self.view.keys[0], rows):
            yield merge(scan_all(self._spilled).filter(key_range), self.view, self._engine)


def check_sum_range(totals: Mapping[str, float], declared: DeclaredColumns) -> None:
    """Check that sums stay within 64-bit integers.

    Args:
        totals: Sums of absolute values over all rows, as `sizes` returns them.
        declared: The declared columns.

    Raises:
        DataError: A column is too large to be summed exactly.
    """
    for name, total in totals.items():
        if total >= LARGEST_SUM:
            column = name.removeprefix("sum_")
            scale = declared.scale(column)
            raise DataError(
                f"features: the values of '{column}' add up to {total / scale:.3g}, more than"
                f" {LARGEST_SUM / scale:.3g}. Declare the column in a larger unit (seconds, not milliseconds, say)."
            )


def sizes(rows: pl.DataFrame, views: Sequence[KeyedView]) -> dict[str, float]:
    """Return, for every sum, the sum of the absolute values of some countable rows."""
    names = dict.fromkeys(name for view in views for name in view.measures if name.startswith("sum_"))
    return rows.select(pl.col(name).abs().cast(pl.Float64).sum() for name in names).row(0, named=True) if names else {}


def _carried_columns(view: KeyedView) -> list[str]:
    times = [LAST_TIME, LAST_IMPRESSION, *(f"last_{name}" for name in view.last_value_columns)] if view.timed else []
    return [*view.measures[1:], *times, *([newest_column(view)] if view.newest else [])]


def _newest(view: KeyedView) -> list[pl.Expr]:
    if not view.timed:
        return []
    return [
        pl.col(name).last()
        for name in (LAST_TIME, LAST_IMPRESSION, *(f"last_{name}" for name in view.last_value_columns))
    ]


def _key(name: str, declared: DeclaredColumns) -> pl.Expr:
    if name == Columns.GLOBAL_KEY:
        return pl.lit(0, dtype=pl.Int64).alias(name)
    return pl.col(name if name == TILE else declared.row_column(name)).alias(name)


def _measure(name: str, declared: DeclaredColumns) -> pl.Expr:
    if name.startswith("rows_"):
        return _finite(name.removeprefix("rows_"), declared).is_not_null().cast(pl.Int64).alias(name)
    column = name.removeprefix("sum_")
    value, scale = _finite(column, declared), declared.scale(column)
    units = value if scale == 1 else (value * scale).round()
    return units.fill_null(0).cast(pl.Int64).alias(name)


def _finite(name: str, declared: DeclaredColumns) -> pl.Expr:
    value = pl.col(declared.row_column(name))
    if not declared.is_fraction(name):
        return value.cast(pl.Int64)
    return pl.when(value.is_finite()).then(value.cast(pl.Float64))
