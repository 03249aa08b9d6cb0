"""Counting a log day by day: the statistics, moments and sizes of what a plan asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Self, TypeVar

import polars as pl

from shortlist.features.integer_count import IntegerCount, is_large
from shortlist.features.keyed import KeyedView
from shortlist.features.lookup import ViewFile, gathered, lookup_keys
from shortlist.features.moments import Moments, total
from shortlist.features.parallel_map import parallel_map
from shortlist.features.plan import Plan
from shortlist.features.statistics import KeyCount, count, countable, sizes
from shortlist.features.views import day_file
from shortlist.spec.data import Data
from shortlist.storage.row_digest import RowDigest, noted, row_columns, row_hashes
from shortlist.storage.tables import DayPart, DayTable, pieces_of
from shortlist.system.execution import on_cpu
from shortlist.system.prefetch import prefetch
from shortlist.system.progress import Advance
from shortlist.system.query_engine import Engine, resolve

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

    def count(self, days: Iterable[DayPart], advance: Advance) -> dict[date, DayRecord]:
        """Write the statistics of days, reading them part by part; return what else is kept of each."""
        read = groupby(prefetch(self._parts(days)), key=itemgetter(0))
        counts = [self._key_count(view) for view in self.plan.counted]
        return {day.day: self._count(day, (rows for _, rows in parts), counts, advance) for day, parts in read}

    def _count(
        self, day: DayPart, parts: Iterable[pl.DataFrame], counts: Sequence[KeyCount], advance: Advance
    ) -> DayRecord:  # fmt: skip
        tallies = [each for each in counts if isinstance(each, IntegerCount)]
        others = [each for each in counts if not isinstance(each, IntegerCount)]
        moments: dict[str, list[Moments]] = {}
        totals: dict[str, list[float]] = {}
        for rows in parts:
            ready = countable(rows, self.plan.counted, self.plan.declared)
            for _ in parallel_map(partial(IntegerCount.add_rows, rows=ready), tallies, self.engine):
                pass
            found = count(ready, [each.view for each in others], self.engine)
            for counted, part in zip(others, found, strict=True):
                counted.add(part)
            self._relieve(counts)
            _collect_into(moments, self._moments(rows))
            _collect_into(totals, sizes(ready, self.plan.counted))
            advance(rows.height, str(day.day))
        self._finish(day, counts)
        return DayRecord(
            rows=day.rows,
            moments={name: total(parts) for name, parts in moments.items()},
            sizes={name: sum(parts) for name, parts in totals.items()},
            digest=day_digest(self.plan.declared.data, self.log, day),
        )

    def _key_count(self, view: KeyedView) -> KeyCount:
        declared, engine = self.plan.declared, self.engine
        compiled = is_large(self.log.rows, self.plan.counted, declared, engine)
        kind = IntegerCount if compiled and IntegerCount.suits(view, declared, engine) else KeyCount
        return kind(view, self.scratch, self.engine)

    def _finish(self, day: DayPart, counts: Sequence[KeyCount]) -> None:
        """Write the counts of a day: those in memory side by side, then those on disk, each in bounded memory."""
        held, spilled = (tuple(each for each in counts if each.is_spilled == there) for there in (False, True))
        files = {each.view.name: day_file(self.statistics, each.view.name, day.day) for each in counts}

        def finish(counted: KeyCount) -> None:
            counted.finish(files[counted.view.name], self.chunk_rows)

        for _ in chain(parallel_map(finish, held, self.engine), map(finish, spilled)):
            pass

    def _parts(self, days: Iterable[DayPart]) -> Iterator[tuple[DayPart, pl.DataFrame]]:
        columns = list(self.plan.counted_columns)
        for day in days:
            for name in day.files:
                # Side tables are searched once for every piece; how small these may be for a GPU was not measured.
                whole = bool(self.sides) or resolve(self.engine) == "gpu"
                for rows in pieces_of(self.log.folder / name, columns, whole=whole):
                    tiled = rows.with_columns(self.plan.tiles.ends(day.day)) if self.plan.tiles.within_days else rows
                    yield day, self._with_sides(tiled, day.day)

    def _with_sides(self, rows: pl.DataFrame, day: date) -> pl.DataFrame:
        for side in self.sides:
            asked = lookup_keys(rows, side.view, self.plan.declared)
            rows = rows.hstack(gathered(side.view, asked, side.answer(asked, day), rows.height))
        return rows

    def _moments(self, rows: pl.DataFrame) -> dict[str, Moments]:
        on_cpu("moments of numbers")
        numbers = [each.value.alias(each.output) for each in self.plan.measured]
        return {column.name: Moments.of(column) for column in rows.select(numbers)}

    def _relieve(self, counts: Sequence[KeyCount]) -> None:
        """Move the largest counts to disk until the rest fits."""
        held = {number: each.held_bytes for number, each in enumerate(counts)}
        while sum(held.values()) > _BYTES_PER_ROW * self.chunk_rows:
            largest = max(held, key=lambda number: held[number])
            counts[largest].spill()
            held[largest] = 0


def day_digest(data: Data, log: DayTable, day: DayPart) -> str:
    """Return the digest of a day's rows: as the log notes it, otherwise of the rows as they are read."""
    known = noted(log.notes, day.day.isoformat())
    if known is not None:
        return known
    columns, digest = row_columns(data), RowDigest()
    for name in day.files:
        rows = pl.read_parquet(log.folder / name, columns=columns, hive_partitioning=False)
        digest.add(row_hashes(rows.select(columns)))
    return str(digest)


T = TypeVar("T")


def _collect_into(lists: dict[str, list[T]], values: Mapping[str, T]) -> None:
    for name, value in values.items():
        lists.setdefault(name, []).append(value)
