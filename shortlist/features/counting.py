"""Counting a log day by day: the statistics, moments and sizes of what a plan asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import polars as pl

from shortlist.ahead import ahead
from shortlist.contracts import Columns
from shortlist.features.columns import Declared
from shortlist.features.dense import plain_number
from shortlist.features.lookup import ViewFile, asking, gathered
from shortlist.features.moments import Moments, total
from shortlist.features.plan import Plan
from shortlist.features.statistics import KeyCount, count, countable, sizes
from shortlist.features.views import day_file
from shortlist.frames import Engine
from shortlist.progress import Advance
from shortlist.tables import DayPart, DayTable

_BYTES_PER_ROW = 256
"""Counts held in memory may take what this much per row of a part takes; the largest then go to disk."""


@dataclass(frozen=True)
class DayRecord:
    """What is kept of a day besides its statistics."""

    rows: int
    moments: Mapping[str, Moments]
    """By feature name."""
    sizes: Mapping[str, float]
    """Sum of absolute values of every measure that is summed."""
    digest: str
    """Of the day's rows."""

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Self:
        """Return the record that `asdict` saved."""
        moments = {name: Moments(**values) for name, values in saved["moments"].items()}
        return cls(saved["rows"], moments, saved["sizes"], saved["digest"])

    def saved(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class LogCounter:
    """Counts days of a log into a folder of statistics."""

    plan: Plan
    log: DayTable
    sides: Sequence[ViewFile]
    """The side tables, as views, that hold columns to be counted."""
    statistics: Path
    scratch: Path
    chunk_rows: int
    engine: Engine

    def count_day(self, day: DayPart, advance: Advance) -> DayRecord:
        """Write the statistics of a day, reading it part by part; return what else is kept of it."""
        with ThreadPoolExecutor(1) as beside:
            digest = beside.submit(day_digest, self.plan.declared, self.log, day)
            return self._counted(day, digest, advance)

    def _counted(self, day: DayPart, digest: Future[str], advance: Advance) -> DayRecord:
        counts = [KeyCount(view, self.scratch, self.engine) for view in self.plan.counted]
        moments: dict[str, list[Moments]] = {}
        totals: dict[str, list[float]] = {}
        for rows in ahead(self._parts(day)):
            ready = countable(rows, self.plan.counted, self.plan.declared)
            for counted, found in zip(counts, count(ready, self.plan.counted, self.engine), strict=True):
                counted.add(found)
            self._relieve(counts)
            _collect_into(moments, self._moments(rows))
            _collect_into(totals, sizes(ready, self.plan.counted))
            advance(rows.height, str(day.day))
        for counted in counts:
            counted.finish(day_file(self.statistics, counted.view.name, day.day), self.chunk_rows)
        return DayRecord(
            rows=day.rows,
            moments={name: total(parts) for name, parts in moments.items()},
            sizes={name: sum(parts) for name, parts in totals.items()},
            digest=digest.result(),
        )

    def _parts(self, day: DayPart) -> Iterator[pl.DataFrame]:
        columns = list(self.plan.log_columns(self.plan.read_for_counting))
        for name in day.files:
            rows = pl.read_parquet(self.log.folder / name, columns=columns, hive_partitioning=False)
            for side in self.sides:
                asked = asking(rows, side.view, self.plan.declared)
                rows = rows.hstack(gathered(side.view, asked, side.answer(asked, day.day), rows.height))
            yield rows

    def _moments(self, rows: pl.DataFrame) -> dict[str, Moments]:
        declared = self.plan.declared
        numbers = [
            plain_number(feature, name, declared).alias(output)
            for feature in self.plan.standardised
            for name, output in zip(feature.each, feature.outputs, strict=True)
        ]
        return {column.name: Moments.of(column) for column in rows.select(numbers)}

    def _relieve(self, counts: Sequence[KeyCount]) -> None:
        """Move the largest counts to disk until the rest fits."""
        held = {number: each.held_bytes for number, each in enumerate(counts)}
        while sum(held.values()) > _BYTES_PER_ROW * self.chunk_rows:
            largest = max(held, key=lambda number: held[number])
            counts[largest].spill()
            held[largest] = 0


def day_digest(declared: Declared, log: DayTable, day: DayPart) -> str:
    """Return what tells the rows of a day from any others, whatever their order and however they are cut into files.

    It holds within one version of Polars, which it names. Vectors, which nothing counts, are left out, and so are the
    numbers that an undeclared impression gets from its place in the log.
    """
    kept = [column.name for column in declared.data.columns if column.type != "vector"]
    own = [Columns.TIME, *([Columns.IMPRESSION] if declared.data.impression else [])]
    columns = list(dict.fromkeys([*own, *map(declared.in_log, kept)]))
    total = np.uint64(0)
    for name in day.files:
        rows = pl.read_parquet(log.folder / name, columns=columns, hive_partitioning=False).select(columns)
        total = np.add(total, rows.hash_rows(seed=1, seed_1=2, seed_2=3, seed_3=4).to_numpy().sum(dtype=np.uint64))
    return f"{pl.__version__}:{int(total):016x}"


T = TypeVar("T")


def _collect_into(lists: dict[str, list[T]], values: Mapping[str, T]) -> None:
    for name, value in values.items():
        lists.setdefault(name, []).append(value)
