"""A declared log, whatever its files, as a typed table of days."""

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
from shortlist.data.log_rows import LogRows, log_layout
from shortlist.data.quarantine import QuarantineWriter
from shortlist.data.reading import read_blocks, rows_of
from shortlist.data.side_tables import SIDE_FOLDER, ingest_side_table, side_path
from shortlist.spec.data import Column, Data, FileSource, RowClock
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import atomic_folder
from shortlist.storage.joined_tables import APPENDED, as_json
from shortlist.storage.tables import DayTable, DayTableWriter
from shortlist.system.prefetch import prefetch

RAW_INDEX = "raw.json"
"""Index of the raw table."""
REJECTED = "rejected.parquet"
"""Rows that could not be parsed, beside the raw table."""
TAIL: Final = "tail.parquet"
"""Time and impression of a group's newest rows (`BaseRows.tail`), beside them; only where rows are collected."""
SCHEMA: Final = "schema.parquet"
"""The columns of a group's rows (`BaseRows.schema`), likewise; without rows."""

_GENERATED = FileSource(path="impressions", format="parquet")
_WHOLE = FileGroup(number=0, groups=1)


def ingest(
    data: Data,
    location: Path,
    out: Path,
    runtime: Runtime,
    most_rows: int | None = None,
    collected: CollectedRows | None = None,
) -> DayTable:
    """Write a log and its side tables with their declared types, and beside them what could not be parsed.

    Args:
        data: The spec's data section.
        location: The data path given to the run: a file or a glob is the log itself; a folder holds `source.path` and
            the side tables' paths. A generated log needs none.
        out: Folder to write; it appears whole or not at all.
        runtime: Bounds the rows held at once.
        most_rows: Leave out the blocks of the log that begin after so many rows, for a look at its beginning; None:
            read all.
        collected: Rows of live traffic that come after those of the files.

    Returns:
        The raw table (index `RAW_INDEX`). Its notes: raw_rows (rejected ones included), rejected_rows, by_rule (of the
        rejected rows), and side: for each side table its
        raw_rows and rejected_rows; with `most_rows` also whole: whether the log has no more rows.

    Raises:
        DataError: The files are missing, unreadable, or not what the spec declares; or collected rows are not later
            than every row of the files.
    """
    with _inputs(data, location, out) as inputs, atomic_folder(out) as staging:
        writer = DayTableWriter(staging, RAW_INDEX, runtime.chunk_rows)
        with QuarantineWriter(staging / REJECTED) as rejected:
            side = _ingest_side_tables(data, inputs.folder, location, staging, rejected, runtime)
            read = _ingest_log(data, inputs, _WHOLE, writer, rejected, runtime, most_rows)
            check_has_rows(read.rows, inputs.place)
            live = append_collected(collected, read.base, writer, rejected) if collected else (0, 0)
        notes = raw_notes(read.rows - read.base.left_out, rejected.by_rule, side, live if collected else None)
        writer.close(notes if most_rows is None else {**notes, "whole": read.whole})
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
            side = _ingest_side_tables(data, inputs.folder, location, staging, rejected, runtime) if sides else {}
            read = _ingest_log(data, inputs, group, writer, rejected, runtime, None)
        if read.base.schema is not None:
            read.base.tail.write_parquet(staging / TAIL)
            pl.DataFrame(schema=read.base.schema).write_parquet(staging / SCHEMA)
        notes = raw_notes(read.rows - read.base.left_out, rejected.by_rule, side, None)
        about = {"group": group.model_dump(), "read_rows": read.rows, "place": inputs.place}
        writer.close({**notes, **about, APPENDED: as_json(writer.appended)})
    return DayTable.open(out, RAW_INDEX)


def check_has_rows(rows: int, place: str) -> None:
    """Refuse a log without rows.

    Args:
        rows: That were read, rejected ones included.
        place: Where the log's files were looked for.

    Raises:
        DataError: There are none.
    """
    if not rows:
        raise DataError(f"{place}: the log has no rows")


def raw_notes(
    rows: int, by_rule: Counter[str], side: Mapping[str, Mapping[str, int]], live: tuple[int, int] | None
) -> dict[str, Any]:
    """Return the notes of a raw log.

    Args:
        rows: Of the files, rejected ones included.
        by_rule: Rejected rows of the log by the rule they broke.
        side: For each side table its raw_rows and rejected_rows.
        live: Collected rows and those of their batches that are quarantined; None without a collection.
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
        """Where the log's files are looked for."""
        return str(self.folder / self.source.path)


@contextmanager
def _inputs(data: Data, location: Path, out: Path) -> Iterator[_Inputs]:
    if isinstance(data.source, FileSource):
        yield _Inputs(location, data.source)
        return
    from shortlist.data.generate import generate  # with scipy, 0.4 s of every other step's start

    scratch = out.with_name(out.name + ".generated")
    try:
        generate(data.source, scratch)
        planted = [Columns.BEST, *([best_column("is_like")] if data.source.likes is not None else [])]
        yield _Inputs(scratch, _GENERATED, tuple(Column(name=name, type="number", known="after") for name in planted))
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


class _Read(NamedTuple):
    rows: int
    """Rows of the files, rejected ones included."""
    whole: bool
    """Whether these are all."""
    base: BaseRows
    """What collected rows follow."""


def _ingest_log(
    data: Data,
    inputs: _Inputs,
    group: FileGroup,
    writer: DayTableWriter,
    rejected: QuarantineWriter,
    runtime: Runtime,
    most_rows: int | None,
) -> _Read:
    layout = log_layout(data, inputs.source, inputs.extra)
    files = group.files_of(inputs.source, inputs.folder)
    total = group.total_rows
    if isinstance(data.clock, RowClock) and not total:
        total = sum(rows_of(files, layout.header))
    rows = LogRows(data, layout, total, group.first_row, group.widths)
    base = BaseRows(data)
    whole, block_rows = True, min(runtime.chunk_rows, most_rows or runtime.chunk_rows)
    for file, block in prefetch(read_blocks(files, layout, block_rows, group.first)):
        if most_rows is not None and rows.rows >= most_rows:
            whole = False
            break
        good, bad = rows.take(file, block)
        writer.append(base.take(good))
        rejected.append(bad)
    return _Read(rows.rows, whole, base)
