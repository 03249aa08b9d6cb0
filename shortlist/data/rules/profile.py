"""Profile of a log's valid rows, gathered in one pass: the numbers that table rules check."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import date, datetime

import numpy as np
import polars as pl

from shortlist.contracts import Columns
from shortlist.data.rules.keys import KeySet
from shortlist.spec.data import Data
from shortlist.storage.row_digest import Hashes, RowDigest, row_hashes

_SAMPLE_ROWS = 50_000
_PLACE = "__place"


@dataclass
class DayProfile:
    """Counts of the valid rows of one day."""

    rows: int = 0
    positives: int = 0
    nulls: Counter[str] = field(default_factory=Counter)
    """Column -> number of rows without a value."""
    digest: RowDigest = field(default_factory=RowDigest)
    copies: int = 0
    """Quarantined rows that are exact copies of others of the day."""

    @property
    def rate(self) -> float:
        """Share of positive rows."""
        return self.positives / self.rows


class LogProfile:
    """Days, newest time, coverage of side tables, and a row sample of a log."""

    def __init__(self, data: Data, side_keys: dict[str, KeySet]) -> None:
        """Start an empty profile; `side_keys` maps a side table's name to its keys."""
        self._data = data
        self._columns = [column.name for column in data.columns if column.name not in (data.label, data.impression)]
        self._keys = {table.name: table.key for table in data.side_tables}
        self._side_keys = side_keys
        self.days: dict[date, DayProfile] = {}
        self.newest: datetime | None = None
        self.covered: Counter[str] = Counter()
        """Side table -> rows of the log whose key is in it."""
        self.sample = RowSample([Columns.LABEL, Columns.DAY, *self._columns])

    def add(self, day: date, rows: pl.DataFrame, hashes: Hashes) -> None:
        """Add valid rows of one day, with the hashes of their `row_columns`."""
        if rows.is_empty():
            return
        profile = self.days.setdefault(day, DayProfile())
        profile.rows += rows.height
        profile.digest.add(hashes)
        profile.positives += int(rows[Columns.LABEL].sum())
        profile.nulls.update({name: rows[name].null_count() for name in self._columns})
        newest = rows[Columns.TIME].max()
        assert isinstance(newest, datetime)
        self.newest = newest if self.newest is None else max(self.newest, newest)
        for table, key in self._keys.items():
            self.covered[table] += int(self._side_keys[table].contains(row_hashes(rows.select(key))).sum())
        self.sample.add(rows)

    @property
    def rows_by_day(self) -> dict[date, int]:
        """Rows of every day."""
        return {day: profile.rows for day, profile in self.days.items()}

    def empty_copy(self) -> LogProfile:
        """Return an empty profile of the same log."""
        return LogProfile(self._data, self._side_keys)

    def add_profile(self, other: LogProfile) -> None:
        """Add the rows of another profile of the same log."""
        for day, counts in other.days.items():
            profile = self.days.setdefault(day, DayProfile())
            profile.rows += counts.rows
            profile.positives += counts.positives
            profile.nulls.update(counts.nulls)
            profile.digest.add_digest(counts.digest)
            profile.copies += counts.copies
        times = [time for time in (self.newest, other.newest) if time is not None]
        self.newest = max(times, default=None)
        self.covered.update(other.covered)
        self.sample.add_sample(other.sample)

    @property
    def rows(self) -> int:
        """Number of valid rows."""
        return sum(day.rows for day in self.days.values())

    @property
    def positives(self) -> int:
        """Number of valid rows with label 1."""
        return sum(day.positives for day in self.days.values())


class RowSample:
    """A uniform sample of bounded size of streamed rows: those with the lowest hashes of their impressions."""

    def __init__(self, columns: list[str], size: int = _SAMPLE_ROWS) -> None:
        self._columns = columns
        self._size = size
        self._frames: list[pl.DataFrame] = []
        self._max_place: int | None = None
        """Largest hash of a row in the sample; None: not yet known."""

    def add(self, rows: pl.DataFrame) -> None:
        """Add rows as candidates for the sample."""
        places = pl.Series(_PLACE, row_hashes(rows.select(Columns.IMPRESSION)))
        placed = rows.select(*self._columns, places)
        # Gathering a few rows by number is faster than filtering all columns.
        self._frames.append(placed if self._max_place is None else placed[(places <= self._max_place).arg_true()])
        # Not after every part, so that rows of many columns are copied a third as often.
        if sum(frame.height for frame in self._frames) > 2 * self._size:
            self._trim()

    def add_sample(self, other: RowSample) -> None:
        """Add the rows of another sample of the same columns."""
        self._frames += other._frames
        self._trim()

    def rows(self) -> pl.DataFrame:
        """Return the sampled rows in an order independent of their content."""
        assert self._frames, "a sample of nothing"
        # Rows of equal impressions stay in the order of the log.
        return pl.concat(self._frames).sort(_PLACE, maintain_order=True).drop(_PLACE).head(self._size)

    def _trim(self) -> None:
        frame = pl.concat(self._frames) if self._frames else pl.DataFrame()
        if frame.height <= self._size:
            return
        places = frame[_PLACE].to_numpy()
        self._max_place = int(np.partition(places, self._size - 1)[self._size - 1])
        self._frames = [frame.filter(pl.col(_PLACE) <= self._max_place)]
