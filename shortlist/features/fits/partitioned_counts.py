"""Counting days of a log by partitions of their keys: tasks count some files each, and others merge ranges of keys.

Every function that a task runs depends on its arguments and on files that never change, so that it can run again on
another machine. The files of statistics are, byte for byte, those of `LogCounter`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import polars as pl

from shortlist.contracts import Files
from shortlist.features.counts.moments import NumberMoments
from shortlist.features.counts.statistics import COMPRESSION, count, countable, merge_frames, sizes
from shortlist.features.declared.plan import Plan
from shortlist.features.fits.counting import DayRecord, LogCounter, collect_into
from shortlist.features.stored_views.lookup import ViewFile
from shortlist.features.stored_views.views import day_file
from shortlist.features.values.ranges import write_frames
from shortlist.storage.tables import DayPart, DayTable
from shortlist.system.partitions import Block, Blocks, PartitionEngine, map_partitions, transpose
from shortlist.system.query_engine import Engine

_FILES_PER_TASK: Final = 4
"""Files of the log that a task counts. Their counts are merged before they are sent: fewer blocks, fewer rows."""
_SAMPLED_FILES: Final = 32
_SAMPLED_KEYS: Final = 4_096
"""Keys of a file from which the ranges are cut."""
_TASKS_PER_WORKER: Final = 4
"""Tasks of a wave of days, per worker, at least: their counts are in memory until they are merged."""

Cuts = Mapping[str, pl.Series]
"""By view the first keys of all ranges but the first, in order."""


class CountedLog(NamedTuple):
    """What a task needs to count files of a log."""

    plan: Plan
    log: Path
    """Folder of the valid log."""
    views: Path
    """Folder of the views of side tables."""
    chunk_rows: int
    engine: Engine

    def counter(self) -> LogCounter:
        """Return the counter, the same one for all tasks of a worker."""
        return _load_counter(self.log, self.views, self.chunk_rows, self.engine, _Hashed(self.plan))


class _PartCounts(NamedTuple):
    """The moments and sizes of some parts of a day, in order."""

    moments: dict[str, list[NumberMoments]]
    totals: dict[str, list[float]]


def count_partitioned(
    partitions: PartitionEngine, counted_log: CountedLog, days: Sequence[DayPart], statistics: Path
) -> dict[date, DayRecord]:
    """Write the statistics of days; return the record of each.

    Args:
        partitions: The engine.
        counted_log: The log and its plan.
        days: The days to count.
        statistics: Folder to write.
    """
    views = counted_log.plan.counted_views
    if not days:
        return {}
    cuts = _cut_keys(partitions, counted_log, days)
    counter = counted_log.counter()
    records = {}
    for wave in _waves(days, _TASKS_PER_WORKER * partitions.workers):
        tasks = [(counted_log, part, cuts, partitions.partitions) for day in wave for part in _split_files(day)]
        counted = partitions.run(count_files, tasks, outputs=partitions.partitions + 1)
        blocks_by_day: dict[date, list[list[Block]]] = {}
        for (_, part, *_), blocks in zip(tasks, counted, strict=True):
            blocks_by_day.setdefault(part.day, []).append(blocks)
        merged = partitions.run(
            merge_counts,
            [(counted_log,)] * (len(wave) * partitions.partitions),
            [column for day in wave for column in transpose(blocks_by_day[day.day])[:-1]],
            outputs=len(views),
        )
        writing, ranges = [], []
        for number, day in enumerate(wave):
            first = number * partitions.partitions
            for view, blocks in zip(views, transpose(merged[first : first + partitions.partitions]), strict=True):
                writing.append((day_file(statistics, view.name, day.day),))
                ranges.append(blocks)
        partitions.run(write_counts, writing, ranges)
        for day in wave:
            moments: dict[str, list[NumberMoments]] = {}
            totals: dict[str, list[float]] = {}
            for part_counts in partitions.fetch([blocks[-1] for blocks in blocks_by_day[day.day]]):
                for name, values in part_counts.moments.items():
                    moments.setdefault(name, []).extend(values)
                for name, numbers in part_counts.totals.items():
                    totals.setdefault(name, []).extend(numbers)
            records[day.day] = counter.record(day, moments, totals)
    return records


def count_files(counted_log: CountedLog, part: DayPart, cuts: Cuts, partitions: int) -> list[Any]:
    """Return the statistics of some files of a day by range of keys, per range a frame per view; then `_PartCounts`."""
    plan, engine = counted_log.plan, counted_log.engine
    counter = counted_log.counter()
    frames: list[list[pl.DataFrame]] = [[] for _ in plan.counted_views]
    part_counts = _PartCounts({}, {})
    for _, rows in counter.parts([part]):
        countable_rows = countable(rows, plan.counted_views, plan.declared)
        for held, counted in zip(frames, count(countable_rows, plan.counted_views, engine), strict=True):
            held.append(counted)
        collect_into(part_counts.moments, counter.moments(rows))
        collect_into(part_counts.totals, sizes(countable_rows, plan.counted_views))
    ranges: list[list[pl.DataFrame]] = [[] for _ in range(partitions)]
    for view, held in zip(plan.counted_views, frames, strict=True):
        merged = merge_frames(held, view, engine)
        starts = [0, *merged[view.keys[0]].search_sorted(cuts[view.name], side="left"), merged.height]
        for number in range(partitions):
            is_used = number < len(starts) - 1
            rows_of_range = merged.slice(starts[number], starts[number + 1] - starts[number]) if is_used else merged[:0]
            ranges[number].append(rows_of_range)
    return [*ranges, part_counts]


def merge_counts(counted_log: CountedLog, blocks: Blocks) -> list[pl.DataFrame]:
    """Return the statistics of a range of keys, a frame per view, from those of all files of a day."""
    views = counted_log.plan.counted_views
    frames_by_view = zip(*blocks, strict=True)
    return [
        merge_frames(list(frames), view, counted_log.engine) for view, frames in zip(views, frames_by_view, strict=True)
    ]


def write_counts(path: Path, blocks: Blocks) -> int:
    """Write the statistics of a day, given range by range; return their rows."""
    return write_frames(path, blocks, COMPRESSION)


def sample_keys(counted_log: CountedLog, part: DayPart) -> list[pl.Series]:
    """Return some of the first keys of every view, from the first rows of a file."""
    plan = counted_log.plan
    _, rows = next(counted_log.counter().parts([part]))
    counted = count(countable(rows, plan.counted_views, plan.declared), plan.counted_views, counted_log.engine)
    keys = [frame[view.keys[0]].sort() for view, frame in zip(plan.counted_views, counted, strict=True)]
    return [values.gather_every(max(1, len(values) // _SAMPLED_KEYS)) for values in keys]


def _cut_keys(partitions: PartitionEngine, counted_log: CountedLog, days: Sequence[DayPart]) -> Cuts:
    """Return where the keys of every view are cut into ranges with about as many distinct keys each."""
    files = [day.model_copy(update={"files": (name,)}) for day in days for name in day.files]
    sampled_files = files[:: max(1, len(files) // _SAMPLED_FILES)]
    samples = list(map_partitions(partitions, sample_keys, [(counted_log, part) for part in sampled_files]))
    cuts = {}
    for view, keys in zip(counted_log.plan.counted_views, zip(*samples, strict=True), strict=True):
        ordered = pl.concat(keys).sort()
        count_of_ranges = partitions.partitions
        positions = [len(ordered) * number // count_of_ranges for number in range(1, count_of_ranges)]
        cuts[view.name] = ordered.gather(positions if len(ordered) else []).unique(maintain_order=True)
    return cuts


def _split_files(day: DayPart) -> Iterator[DayPart]:
    """Yield a day in parts of some files each."""
    for first in range(0, len(day.files), _FILES_PER_TASK):
        yield day.model_copy(update={"files": day.files[first : first + _FILES_PER_TASK]})


def _waves(days: Sequence[DayPart], tasks: int) -> Iterator[list[DayPart]]:
    """Yield days in groups of at least so many tasks."""
    wave: list[DayPart] = []
    for day in days:
        wave.append(day)
        if sum(-(-len(held.files) // _FILES_PER_TASK) for held in wave) >= tasks:
            yield wave
            wave = []
    if wave:
        yield wave


class _Hashed:
    """A plan as a key of a cache: plans of one step with the same description of their counts are equal."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._key = str(plan.counting())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashed) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(maxsize=1)
def _load_counter(
    log: Path, views: Path, chunk_rows: int, engine: Engine, hashed: _Hashed
) -> LogCounter:  # fmt: skip
    plan = hashed.plan
    sides = [
        ViewFile(views / f"{view.name}.parquet", view, 0, plan.declared.timezone, engine) for view in plan.counted_sides
    ]
    table = DayTable.open(log, Files.LOG)
    return LogCounter(plan, table, sides, Path(), Path(), chunk_rows, engine)
