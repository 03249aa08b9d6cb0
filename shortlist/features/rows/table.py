"""The feature table: the features that models read, row by row, with the columns that gates need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow.parquet as pq

from shortlist.contracts import DataError, Files
from shortlist.features.counts.tiles import Tiles
from shortlist.features.declared.plan import Plan, plan
from shortlist.features.engines.work import feature_work
from shortlist.features.rows.partitioned_table import TableJob, write_partitioned_table
from shortlist.features.rows.table_rows import Labels, needs_whole_days, read_parts, table_rows
from shortlist.features.rows.transform import Transformer
from shortlist.features.values.parallel_map import workers
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.gates import Gates
from shortlist.spec.runtime import Runtime
from shortlist.spec.split import split_days
from shortlist.storage.artefacts import atomic_folder, read_json
from shortlist.storage.tables import DayPart, DayTable, DayTableWriter
from shortlist.system.prefetch import parallel_map, prefetch
from shortlist.system.progress import progress

_SEARCHED_ROWS: Final = 1_000_000
"""Rows for whose keys a view that is too large for memory is searched at once: a search reads all its rows."""
_COMPRESSION: Final = "uncompressed"
"""Ids of a few bits each hardly get shorter: 2 M rows are written in 0.50 s of processor time, where lz4 takes 0.74,
and read, in every epoch, in 0.10 s instead of 0.18. Files are 1.6 times as large (206 MB for a text of 493 MB)."""


@feature_work(lambda out: DayTable.open(out, Files.TABLE))
def build_table(  # noqa: PLR0913 - the sections and folders of one step
    data: Data, features: Features, gates: Gates | None, runtime: Runtime, log: Path, fitted: Path, out: Path,
    *, preprocessing: Path | None = None, only_days: frozenset[date] | None = None,
) -> DayTable:  # fmt: skip
    """Write the feature table of a log, part by part.

    Args:
        data: The log's declaration.
        features: The operations.
        gates: Names the columns by which scores will be sliced.
        runtime: Engine and memory.
        log: Folder of the valid log.
        fitted: What `fit` wrote for the same declaration and log.
        out: Folder to write.
        preprocessing: Moments and vocabularies to use instead of the fitted ones: those that a model was trained with.
        only_days: Days to write; all by default.

    Returns:
        The table; its notes hold the columns that models read, and the split.

    Raises:
        DataError: `fitted` is of another declaration, or has not seen the log's days.
    """
    transformer = Transformer.load(fitted, runtime.engine, preprocessing)
    planned = transformer.plan
    table = DayTable.open(log, Files.LOG)
    _check_fit(planned, transformer.tiles, plan(data, features, gates), fitted, table)
    split = split_days(table.rows_by_day, data)
    parts = table.days if only_days is None else [table.by_day[day] for day in sorted(only_days)]
    notes = {"columns": transformer.columns(), "split": split.notes()}
    with atomic_folder(out) as staging, runtime.features.open() as partitions:
        if partitions.partitions > 1:
            job = TableJob(
                fitted, preprocessing, log, staging, runtime.engine, runtime.chunk_rows, _COMPRESSION, data.labels
            )
            write_partitioned_table(partitions, job, parts, notes)
        else:
            _write_table(staging, runtime.chunk_rows, table, parts, transformer, data.labels, notes)
    return DayTable.open(out, Files.TABLE)


def _write_table(
    folder: Path, chunk_rows: int, table: DayTable, parts: Sequence[DayPart], transformer: Transformer, labels: Labels,
    notes: dict[str, Any],
) -> None:  # fmt: skip
    writer = DayTableWriter(folder, Files.TABLE, chunk_rows, _COMPRESSION)
    with progress("feature table", sum(part.rows for part in parts)) as advance:
        for day, day_rows in groupby(_make_rows(table, parts, transformer, labels), key=itemgetter(0)):
            for _, rows in day_rows:
                writer.append(rows)
                advance(rows.height, str(day))
            writer.flush()
    writer.close(notes)


def _make_rows(
    table: DayTable, parts: Iterable[DayPart], transformer: Transformer, labels: Labels
) -> Iterator[tuple[date, pl.DataFrame]]:  # fmt: skip
    """Yield each day's rows of the table, part by part of the log."""

    def read() -> Iterator[tuple[date, Transformer, pl.DataFrame]]:
        whole = needs_whole_days(transformer.plan)
        for part in parts:
            for files in [part.files] if whole else _split_files(table, part):
                paths = [table.folder / name for name in files]
                searched = transformer if whole else transformer.with_searched_views(paths, part.day)
                for rows in read_parts(table, part.model_copy(update={"files": files}), transformer, labels):
                    yield part.day, searched, rows

    def make(part: tuple[date, Transformer, pl.DataFrame]) -> tuple[date, pl.DataFrame]:
        day, searched, rows = part
        return day, table_rows(searched.look_up(rows, day), transformer, labels)

    # Views are read from where the last part stopped, so that parts are computed one after the other.
    parallel_parts = 1 if transformer.plan.views else workers(transformer.engine)
    yield from parallel_map(make, prefetch(read()), parallel_parts)


def _split_files(table: DayTable, part: DayPart) -> Iterator[tuple[str, ...]]:
    """Yield a day's files in groups of about `_SEARCHED_ROWS` rows, one file at least."""
    group: list[str] = []
    rows = 0
    for name in part.files:
        group.append(name)
        rows += pq.read_metadata(table.folder / name).num_rows
        if rows >= _SEARCHED_ROWS:
            yield tuple(group)
            group, rows = [], 0
    if group:
        yield tuple(group)


def _check_fit(fitted: Plan, tiles: Tiles, declared_plan: Plan, folder: Path, log: DayTable) -> None:
    if (fitted.features, fitted.slices) != (declared_plan.features, declared_plan.slices):
        raise DataError(f"{folder}: fitted for other features or slices than the declared ones; fit again")
    if fitted.streaming != declared_plan.streaming:
        raise DataError(f"{folder}: fitted with another features.streaming than declared; fit again")
    if tiles != declared_plan.tiles:
        raise DataError(f"{folder}: fitted with other tiles or another outcome_delay than declared; fit again")
    counted = set(read_json(folder / Files.FEATURES)["days"])
    # What happened on the last day is read by none of its rows, unless tiles are shorter.
    for part in log.days if declared_plan.tiles.within_days else log.days[:-1]:
        if part.day.isoformat() not in counted:
            raise DataError(
                f"{folder}: {part.day} of the log was not counted, so later rows would see too little; fit again"
            )
