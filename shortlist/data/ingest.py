"""A declared log, whatever its files, as a typed table of days."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shortlist.ahead import ahead
from shortlist.artefacts import written_whole
from shortlist.config.data import Column, Data, FileSource, RowClock
from shortlist.config.runtime import Runtime
from shortlist.contracts import Columns, DataError
from shortlist.data.log_rows import LogRows, log_layout
from shortlist.data.quarantine import QuarantineWriter
from shortlist.data.reading import read_blocks, rows_of
from shortlist.data.side_tables import SIDE_FOLDER, ingest_side_table, side_path
from shortlist.data.sources import log_files
from shortlist.tables import DayTable, DayTableWriter

RAW_INDEX = "raw.json"
"""Index of the raw table."""
REJECTED = "rejected.parquet"
"""Rows that could not be parsed, beside the raw table."""

_GENERATED = FileSource(path="impressions", format="parquet")
_BEST = Column(name=Columns.BEST, type="number", known="after")


def ingest(data: Data, location: Path, out: Path, runtime: Runtime) -> DayTable:
    """Write a log and its side tables with their declared types, and beside them what could not be parsed.

    Args:
        data: The spec's data section.
        location: The data path given to the run: a file or a glob is the log itself; a folder holds `source.path` and
            the side tables' paths. A generated log needs none.
        out: Folder to write; it appears whole or not at all.
        runtime: Bounds the rows held at once.

    Returns:
        The raw table (index `RAW_INDEX`). Its notes: raw_rows (rejected ones included), rejected_rows, by_rule (of the
        rejected rows), and side: for each side table its raw_rows and rejected_rows.

    Raises:
        DataError: The files are missing, unreadable, or not what the spec declares.
    """
    with _inputs(data, location, out) as inputs, written_whole(out) as staging:
        with QuarantineWriter(staging / REJECTED) as rejected:
            side = _ingest_side_tables(data, inputs.folder, staging, rejected, runtime)
            side_rules = rejected.by_rule.copy()
            writer = DayTableWriter(staging, RAW_INDEX, runtime.chunk_rows)
            rows = _ingest_log(data, inputs, writer, rejected, runtime)
            by_rule = rejected.by_rule - side_rules
        rules = dict(sorted(by_rule.items()))
        writer.close({"raw_rows": rows, "rejected_rows": by_rule.total(), "by_rule": rules, "side": side})
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
    data: Data, inputs: _Inputs, writer: DayTableWriter, rejected: QuarantineWriter, runtime: Runtime
) -> int:
    """Return the number of rows read, rejected ones included."""
    layout = log_layout(data, inputs.source, inputs.extra)
    files = log_files(inputs.source, inputs.folder)
    by_order = isinstance(data.clock, RowClock)
    rows = LogRows(data, layout, rows_of(files, layout.header) if by_order else 0)
    for file, block in ahead(read_blocks(files, layout, runtime.chunk_rows)):
        good, bad = rows.take(file, block)
        writer.append(good)
        rejected.append(bad)
    if not rows.rows:
        raise DataError(f"{inputs.folder / inputs.source.path}: the log has no rows")
    return rows.rows
