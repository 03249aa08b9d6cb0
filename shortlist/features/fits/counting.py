"""Counting a log day by day: the statistics, moments and sizes of a plan."""

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

from shortlist.features.counts.integer_count import IntegerCount, is_large
from shortlist.features.counts.keyed import KeyedView
from shortlist.features.counts.moments import NumberMoments, sum_moments
from shortlist.features.counts.statistics import KeyCount, count, countable, sizes
from shortlist.features.declared.plan import Plan
from shortlist.features.stored_views.lookup import ViewFile, gather_answers, lookup_keys
from shortlist.features.stored_views.views import day_file
from shortlist.features.values.parallel_map import parallel_map
from shortlist.spec.data import Data
from shortlist.storage.row_digest import RowDigest, read_noted_digest, row_columns, row_hashes
from shortlist.storage.tables import DayPart, DayTable, iter_row_groups
from shortlist.system.execution import count_cpu_operation
from shortlist.system.prefetch import prefetch
from shortlist.system.progress import Advance
from shortlist.system.query_engine import Engine, resolve_engine

_BYTES_PER_ROW = 256
"""Memory of the counts, in bytes per row of a part; beyond it, the largest counts go to disk."""


@dataclass(frozen=True)
class DayRecord:
    """The record of a counted day, besides its statistics."""

    rows: int
    moments: Mapping[str, NumberMoments]
    """Moments of the standardised numbers, by feature name."""
    sizes: Mapping[str, float]
    """Sum of absolute values of every measure that is summed."""
    digest: str
    """Digest of the day's rows."""

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Self:
        """Return the record that `to_json` returned."""
        moments = {name: NumberMoments(**values) for name, values in saved["moments"].items()}
        return cls(saved["rows"], moments, saved["sizes"], saved["digest"])

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class LogCounter:
    """Counts days of a log into a folder of statistics."""

    plan: Plan
    log: DayTable
    sides: Sequence[ViewFile]
    """Views of the side tables with columns to count."""
    statistics: Path
    scratch: Path
    chunk_rows: int
    engine: Engine

    def count(self, days: Iterable[DayPart], advance: Advance) -> dict[date, DayRecord]:
        """Write the statistics of days, reading them part by part; return the record of each."""
        parts_by_day = groupby(prefetch(self.parts(days)), key=itemgetter(0))
        counts = [self._key_count(view) for view in self.plan.counted_views]
        return {day.day: self._count(day, (rows for _, rows in parts), counts, advance) for day, parts in parts_by_day}

    def _count(
        self, day: DayPart, parts: Iterable[pl.DataFrame], counts: Sequence[KeyCount], advance: Advance
    ) -> DayRecord:  # fmt: skip
        integer_counts = [key_count for key_count in counts if isinstance(key_count, IntegerCount)]
        other_counts = [key_count for key_count in counts if not isinstance(key_count, IntegerCount)]
        moments: dict[str, list[NumberMoments]] = {}
        totals: dict[str, list[float]] = {}
        for rows in parts:
            countable_rows = countable(rows, self.plan.counted_views, self.plan.declared)
            for _ in parallel_map(partial(IntegerCount.add_rows, rows=countable_rows), integer_counts, self.engine):
                pass
            part_statistics = count(countable_rows, [key_count.view for key_count in other_counts], self.engine)
            for key_count, statistics in zip(other_counts, part_statistics, strict=True):
                key_count.add(statistics)
            self._spill_largest(counts)
            collect_into(moments, self.moments(rows))
            collect_into(totals, sizes(countable_rows, self.plan.counted_views))
            advance(rows.height, str(day.day))
        self._finish(day, counts)
        return self.record(day, moments, totals)

    def record(
        self, day: DayPart, moments: Mapping[str, Sequence[NumberMoments]], totals: Mapping[str, Sequence[float]]
    ) -> DayRecord:
        """Return the record of a day, from the moments and the sizes of its parts in order."""
        return DayRecord(
            rows=day.rows,
            moments={name: sum_moments(parts) for name, parts in moments.items()},
            sizes={name: sum(parts) for name, parts in totals.items()},
            digest=day_digest(self.plan.declared.data, self.log, day),
        )

    def _key_count(self, view: KeyedView) -> KeyCount:
        declared, engine = self.plan.declared, self.engine
        compiled = is_large(self.log.rows, self.plan.counted_views, declared, engine)
        count_class = IntegerCount if compiled and IntegerCount.suits(view, declared, engine) else KeyCount
        return count_class(view, self.scratch, self.engine)

    def _finish(self, day: DayPart, counts: Sequence[KeyCount]) -> None:
        """Write the counts of a day: those in memory in parallel, then those on disk, each in bounded memory."""
        in_memory, on_disk = (
            tuple(key_count for key_count in counts if key_count.is_spilled == is_spilled)
            for is_spilled in (False, True)
        )
        files = {key_count.view.name: day_file(self.statistics, key_count.view.name, day.day) for key_count in counts}

        def finish(key_count: KeyCount) -> None:
            key_count.finish(files[key_count.view.name], self.chunk_rows)

        for _ in chain(parallel_map(finish, in_memory, self.engine), map(finish, on_disk)):
            pass

    def parts(self, days: Iterable[DayPart]) -> Iterator[tuple[DayPart, pl.DataFrame]]:
        """Yield the rows of days part by part, with the columns of their side tables."""
        columns = list(self.plan.counted_columns)
        for day in days:
            for name in day.files:
                # Side tables are searched once for every piece; the smallest good piece for a GPU was not measured.
                whole = bool(self.sides) or resolve_engine(self.engine) == "gpu"
                for rows in iter_row_groups(self.log.folder / name, columns, whole=whole):
                    tiled = rows.with_columns(self.plan.tiles.ends(day.day)) if self.plan.tiles.within_days else rows
                    yield day, self._with_sides(tiled, day.day)

    def _with_sides(self, rows: pl.DataFrame, day: date) -> pl.DataFrame:
        for side in self.sides:
            keys = lookup_keys(rows, side.view, self.plan.declared)
            rows = rows.hstack(gather_answers(side.view, keys, side.answer(keys, day), rows.height))
        return rows

    def moments(self, rows: pl.DataFrame) -> dict[str, NumberMoments]:
        """Return the moments of the standardised numbers of some rows, by feature name."""
        count_cpu_operation("moments of numbers")
        numbers = [number.value.alias(number.output) for number in self.plan.standardised_numbers]
        return {column.name: NumberMoments.from_values(column) for column in rows.select(numbers)}

    def _spill_largest(self, counts: Sequence[KeyCount]) -> None:
        """Move the largest counts to disk until the rest fits."""
        held_bytes = {number: key_count.held_bytes for number, key_count in enumerate(counts)}
        while sum(held_bytes.values()) > _BYTES_PER_ROW * self.chunk_rows:
            largest = max(held_bytes, key=lambda number: held_bytes[number])
            counts[largest].spill()
            held_bytes[largest] = 0


def day_digest(data: Data, log: DayTable, day: DayPart) -> str:
    """Return the digest of a day's rows: the one in the log's notes, otherwise that of the rows as they are read."""
    digest_in_notes = read_noted_digest(log.notes, day.day.isoformat())
    if digest_in_notes is not None:
        return digest_in_notes
    columns, digest = row_columns(data), RowDigest()
    for name in day.files:
        rows = pl.read_parquet(log.folder / name, columns=columns, hive_partitioning=False)
        digest.add(row_hashes(rows.select(columns)))
    return str(digest)


T = TypeVar("T")


def collect_into(lists: dict[str, list[T]], values: Mapping[str, T]) -> None:
    """Append each value to the list of its name."""
    for name, value in values.items():
        lists.setdefault(name, []).append(value)
