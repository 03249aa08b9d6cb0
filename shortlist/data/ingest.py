"""A declared log, whatever its files, as a typed table of days."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shortlist.contracts import Columns, DataError
from shortlist.data.log_rows import LogRows, log_layout
from shortlist.data.quarantine import QuarantineWriter
from shortlist.data.reading import read_blocks, rows_of
from shortlist.data.side_tables import SIDE_FOLDER, ingest_side_table, side_path
from shortlist.data.sources import log_files
from shortlist.spec.data import Column, Data, FileSource, RowClock
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import atomic_folder
from shortlist.storage.tables import DayTable, DayTableWriter
from shortlist.system.prefetch import prefetch

RAW_INDEX = "raw.json"
"""Index of the raw table."""
REJECTED = "rejected.parquet"
"""Rows that could not be parsed, beside the raw table."""

_GENERATED = FileSource(path="impressions", format="parquet")
_BEST = Column(name=Columns.BEST, type="number", known="after")


def ingest(data: Data, location: Path, out: Path, runtime: Runtime, most_rows: int | None = None) -> DayTable:
    """Write a log and its side tables with their declared types, and beside them what could not be parsed.

    Args:
        data: The spec's data section.
        location: The data path given to the run: a file or a glob is the log itself; a folder holds `source.path` and
            the side tables' paths. A generated log needs none.
        out: Folder to write; it appears whole or not at all.
        runtime: Bounds the rows held at once.
        most_rows: Leave out the blocks of the log that begin after so many rows, for a look at its beginning; None:
            read all.

    Returns:
        The raw table (index `RAW_INDEX`). Its notes: raw_rows (rejected ones included), rejected_rows, by_rule (of the
        rejected rows), and side: for each side table its raw_rows and rejected_rows; with `most_rows` also whole:
        whether the log has no more rows.

    Raises:
        DataError: The files are missing, unreadable, or not what the spec declares.
    """
    with _inputs(data, location, out) as inputs, atomic_folder(out) as staging:
        with QuarantineWriter(staging / REJECTED) as rejected:
            side = _ingest_side_tables(data, inputs.folder, staging, rejected, runtime)
            side_rules = rejected.by_rule.copy()
            writer = DayTableWriter(staging, RAW_INDEX, runtime.chunk_rows)
            rows, whole = _ingest_log(data, inputs, writer, rejected, runtime, most_rows)
            by_rule = rejected.by_rule - side_rules
        rules = dict(sorted(by_rule.items()))
        notes = {"raw_rows": rows, "rejected_rows": by_rule.total(), "by_rule": rules, "side": side}
        writer.close(notes if most_rows is None else {**notes, "whole": whole})
    return DayTable.open(out, RAW_INDEX)


@dataclass(frozen=True)
class _Inputs:
    folder: Path
    source: FileSource
    extra: tuple[Column, ...] = ()


@contextmanager
def _inputs(data: Data, location: Path, out: Path) -> Iterator[_Inputs]:
    if isinstance(data.source, FileSource):
        yield _Inputs(location, data.source)
        return
    from shortlist.data.generate import generate  # with scipy, 0.4 s of every other step's start

    scratch = out.with_name(out.name + ".generated")
    try:
        generate(data.source, scratch)
        yield _Inputs(scratch, _GENERATED, (_BEST,))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _ingest_side_tables(
    data: Data, location: Path, staging: Path, rejected: QuarantineWriter, runtime: Runtime
) -> dict[str, dict[str, int]]:
    (staging / SIDE_FOLDER).mkdir()
    return {
        table.name: ingest_side_table(table, data, location, side_path(staging, table), rejected, runtime.chunk_rows)
        for table in data.side_tables
    }


def _ingest_log(
    data: Data,
    inputs: _Inputs,
    writer: DayTableWriter,
    rejected: QuarantineWriter,
    runtime: Runtime,
    most_rows: int | None,
) -> tuple[int, bool]:
    """Return the number of rows read, rejected ones included, and whether these are all."""
    layout = log_layout(data, inputs.source, inputs.extra)
    files = log_files(inputs.source, inputs.folder)
    by_order = isinstance(data.clock, RowClock)
    rows = LogRows(data, layout, rows_of(files, layout.header) if by_order else 0)
    whole, block_rows = True, min(runtime.chunk_rows, most_rows or runtime.chunk_rows)
    for file, block in prefetch(read_blocks(files, layout, block_rows)):
        if most_rows is not None and rows.rows >= most_rows:
            whole = False
            break
        good, bad = rows.take(file, block)
        writer.append(good)
        rejected.append(bad)
    if not rows.rows:
        raise DataError(f"{inputs.folder / inputs.source.path}: the log has no rows")
    return rows.rows, whole
