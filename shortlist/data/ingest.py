"""Ingest a declared log: its files as a typed table, partitioned by day."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from shortlist.contracts import Columns, DataError, best_column
from shortlist.data.append_collected import CollectedAppender, LogCounts
from shortlist.data.base_rows import BaseRows
from shortlist.data.collected import CollectedRows
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
from shortlist.data.reading.sources import InputFile, log_files
from shortlist.data.rules.quarantine import QuarantineWriter
from shortlist.data.side_tables.ingest import ingest_side_table
from shortlist.spec.data import Column, Data, DeltaSource, FileSource, RowClock
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import atomic_folder
from shortlist.storage.side_tables import SIDE_FOLDER, side_path
from shortlist.storage.tables import DayTable, DayTableWriter
from shortlist.system.prefetch import prefetch

RAW_INDEX = "raw.json"
"""Index of the raw table."""
REJECTED = "rejected.parquet"
"""Rows that could not be parsed, beside the raw table."""

COLLECTED: Final = "collected"
"""Note of the raw log on the rows collected from live traffic."""
_MIN_FILE_ROWS: Final = 200
"""Fewest rows that are read of each file when only the first rows are."""
_GENERATED = FileSource(path="impressions", format="parquet")


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
        The raw table (index `RAW_INDEX`). Its notes: raw_rows (including rejected ones) and by_rule (of the rejected
        rows) of the files; rejected_rows of all; collected: raw_rows and by_rule of the rows of live traffic, the spec
        whose batches they are of, and the numbers of the batches by day; side: raw_rows and rejected_rows of each side
        table; with `max_rows` also whole: whether the log has no more rows.

    Raises:
        DataError: The files are missing, unreadable, or not as declared in the spec; or a batch of collected rows is.
    """
    with _inputs(data, location, out) as inputs, atomic_folder(out) as staging:
        writer = DayTableWriter(staging, RAW_INDEX, runtime.chunk_rows)
        with QuarantineWriter(staging / REJECTED) as rejected:
            side_counts = _ingest_side_tables(data, inputs.folder, location, staging, rejected, runtime)
            ingested = _ingest_log(data, inputs, writer, rejected, runtime, max_rows)
            if not ingested.rows:
                raise DataError(f"{inputs.place}: the log has no rows")
            file_counts = LogCounts(ingested.rows - ingested.base.left_out, Counter(rejected.by_rule))
            live_counts = LogCounts()
            if collected:
                scratch, base = staging / "collected", ingested.base
                appender = CollectedAppender(data, base, writer, rejected, scratch, runtime.chunk_rows)
                live_counts = appender.append(collected)
        notes: dict[str, Any] = {
            "raw_rows": file_counts.rows,
            "rejected_rows": rejected.rows,
            "by_rule": dict(sorted(file_counts.by_rule.items())),
            "side": side_counts,
        }
        if collected:
            notes[COLLECTED] = {
                "raw_rows": live_counts.rows,
                "by_rule": dict(sorted(live_counts.by_rule.items())),
                "spec": collected.spec,
                "batches_by_day": {day.isoformat(): batches for day, batches in live_counts.batches_by_day.items()},
            }
        if ingested.lacking:
            notes[LACKING] = {column: len(names) for column, names in sorted(ingested.lacking.items())}
        writer.close(notes if max_rows is None else {**notes, "whole": ingested.is_complete})
    if max_rows is None:
        emit_notices((*lacking_column_notices(notes), *unread_file_notices(data, location)))
    return DayTable.open(out, RAW_INDEX)


@dataclass(frozen=True)
class _Inputs:
    folder: Path
    source: FileSource | DeltaSource
    extra: tuple[Column, ...] = ()

    @property
    def place(self) -> str:
        """Path of the log's files."""
        return str(self.folder / self.source.path)


@contextmanager
def _inputs(data: Data, location: Path, out: Path) -> Iterator[_Inputs]:
    if isinstance(data.source, FileSource | DeltaSource):
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


def _ingest_log(
    data: Data,
    inputs: _Inputs,
    writer: DayTableWriter,
    rejected: QuarantineWriter,
    runtime: Runtime,
    max_rows: int | None,
) -> _IngestedLog:
    layout = log_layout(data, inputs.source, inputs.extra)
    files = log_files(inputs.source, inputs.folder)
    total = sum(count_file_rows(files, layout)) if isinstance(data.clock, RowClock) else 0
    lacking = find_lacking_columns(check_shared_fields(files, layout), layout)
    rows = LogRows(data, layout, total)
    base = BaseRows(data)
    is_complete = True
    blocks: Iterator[tuple[InputFile, RowBlock | None]] = read_blocks(files, layout, runtime.chunk_rows)
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
