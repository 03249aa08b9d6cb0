"""Ingest a declared log: its files as a typed table, partitioned by day."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import polars as pl

from shortlist.contracts import Columns, DataError, best_column
from shortlist.data.base_rows import BaseRows, append_collected
from shortlist.data.collected import CollectedRows
from shortlist.data.file_groups import FileGroup
from shortlist.data.log_notices import LACKING, emit_notices, lacking_column_notices, unread_file_notices
from shortlist.data.reading.blocks import (
    check_shared_fields,
    count_file_rows,
    find_lacking_columns,
    read_blocks,
    read_first_blocks,
)
from shortlist.data.reading.layout import RowBlock
from shortlist.data.reading.log_rows import LogRows, log_layout
from shortlist.data.reading.sources import InputFile
from shortlist.data.rules.quarantine import QuarantineWriter
from shortlist.data.side_tables.ingest import ingest_side_table
from shortlist.spec.data import Column, Data, FileSource, RowClock
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import atomic_folder
from shortlist.storage.joined_tables import APPENDED, appended_as_json
from shortlist.storage.side_tables import SIDE_FOLDER, side_path
from shortlist.storage.tables import DayTable, DayTableWriter
from shortlist.system.prefetch import prefetch

RAW_INDEX = "raw.json"
"""Index of the raw table."""
REJECTED = "rejected.parquet"
"""Rows that could not be parsed, beside the raw table."""
TAIL: Final = "tail.parquet"
"""Time and impression of a group's newest rows (`BaseRows.tail`); only where rows are collected."""
SCHEMA: Final = "schema.parquet"
"""Schema of a group's rows (`BaseRows.schema`), as a file without rows; likewise."""

_MIN_FILE_ROWS: Final = 200
"""Fewest rows that are read of each file when only the first rows are."""
_GENERATED = FileSource(path="impressions", format="parquet")
_ALL_FILES = FileGroup(number=0, groups=1)


def ingest(
    data: Data,
    location: Path,
    out: Path,
    runtime: Runtime,
    max_rows: int | None = None,
    collected: CollectedRows | None = None,
) -> DayTable:
    """Write a log and its side tables with their declared types, and the rejected rows beside them.

    Args:
        data: The spec's data section.
        location: The data path given to the run: a file or a glob is the log itself; a folder holds `source.path` and
            the side tables' paths. A generated log needs none.
        out: Folder to write; it appears whole or not at all.
        runtime: Bounds the rows held at once.
        max_rows: Read only the first rows of each file, about this many of all files together; None: read all.
        collected: Rows of live traffic that are appended to those of the files.

    Returns:
        The raw table (index `RAW_INDEX`). Its notes: raw_rows (including rejected ones), rejected_rows, by_rule (of the
        rejected rows), and side: raw_rows and rejected_rows of each side table; with `max_rows` also whole: whether the
        log has no more rows.

    Raises:
        DataError: The files are missing, unreadable, or not as declared in the spec; or collected rows are not later
            than all rows of the files.
    """
    with _inputs(data, location, out) as inputs, atomic_folder(out) as staging:
        writer = DayTableWriter(staging, RAW_INDEX, runtime.chunk_rows)
        with QuarantineWriter(staging / REJECTED) as rejected:
            side_counts = _ingest_side_tables(data, inputs.folder, location, staging, rejected, runtime)
            ingested = _ingest_log(data, inputs, _ALL_FILES, writer, rejected, runtime, max_rows)
            check_has_rows(ingested.rows, inputs.place)
            live_counts = append_collected(collected, ingested.base, writer, rejected) if collected else (0, 0)
        notes = build_raw_notes(
            ingested.rows - ingested.base.left_out, rejected.by_rule, side_counts, live_counts if collected else None
        )
        notes |= {LACKING: _lacking_counts(ingested)} if ingested.lacking else {}
        writer.close(notes if max_rows is None else {**notes, "whole": ingested.is_complete})
    if max_rows is None:
        emit_notices((*lacking_column_notices(notes), *unread_file_notices(data, location)))
    return DayTable.open(out, RAW_INDEX)


def ingest_files(data: Data, location: Path, group: FileGroup, out: Path, runtime: Runtime) -> DayTable:
    """Write the rows of some files of a log, of which `join_raw_log` makes the raw log; the first group's side tables.

    Args:
        data: The spec's data section.
        location: As for `ingest`.
        group: The files, as `partition_files` gives them.
        out: Folder to write; it appears whole or not at all.
        runtime: Bounds the rows held at once.

    Returns:
        The rows (index `RAW_INDEX`). Its notes say what `join_raw_log` must know; without a declared impression, rows
        are numbered from `group.first_row` on.

    Raises:
        DataError: As `ingest`.
    """
    with _inputs(data, location, out) as inputs, atomic_folder(out) as staging:
        writer = DayTableWriter(staging, RAW_INDEX, runtime.chunk_rows)
        with QuarantineWriter(staging / REJECTED) as rejected:
            sides = group.reads_side_tables
            side_counts = (
                _ingest_side_tables(data, inputs.folder, location, staging, rejected, runtime) if sides else {}
            )
            ingested = _ingest_log(data, inputs, group, writer, rejected, runtime, None)
        if ingested.base.schema is not None:
            ingested.base.tail.write_parquet(staging / TAIL)
            pl.DataFrame(schema=ingested.base.schema).write_parquet(staging / SCHEMA)
        notes = build_raw_notes(ingested.rows - ingested.base.left_out, rejected.by_rule, side_counts, None)
        group_notes = {
            "group": group.model_dump(),
            "read_rows": ingested.rows,
            "place": inputs.place,
            LACKING: _lacking_counts(ingested),
        }
        writer.close({**notes, **group_notes, APPENDED: appended_as_json(writer.appended)})
    return DayTable.open(out, RAW_INDEX)


def check_has_rows(rows: int, place: str) -> None:
    """Refuse a log without rows.

    Args:
        rows: Number of rows read, including rejected ones.
        place: Path of the log's files.

    Raises:
        DataError: The log has no rows.
    """
    if not rows:
        raise DataError(f"{place}: the log has no rows")


def build_raw_notes(
    rows: int, by_rule: Counter[str], side: Mapping[str, Mapping[str, int]], live: tuple[int, int] | None
) -> dict[str, Any]:
    """Return the notes of a raw log.

    Args:
        rows: Rows of the files, including rejected ones.
        by_rule: Rejected rows of the log by the rule they broke.
        side: raw_rows and rejected_rows of each side table.
        live: Number of collected rows, and of quarantined rows in their batches; None without collection.
    """
    rules = dict(sorted(by_rule.items()))
    notes = {"raw_rows": rows + sum(live or ()), "rejected_rows": by_rule.total(), "by_rule": rules, "side": side}
    return notes if live is None else {**notes, "collected_rows": live[0]}


@dataclass(frozen=True)
class _Inputs:
    folder: Path
    source: FileSource
    extra: tuple[Column, ...] = ()

    @property
    def place(self) -> str:
        """Path of the log's files."""
        return str(self.folder / self.source.path)


@contextmanager
def _inputs(data: Data, location: Path, out: Path) -> Iterator[_Inputs]:
    if isinstance(data.source, FileSource):
        yield _Inputs(location, data.source)
        return
    from shortlist.data.world.generate import generate_log  # loads scipy, which takes 0.4 s

    scratch = out.with_name(out.name + ".generated")
    try:
        generate_log(data.source, scratch)
        planted_columns = [Columns.BEST, *([best_column("is_like")] if data.source.likes is not None else [])]
        yield _Inputs(
            scratch, _GENERATED, tuple(Column(name=name, type="number", known="after") for name in planted_columns)
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _ingest_side_tables(
    data: Data, files: Path, models: Path, staging: Path, rejected: QuarantineWriter, runtime: Runtime
) -> dict[str, dict[str, int]]:
    (staging / SIDE_FOLDER).mkdir()
    counts = {
        table.name: ingest_side_table(
            table, data, files, models, side_path(staging, table), rejected, runtime.chunk_rows
        )
        for table in data.side_tables
    }
    rejected.by_rule.clear()  # from here on it counts the rows of the log
    return counts


class _IngestedLog(NamedTuple):
    rows: int
    """Rows of the files, including rejected ones."""
    is_complete: bool
    """Whether all rows were read."""
    base: BaseRows
    """Schema and newest times, which collected rows are checked against."""
    lacking: dict[str, list[str]]
    """Files without a declared column, by the column's name in the files."""


def _lacking_counts(ingested: _IngestedLog) -> dict[str, int]:
    return {column: len(names) for column, names in sorted(ingested.lacking.items())}


def _ingest_log(
    data: Data,
    inputs: _Inputs,
    group: FileGroup,
    writer: DayTableWriter,
    rejected: QuarantineWriter,
    runtime: Runtime,
    max_rows: int | None,
) -> _IngestedLog:
    layout = log_layout(data, inputs.source, inputs.extra)
    files = group.files_of(inputs.source, inputs.folder)
    total = group.total_rows
    if isinstance(data.clock, RowClock) and not total:
        total = sum(count_file_rows(files, layout))
    lacking = find_lacking_columns(check_shared_fields(files, layout, group.first), layout)
    rows = LogRows(data, layout, total, group.first_row, group.widths)
    base = BaseRows(data)
    is_complete = True
    blocks: Iterator[tuple[InputFile, RowBlock | None]] = read_blocks(files, layout, runtime.chunk_rows, group.first)
    if max_rows is not None:
        blocks = read_first_blocks(files, layout, max(_MIN_FILE_ROWS, max_rows // len(files)))
    for file, block in prefetch(blocks):
        if block is None:
            is_complete = False
            continue
        good_rows, rejected_rows = rows.convert_block(file, block)
        writer.append(base.prepare_rows(good_rows))
        rejected.append(rejected_rows)
    return _IngestedLog(rows.rows, is_complete, base, lacking)
