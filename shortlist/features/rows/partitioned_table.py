"""The feature table by groups of its files: each is written by one task, from the rows of the log that it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import polars as pl

from shortlist.contracts import Columns, Files
from shortlist.features.declared.plan import Plan, PlannedView
from shortlist.features.rows.table_rows import Labels, columns_to_read, needs_whole_days, read_parts, table_rows
from shortlist.features.rows.transform import Transformer
from shortlist.features.stored_views.lookup import is_large_view
from shortlist.features.stored_views.partitioned_lookup import (
    PreparedAnswers,
    answer_keys,
    answers_by_part,
    scatter_views,
    split_keys,
)
from shortlist.features.stored_views.view_index import StoredView, ViewIndex
from shortlist.storage.artefacts import write_json
from shortlist.storage.tables import Compression, DayPart, DayTable, file_name, write_file
from shortlist.system.partitions import Block, Blocks, PartitionEngine, transpose
from shortlist.system.query_engine import Engine

_FILES_PER_GROUP: Final = 4
"""Files of the table that a task writes, one after the other."""
_GROUPS_PER_WORKER: Final = 8
"""Groups of a wave, per worker: their keys and answers are in memory until their rows are written."""


class TableJob(NamedTuple):
    """What a task needs to write files of a table."""

    fitted: Path
    preprocessing: Path | None
    log: Path
    out: Path
    """Folder of the table."""
    engine: Engine
    chunk_rows: int
    compression: Compression
    labels: Labels

    def transformer(self) -> Transformer:
        """Return the transformer, the same one for all tasks of a worker: it reads views from where it stopped."""
        return _load_transformer(self.fitted, self.engine, self.preprocessing)


class TableGroup(NamedTuple):
    """Some files of a day of the table."""

    day: DayPart
    """The day of the log."""
    first_file: int = 0
    files: int | None = None
    """Number of files; None: the whole day, whose rows must be read together."""


def write_partitioned_table(
    partitions: PartitionEngine, job: TableJob, days: Sequence[DayPart], notes: dict[str, Any]
) -> None:
    """Write a table, byte for byte as one process does.

    Args:
        partitions: The engine.
        job: The table.
        days: Days of the log.
        notes: Notes of the table.
    """
    planned, index = job.transformer().plan, ViewIndex.read(job.fitted / "views")
    groups = list(_groups(planned, days, job.chunk_rows))
    large_views = _large_views(planned, index)
    scattered = {view.name: scatter_views(partitions, index.path(view), view) for view in large_views}
    written: dict[date, list[tuple[str, int, int]]] = {}
    wave_size = _GROUPS_PER_WORKER * partitions.workers
    for first in range(0, len(groups), wave_size):
        wave = groups[first : first + wave_size]
        answers: dict[str, list[list[Block]]] = {}
        for view in large_views:
            needed = [name for name in _needed_views(planned, view.name) if name in answers]
            tasks = [(job, group, view, needed, partitions.partitions) for group in wave]
            keys = partitions.run(
                scatter_keys, tasks, _blocks_of(answers, needed, len(wave)), outputs=partitions.partitions
            )
            view_blocks = scattered[view.name]
            answered = partitions.run(
                answer_keys,
                [(view, len(blocks), len(wave)) for blocks in view_blocks],
                [[*rows, *keys_of_wave] for rows, keys_of_wave in zip(view_blocks, transpose(keys), strict=True)],
                outputs=len(wave),
            )
            answers[view.name] = transpose(answered)
        names = list(answers)
        files = partitions.run(
            write_group,
            [(job, group, names, partitions.partitions) for group in wave],
            _blocks_of(answers, names, len(wave)),
        )
        for group, group_files in zip(wave, partitions.fetch([block for (block,) in files]), strict=True):
            written.setdefault(group.day.day, []).extend(group_files)
    parts = tuple(
        DayPart(
            day=day,
            rows=sum(rows for _, rows, _ in files_of_day),
            positives=sum(positives for *_, positives in files_of_day),
            files=tuple(name for name, *_ in files_of_day),
        )
        for day, files_of_day in sorted(written.items())
    )
    table = DayTable(folder=job.out, days=parts, notes=notes)
    write_json(job.out / Files.TABLE, table.model_dump(mode="json"))


def scatter_keys(
    job: TableJob, group: TableGroup, view: StoredView, needed: Sequence[str], partitions: int, blocks: Blocks
) -> list[pl.DataFrame]:
    """Return the keys that the rows of a group look up in a view, by partition.

    Args:
        job: The table.
        group: The group.
        view: The view.
        needed: Names of the large views that hold columns of its keys.
        partitions: Number of partitions.
        blocks: Answers of those views for the group, all partitions of a view after the other.
    """
    transformer = job.transformer()
    parts = list(_read_group(job, group, transformer))
    prepared = _prepared(transformer.plan, needed, partitions, len(parts), blocks)
    keys = []
    planned_view = _planned(transformer.plan, view.name)
    for number, rows in enumerate(parts):
        part_transformer = _with_answers(transformer, prepared, number)
        gathered = rows
        for name in _needed_views(transformer.plan, view.name):
            needed_view = _planned(transformer.plan, name)
            needed_keys = part_transformer.lookup_keys(needed_view, gathered)
            answers = part_transformer.answer(name, needed_keys, group.day.day)
            gathered = part_transformer.gather(needed_view, gathered, needed_keys, answers)
        keys.append(part_transformer.lookup_keys(planned_view, gathered))
    timezone = transformer.plan.declared.timezone
    return split_keys(keys, view, [group.day.day] * len(keys), timezone, partitions)


def write_group(
    job: TableJob, group: TableGroup, names: Sequence[str], partitions: int, blocks: Blocks
) -> list[tuple[str, int, int]]:
    """Write the files of a group; return name, rows and positives of each.

    Args:
        job: The table.
        group: The group.
        names: Names of the large views.
        partitions: Number of partitions.
        blocks: Answers of those views for the group, all partitions of a view after the other.
    """
    transformer = job.transformer()
    parts = -(-group.day.rows // job.chunk_rows) + len(group.day.files) if group.files is None else group.files
    prepared = _prepared(transformer.plan, names, partitions, parts, blocks)

    def frames() -> Iterator[pl.DataFrame]:
        for number, rows in enumerate(_read_group(job, group, transformer)):
            part_transformer = _with_answers(transformer, prepared, number)
            yield table_rows(part_transformer.look_up(rows, group.day.day), part_transformer, job.labels)

    written = []
    for number, rows in enumerate(_cut_files(frames(), job.chunk_rows)):
        name = file_name(group.day.day, group.first_file + number)
        (job.out / name).parent.mkdir(parents=True, exist_ok=True)
        write_file(job.out / name, rows, job.compression)
        written.append((name, rows.height, int((rows[Columns.LABEL] == 1).sum())))
    return written


def _groups(planned: Plan, days: Sequence[DayPart], chunk_rows: int) -> Iterator[TableGroup]:
    for day in days:
        if needs_whole_days(planned):
            yield TableGroup(day)
            continue
        files = -(-day.rows // chunk_rows)
        for first in range(0, files, _FILES_PER_GROUP):
            yield TableGroup(day, first, min(_FILES_PER_GROUP, files - first))


def _read_group(job: TableJob, group: TableGroup, transformer: Transformer) -> Iterator[pl.DataFrame]:
    """Yield the rows of a group part by part: those of a file of the table each, or those of `read_parts`."""
    log = DayTable.open(job.log, Files.LOG)
    if group.files is None:
        yield from read_parts(log, group.day, transformer, job.labels)
        return
    schema = pl.read_parquet_schema(log.folder / group.day.files[0])
    columns = columns_to_read(transformer.plan, schema, job.labels)
    rows = log.scan({group.day.day})
    for number in range(group.first_file, group.first_file + group.files):
        yield rows.slice(number * job.chunk_rows, job.chunk_rows).select(columns).collect()


def _cut_files(frames: Iterator[pl.DataFrame], chunk_rows: int) -> Iterator[pl.DataFrame]:
    """Yield the same rows, `chunk_rows` at a time."""
    buffered: list[pl.DataFrame] = []
    for frame in frames:
        buffered.append(frame)
        while sum(held.height for held in buffered) >= chunk_rows:
            rows = pl.concat(buffered)
            yield rows.head(chunk_rows)
            buffered = [rows.slice(chunk_rows)]
    if sum(held.height for held in buffered):
        yield pl.concat(buffered)


def _large_views(planned: Plan, index: ViewIndex) -> list[StoredView]:
    """Return the views that are looked up by partition, in the order of the plan.

    Side tables of listed items are not among them: the items are looked up when the lists are there.
    """
    listed = {item.table for joined in planned.joined_lists for item in joined.items}
    views = (index.view(view.name) for view in planned.views if view.name not in listed)
    return [view for view in views if is_large_view(view.newest_keys)]


def _needed_views(planned: Plan, name: str) -> list[str]:
    """Return the side tables' views that hold columns of a view's keys, in the order in which they are looked up."""
    owners = (planned.declared.side_table_of(key) for key in _planned(planned, name).keys if key != Columns.GLOBAL_KEY)
    tables = {table.name for table in owners if table is not None and table.name != name}
    needed = tables.union(*(_needed_views(planned, table) for table in tables))
    return [static.name for static in planned.static_views if static.name in needed]


def _planned(planned: Plan, name: str) -> PlannedView:
    return next(view for view in planned.views if view.name == name)


def _prepared(
    planned: Plan, names: Sequence[str], partitions: int, parts: int, blocks: Blocks
) -> dict[str, list[PreparedAnswers]]:
    return {name: answers_by_part(list(islice(blocks, partitions)), parts, _planned(planned, name)) for name in names}


def _with_answers(
    transformer: Transformer, prepared: dict[str, list[PreparedAnswers]], part: int
) -> Transformer:  # fmt: skip
    files = {**transformer.files, **{name: answers[part] for name, answers in prepared.items()}}
    return replace(transformer, files=files)


def _blocks_of(answers: dict[str, list[list[Block]]], names: Sequence[str], groups: int) -> list[list[Block]]:
    """Return per group the answers of some views, all partitions of a view after the other."""
    return [[block for name in names for block in answers[name][group]] for group in range(groups)]


@lru_cache(maxsize=1)
def _load_transformer(fitted: Path, engine: Engine, preprocessing: Path | None) -> Transformer:
    return Transformer.load(fitted, engine, preprocessing)
