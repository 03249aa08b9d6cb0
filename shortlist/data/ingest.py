"""A declared log, whatever its files, as a typed table of days."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl

from shortlist.contracts import Columns, DataError
from shortlist.data.collected import CollectedRows
from shortlist.data.log_rows import LogRows, log_layout
from shortlist.data.quarantine import QuarantineWriter
from shortlist.data.reading import read_blocks, rows_of
from shortlist.data.side_tables import SIDE_FOLDER, ingest_side_table, side_path
from shortlist.data.sources import log_files
from shortlist.spec.data import Column, Data, FileSource, GeneratedSource, RowClock
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import atomic_folder
from shortlist.storage.tables import DayTable, DayTableWriter
from shortlist.system.prefetch import prefetch

RAW_INDEX = "raw.json"
"""Index of the raw table."""
REJECTED = "rejected.parquet"
"""Rows that could not be parsed, beside the raw table."""

_GENERATED = FileSource(path="impressions", format="parquet")
_TAIL = timedelta(days=2)
_BEST = Column(name=Columns.BEST, type="number", known="after")


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
        with QuarantineWriter(staging / REJECTED) as rejected:
            side = _ingest_side_tables(data, inputs.folder, staging, rejected, runtime)
            side_rules = rejected.by_rule.copy()
            writer = DayTableWriter(staging, RAW_INDEX, runtime.chunk_rows)
            rows, whole, base = _ingest_log(data, inputs, writer, rejected, runtime, most_rows)
            live = _append_collected(collected, base, writer, rejected) if collected else (0, 0)
            by_rule = rejected.by_rule - side_rules
        rules = dict(sorted(by_rule.items()))
        notes = {"raw_rows": rows + sum(live), "rejected_rows": by_rule.total(), "by_rule": rules, "side": side}
        if collected is not None:
            notes["collected_rows"] = live[0]
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
) -> tuple[int, bool, _Base]:
    """Return the number of rows read, rejected ones included, whether these are all, and what collected rows follow."""
    layout = log_layout(data, inputs.source, inputs.extra)
    files = log_files(inputs.source, inputs.folder)
    by_order = isinstance(data.clock, RowClock)
    rows = LogRows(data, layout, rows_of(files, layout.header) if by_order else 0)
    base = _Base(data)
    whole, block_rows = True, min(runtime.chunk_rows, most_rows or runtime.chunk_rows)
    for file, block in prefetch(read_blocks(files, layout, block_rows)):
        if most_rows is not None and rows.rows >= most_rows:
            whole = False
            break
        good, bad = rows.take(file, block)
        writer.append(base.take(good))
        rejected.append(bad)
    if not rows.rows:
        raise DataError(f"{inputs.folder / inputs.source.path}: the log has no rows")
    return rows.rows - base.left_out, whole, base


class _Base:
    """The log's own rows: what collected ones must have in common with them, and come after."""

    def __init__(self, data: Data) -> None:
        self._live, self._generated = data.live, isinstance(data.source, GeneratedSource)
        self.schema: pl.Schema | None = None
        self.tail = pl.DataFrame(schema={Columns.TIME: pl.Datetime("us", "UTC"), Columns.IMPRESSION: pl.Int64})
        """Time and impression of the rows of the newest two days."""
        self.left_out = 0
        """Rows of a generated log that `data.live.since` ends."""

    def take(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return rows as they are stored."""
        since = self._live.since
        if not self._live.collect:
            return rows
        if since is not None and self._generated:
            kept = rows.filter(pl.col(Columns.TIME) < since)
            self.left_out, rows = self.left_out + rows.height - kept.height, kept
        elif since is not None and (later := rows.filter(pl.col(Columns.TIME) >= since).height):
            raise DataError(
                f"data.live.since: {later:,} rows of the log are of {since.isoformat()} or later, e.g. in"
                f" {rows.filter(pl.col(Columns.TIME) >= since)[Columns.SOURCE_FILE][0]}; from then on rows come from"
                " live traffic, and would count twice. Take them out of the log, or declare a later moment"
            )
        rows = rows.with_columns(
            pl.lit(None, pl.Int64).alias(Columns.SERVED_VERSION), pl.lit(None, pl.String).alias(Columns.SERVED_TRACK),
            pl.lit(1.0, pl.Float32).alias(Columns.WEIGHT),
        )  # fmt: skip
        self.schema = rows.schema
        both = pl.concat([self.tail, rows.select(Columns.TIME, Columns.IMPRESSION)])
        newest = both[Columns.TIME].max()
        self.tail = both if newest is None else both.filter(pl.col(Columns.TIME) >= pl.lit(newest) - _TAIL)
        return rows

    def check_later(self, rows: pl.DataFrame) -> None:
        """Refuse collected rows that are not later than every row of the log itself.

        Raises:
            DataError: With how many rows overlap.
        """
        first, newest = rows[Columns.TIME].min(), self.tail[Columns.TIME].max()
        if not isinstance(first, datetime) or not isinstance(newest, datetime) or first > newest:
            return
        overlap = self.tail.filter(pl.col(Columns.TIME) >= first)
        same = self.tail.filter(pl.col(Columns.IMPRESSION).is_in(rows[Columns.IMPRESSION].implode())).height
        early = rows.filter(pl.col(Columns.TIME) <= newest).height
        raise DataError(
            f"the log and the rows collected from live traffic overlap: {early:,} collected rows, the first of"
            f" {first:%Y-%m-%d %H:%M:%S} UTC, are not later than the newest row of the log, of"
            f" {newest:%Y-%m-%d %H:%M:%S} UTC; at least {overlap.height:,} rows of the log are as late, {same:,} of"
            " them with the same impression. The log must end before live traffic begins: leave those rows out, or"
            " declare data.live.since: the moment from which on rows are collected"
        )


def _append_collected(
    collected: CollectedRows, base: _Base, writer: DayTableWriter, rejected: QuarantineWriter
) -> tuple[int, int]:
    """Append collected rows; return how many there are, and how many of their batches are quarantined."""
    good = bad = 0
    for rows, refused in collected.frames():
        rejected.append(refused)
        bad += refused.height
        if not rows.height:
            continue
        base.check_later(rows)
        assert base.schema is not None
        known = {name: kind for name, kind in base.schema.items() if name in rows.columns}
        # What a generated log knows beyond its columns, nobody knows of live traffic; a column declared since is null.
        others = [pl.lit(None, kind).alias(name) for name, kind in base.schema.items() if name not in known]
        writer.append(_as_declared(rows.with_columns(others).select(base.schema.names()), base.schema))
        good += rows.height
    return good, bad


def _as_declared(rows: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    """Return collected rows with the types that the log has now.

    Raises:
        DataError: A column was of another type when they were collected, and a value is not one of the present type.
    """
    try:
        return rows.cast(schema)
    except pl.exceptions.PolarsError:
        for name, kind in schema.items():
            lost = rows[name].is_not_null() & rows[name].cast(kind, strict=False).is_null()
            if lost.any():
                raise DataError(
                    f"column '{name}': {int(lost.sum()):,} of {rows.height:,} collected rows, e.g. of"
                    f" {rows[Columns.SOURCE_FILE].filter(lost)[0]}, hold {rows[name].dtype} values that are no {kind},"
                    f" e.g. {rows[name].filter(lost)[0]!r}; the column's type was changed after they were served."
                    " Declare the new type under another name, with the old column beside it"
                ) from None
        raise
