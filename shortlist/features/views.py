"""The files that hold point-in-time views: written from statistics, in time order, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import polars as pl

from shortlist.contracts import Columns
from shortlist.features.changes import DAY, FIRST, NO_DAY, day_changes, history_changes, running_values, windows_of
from shortlist.features.keyed import KeyedView
from shortlist.features.ranges import key_ranges, scan_all, write_frames
from shortlist.system.query_engine import Engine, collect

ALWAYS: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""From when on values hold that have no day: side tables, counts of histories."""
_EPOCH: Final = date(1970, 1, 1)


@dataclass(frozen=True)
class ViewSize:
    """How large a view is."""

    rows: int
    newest_keys: int
    """Distinct keys at the end of the log."""


def start_of(day: date, timezone: str) -> datetime:
    """Return the moment, in UTC, at which a day begins in a timezone."""
    return datetime.combine(day, time(), ZoneInfo(timezone)).astimezone(UTC)


def day_file(statistics: Path, view: str, day: date) -> Path:
    """Return the file of what was counted on a day."""
    return statistics / view / f"{Columns.DAY}={day}.parquet"


def history_file(statistics: Path, view: str, history: str) -> Path:
    """Return the file of what was counted in the users' histories."""
    return statistics / view / f"of_{history}.parquet"


@dataclass(frozen=True)
class ViewWriter:
    """Writes the views of a fit."""

    statistics: Path
    days: Sequence[date]
    """Days that were counted."""
    timezone: str
    rows: int
    """Rows held in memory at once, about."""
    engine: Engine

    def write(self, view: KeyedView, path: Path) -> ViewSize:
        """Write a view: per key one row for each start of a day at which its values change, in time order."""
        events = 1 + len(windows_of(view))
        ranges = key_ranges(self._files(view), view.keys[0], max(1, self.rows // events))
        pieces = [path.with_name(f"{path.name}.{number}") for number in range(len(ranges))]
        keys = 0
        for piece, inside in zip(pieces, ranges, strict=True):
            values = self._values(view, inside)
            keys += int(values[FIRST].sum())
            write_frames(piece, [values.drop(FIRST)])
        if len(pieces) == 1:
            return ViewSize(pl.scan_parquet(pieces[0].rename(path)).select(pl.len()).collect().item(), keys)
        rows = write_frames(path, _in_time_order(pieces))
        for piece in pieces:
            piece.unlink()
        return ViewSize(rows, keys)

    def _files(self, view: KeyedView) -> list[Path]:
        histories = [history_file(self.statistics, view.name, name) for name in view.histories]
        return [day_file(self.statistics, view.name, day) for day in self.days] + histories

    def _values(self, view: KeyedView, inside: pl.Expr) -> pl.DataFrame:
        changes = pl.concat(list(self._changes(view, inside)))
        values = collect(running_values(changes, view), self.engine)
        timed = values.join(self._moments(values[DAY].unique()), on=DAY, how="left", maintain_order="left")
        return timed.select(*view.keys, Columns.VALID_FROM, *view.features, FIRST)

    def _changes(self, view: KeyedView, inside: pl.Expr) -> Iterator[pl.LazyFrame]:
        last = _number(max(self.days)) + 1
        for day in self.days:
            counted = pl.scan_parquet(day_file(self.statistics, view.name, day), hive_partitioning=False).filter(inside)
            yield from day_changes(counted, view, _number(day), last)
        for history in view.histories:
            counted = pl.scan_parquet(history_file(self.statistics, view.name, history)).filter(inside)
            yield history_changes(counted, view, history)

    def _moments(self, numbers: pl.Series) -> pl.DataFrame:
        starts = [ALWAYS if number == NO_DAY else start_of(_day(number), self.timezone) for number in numbers]
        return pl.DataFrame({DAY: numbers, Columns.VALID_FROM: pl.Series(starts, dtype=pl.Datetime("us", "UTC"))})


def _in_time_order(pieces: Sequence[Path]) -> Iterator[pl.DataFrame]:
    moments = scan_all(pieces).select(pl.col(Columns.VALID_FROM).unique().sort()).collect().to_series()
    for moment in moments:
        for piece in pieces:
            yield pl.scan_parquet(piece).filter(pl.col(Columns.VALID_FROM) == moment).collect()


def _number(day: date) -> int:
    return (day - _EPOCH).days


def _day(number: int) -> date:
    return date.fromordinal(number + _EPOCH.toordinal())
