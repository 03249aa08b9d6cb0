"""What a log looks like, gathered in one pass: the numbers that the rules of the table judge."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from shortlist.contracts import Columns
from shortlist.data.keys import KeySet
from shortlist.spec.data import Data
from shortlist.storage.artefacts import read_json, write_json
from shortlist.storage.row_digest import Hashes, RowDigest, row_hashes

_SAMPLE_ROWS = 50_000
_PLACE = "__place"
_INDEX: Final = "profile.json"
_SAMPLE: Final = "sample.parquet"


@dataclass
class DayProfile:
    """One day of valid rows."""

    rows: int = 0
    positives: int = 0
    nulls: Counter[str] = field(default_factory=Counter)
    """Column -> rows without a value."""
    digest: RowDigest = field(default_factory=RowDigest)

    @property
    def rate(self) -> float:
        """Share of positive rows."""
        return self.positives / self.rows


class Profile:
    """The days, the newest time, the keys found in side tables, and a sample of the rows of a log."""

    def __init__(self, data: Data, side_keys: dict[str, KeySet]) -> None:
        """Begin a profile; `side_keys` maps a side table's name to its keys."""
        self._columns = [column.name for column in data.columns if column.name not in (data.label, data.impression)]
        self._keys = {table.name: table.key for table in data.side_tables}
        self._side_keys = side_keys
        self.days: dict[date, DayProfile] = {}
        self.newest: datetime | None = None
        self.covered: Counter[str] = Counter()
        """Side table -> rows of the log whose key it has."""
        self.collected_rows = 0
        """Rows of live traffic."""
        self.sample = RowSample([Columns.LABEL, *self._columns])

    def add(self, day: date, rows: pl.DataFrame, hashed: Hashes) -> None:
        """Take valid rows of one day, and the hashes of their `row_columns`."""
        if rows.is_empty():
            return
        profile = self.days.setdefault(day, DayProfile())
        profile.rows += rows.height
        profile.digest.add(hashed)
        profile.positives += int(rows[Columns.LABEL].sum())
        profile.nulls.update({name: rows[name].null_count() for name in self._columns})
        if Columns.SERVED_VERSION in rows.columns:
            self.collected_rows += rows.height - rows[Columns.SERVED_VERSION].null_count()
        newest = rows[Columns.TIME].max()
        assert isinstance(newest, datetime)
        self.newest = newest if self.newest is None else max(self.newest, newest)
        for table, key in self._keys.items():
            self.covered[table] += int(self._side_keys[table].contains(row_hashes(rows.select(key))).sum())
        self.sample.add(rows)

    def save(self, folder: Path) -> None:
        """Write the profile of days that nobody else profiles."""
        folder.mkdir()
        days = {
            day.isoformat(): {
                "rows": one.rows, "positives": one.positives, "nulls": dict(one.nulls), "digest": str(one.digest),
            }
            for day, one in self.days.items()
        }  # fmt: skip
        newest = self.newest.isoformat() if self.newest is not None else None
        covered = dict(self.covered)
        write_json(
            folder / _INDEX,
            {"days": days, "newest": newest, "covered": covered, "collected_rows": self.collected_rows},
        )
        self.sample.save(folder / _SAMPLE)

    def add_saved(self, folder: Path) -> None:
        """Take a profile of later days, as `save` wrote it."""
        saved = read_json(folder / _INDEX)
        for day, one in saved["days"].items():
            digest = RowDigest.parse(one["digest"])
            self.days[date.fromisoformat(day)] = DayProfile(
                one["rows"], one["positives"], Counter(one["nulls"]), digest
            )
        if saved["newest"] is not None:
            newest = datetime.fromisoformat(saved["newest"])
            self.newest = newest if self.newest is None else max(self.newest, newest)
        self.covered.update(saved["covered"])
        self.collected_rows += saved["collected_rows"]
        self.sample.add_saved(folder / _SAMPLE)

    @property
    def rows(self) -> int:
        """Valid rows."""
        return sum(day.rows for day in self.days.values())

    @property
    def positives(self) -> int:
        """Valid rows with label 1."""
        return sum(day.positives for day in self.days.values())


class RowSample:
    """A uniform sample of bounded size of rows that stream by: those whose impressions hash lowest."""

    def __init__(self, columns: list[str], size: int = _SAMPLE_ROWS) -> None:
        self._columns = columns
        self._size = size
        self._held: list[pl.DataFrame] = []
        self._highest: int | None = None
        """No row above this place can be in the sample; None: not yet known."""

    def add(self, rows: pl.DataFrame) -> None:
        """Consider rows for the sample."""
        places = pl.Series(_PLACE, row_hashes(rows.select(Columns.IMPRESSION)))
        placed = rows.select(*self._columns, places)
        # Taking a few rows by number costs less than asking each column of all of them.
        self._held.append(placed if self._highest is None else placed[(places <= self._highest).arg_true()])
        # Not after every part: rows of many columns are copied a third as often.
        if sum(held.height for held in self._held) > 2 * self._size:
            self._cut()

    def rows(self) -> pl.DataFrame:
        """Return the sampled rows in an order that has nothing to do with their content."""
        assert self._held, "a sample of nothing"
        # Rows of equal impressions stay in the order of the log, whoever sampled them.
        return pl.concat(self._held).sort(_PLACE, maintain_order=True).drop(_PLACE).head(self._size)

    def save(self, path: Path) -> None:
        """Write what is held; nothing when no row was considered."""
        if self._held:
            self._cut()
            pl.concat(self._held).write_parquet(path)

    def add_saved(self, path: Path) -> None:
        """Consider the rows of a sample of later rows, as `save` wrote it."""
        if path.exists():
            self._held.append(pl.read_parquet(path))
            self._cut()

    def _cut(self) -> None:
        held = pl.concat(self._held)
        if held.height <= self._size:
            return
        places = held[_PLACE].to_numpy()
        self._highest = int(np.partition(places, self._size - 1)[self._size - 1])
        self._held = [held.filter(pl.col(_PLACE) <= self._highest)]
