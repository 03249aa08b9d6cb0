"""Files of point-in-time views, written from statistics, in time order, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

import polars as pl

from shortlist.contracts import Columns
from shortlist.features.counts.changes import (
    FIRST,
    MOMENT,
    NO_MOMENT,
    day_changes,
    history_changes,
    running_values,
    tile_windows,
    window_lengths,
)
from shortlist.features.counts.keyed import KeyedView
from shortlist.features.counts.newest_events import newest_changes, running_newest
from shortlist.features.counts.tiles import TILE, microseconds, start_of
from shortlist.features.values.ranges import key_ranges, scan_all, write_frames
from shortlist.system.query_engine import Engine, collect

VALID_FROM_START: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Moment from which values without a day hold: side tables, counts of histories."""


@dataclass(frozen=True)
class ViewSize:
    """Number of rows and keys of a view."""

    rows: int
    newest_keys: int
    """Distinct keys at the end of the log."""


def day_file(statistics: Path, view: str, day: date) -> Path:
    """Return the file of a day's statistics."""
    return statistics / view / f"{Columns.DAY}={day}.parquet"


def history_file(statistics: Path, view: str, history: str) -> Path:
    """Return the file of the counts in the users' histories."""
    return statistics / view / f"of_{history}.parquet"


@dataclass(frozen=True)
class ViewWriter:
    """Writes the views of a fit."""

    statistics: Path
    days: Sequence[date]
    """Days that were counted."""
    timezone: str
    rows: int
    """Approximate number of rows held in memory at once."""
    engine: Engine
    delay: timedelta = timedelta()
    """Time after an impression until its outcome is known."""

    def write(self, view: KeyedView, path: Path) -> ViewSize:
        """Write a view: per key one row for each moment at which its values change, in time order."""
        ranges = self.ranges(view)
        pieces = [path.with_name(f"{path.name}.{number}") for number in range(len(ranges))]
        keys = 0
        for piece, key_range in zip(pieces, ranges, strict=True):
            values = self.values(view, key_range)
            keys += int(values[FIRST].sum())
            write_frames(piece, [values.drop(FIRST)])
        if len(pieces) == 1:
            return ViewSize(pl.scan_parquet(pieces[0].rename(path)).select(pl.len()).collect().item(), keys)
        rows = write_frames(path, _in_time_order(pieces, self.rows))
        for piece in pieces:
            piece.unlink()
        return ViewSize(rows, keys)

    def ranges(self, view: KeyedView) -> list[pl.Expr]:
        """Return filters that together cover every key once, each of so many that their values fit into memory."""
        windows = len(window_lengths(view)) + len(tile_windows(view))
        events = 1 + (windows if view.newest is None else view.newest.max_events)
        return key_ranges(self._files(view), view.keys[0], max(1, self.rows // events))

    def _files(self, view: KeyedView) -> list[Path]:
        histories = [history_file(self.statistics, view.name, name) for name in view.histories]
        return [day_file(self.statistics, view.name, day) for day in self.days] + histories

    def values(self, view: KeyedView, key_range: pl.Expr) -> pl.DataFrame:
        """Return the rows of a view for a range of keys, in time order, with `FIRST`."""
        changes = pl.concat(list(self._changes(view, key_range)))
        if view.newest is not None:
            values = running_newest(changes.collect(), view)
        else:
            values = collect(running_values(changes, view), self.engine)
        moment = pl.when(pl.col(MOMENT) > NO_MOMENT).then(MOMENT).otherwise(microseconds(VALID_FROM_START))
        valid_from = moment.cast(pl.Datetime("us", "UTC")).alias(Columns.VALID_FROM)
        return values.select(*view.keys, valid_from, *view.features, FIRST)

    def _changes(self, view: KeyedView, key_range: pl.Expr) -> Iterator[pl.LazyFrame]:
        last = self._known_from(max(self.days))
        for day in self.days:
            counted = pl.scan_parquet(day_file(self.statistics, view.name, day), hive_partitioning=False).filter(
                key_range
            )
            whole = pl.lit(self._known_from(day), dtype=pl.Int64)
            known_from = pl.col(TILE) + self.delay // timedelta(microseconds=1) if view.by_tile else whole
            if view.newest is not None:
                yield newest_changes(counted, view, known_from)
                continue
            leaving = {window: self._known_from(day + timedelta(days=window)) for window in window_lengths(view)}
            reached = {window: moment for window, moment in leaving.items() if moment <= last}
            yield from day_changes(counted, view, known_from, reached, last)
        for history in view.histories:
            counted = pl.scan_parquet(history_file(self.statistics, view.name, history)).filter(key_range)
            yield history_changes(counted, view, history)

    def _known_from(self, day: date) -> int:
        """Return the moment from which a whole day is known."""
        return microseconds(start_of(day + timedelta(days=1), self.timezone) + self.delay)


def _in_time_order(pieces: Sequence[Path], rows: int) -> Iterator[pl.DataFrame]:
    """Yield the rows of files, each in time order, in common time order; about `rows` at once."""
    moments = scan_all(pieces).group_by(Columns.VALID_FROM).agg(pl.len().alias(Columns.ROWS)).sort(Columns.VALID_FROM)
    batch = ((pl.col(Columns.ROWS).cum_sum() - pl.col(Columns.ROWS)) // rows).alias("batch")
    for (_,), batch_moments in (
        moments.select(Columns.VALID_FROM, batch).collect(engine="streaming").group_by("batch", maintain_order=True)
    ):
        first, last = batch_moments[Columns.VALID_FROM][0], batch_moments[Columns.VALID_FROM][-1]
        frames = (pl.scan_parquet(piece).filter(pl.col(Columns.VALID_FROM).is_between(first, last)) for piece in pieces)
        if first == last:  # a day of many keys
            yield from (frame.collect() for frame in frames)
        else:
            yield pl.concat(frame.collect() for frame in frames).sort(Columns.VALID_FROM, maintain_order=True)
