"""The raw log of files that were read in groups: the bytes that one reader of all files would have written."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from shortlist.contracts import Columns, DataError
from shortlist.data.base_rows import BaseRows, append_collected
from shortlist.data.collected import CollectedRows
from shortlist.data.file_groups import FileGroup
from shortlist.data.ingest import RAW_INDEX, REJECTED, SCHEMA, TAIL, build_raw_notes, check_has_rows
from shortlist.data.log_notices import LACKING, emit_notices, lacking_column_notices
from shortlist.data.rules.quarantine import QuarantineWriter
from shortlist.spec.data import Data
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import atomic_folder
from shortlist.storage.joined_tables import APPENDED, TablePart, appended_as_json, join_parts
from shortlist.storage.side_tables import SIDE_FOLDER
from shortlist.storage.tables import DayTable, DayTableWriter, link_or_copy


def join_raw_log(
    data: Data, groups: Sequence[Path], out: Path, runtime: Runtime, collected: CollectedRows | None = None
) -> DayTable:
    """Write the raw log of groups of files, and after their rows those collected from live traffic.

    Files are linked. Rows are read and written again where a file of the raw log holds rows of two groups, and where
    rows are numbered by their place in a log that declares no impression.

    Args:
        data: The spec's data section.
        groups: What `ingest_files` wrote, in any order.
        out: Folder to write; it appears whole or not at all.
        runtime: As of `ingest_files`.
        collected: As for `ingest`.

    Returns:
        What `ingest` returns for the same files.

    Raises:
        DataError: A group is missing, or holds other rows than were counted; the log has no rows; collected rows are
            not later than every row of the files; a declared column is in none of them.
    """
    tables = _in_order([DayTable.open(group, RAW_INDEX) for group in groups])
    check_has_rows(sum(table.notes["read_rows"] for table in tables), tables[0].notes["place"])
    parts, live = _numbered(data, tables), None
    with atomic_folder(out) as staging:
        scratch = staging / "collected"
        with QuarantineWriter(staging / REJECTED) as rejected:
            for table in tables:
                rejected.append_file(table.folder / REJECTED)
            rejected.by_rule.clear()
            if collected is not None:
                writer = DayTableWriter(scratch, RAW_INDEX, runtime.chunk_rows)
                live = append_collected(collected, _base(data, parts), writer, rejected)
                scratch.mkdir(exist_ok=True)
                parts.append(TablePart(writer.close({APPENDED: appended_as_json(writer.appended)})))
            by_rule = sum((Counter(table.notes["by_rule"]) for table in tables), rejected.by_rule)
        rows = sum(table.notes["raw_rows"] for table in tables)
        notes = build_raw_notes(rows, by_rule, tables[0].notes["side"], live)
        lacking = sum((Counter(table.notes[LACKING]) for table in tables), Counter[str]())
        _check_columns_present(lacking, tables)
        notes |= {LACKING: dict(sorted(lacking.items()))} if lacking else {}
        join_parts(parts, staging, RAW_INDEX, runtime.chunk_rows, notes)
        _link_side_tables(tables[0].folder / SIDE_FOLDER, staging / SIDE_FOLDER)
        shutil.rmtree(scratch, ignore_errors=True)
    emit_notices(lacking_column_notices(notes))
    return DayTable.open(out, RAW_INDEX)


def _in_order(tables: list[DayTable]) -> list[DayTable]:
    found = {_group_of(table).number: table for table in tables}
    wanted = range(_group_of(tables[0]).groups)
    if sorted(found) != list(wanted) or len(tables) != len(wanted):
        raise DataError(
            f"groups of the log's files: got {sorted(_group_of(table).number for table in tables)}, wanted each of"
            f" {list(wanted)} once; read the files again"
        )
    return [found[number] for number in wanted]


def _group_of(table: DayTable) -> FileGroup:
    return FileGroup.model_validate(table.notes["group"])


def _numbered(data: Data, tables: list[DayTable]) -> list[TablePart]:
    """Return the groups' rows, numbered from the log's first row on where no column is the impression."""
    parts, before = [], 0
    for table in tables:
        group, rows = _group_of(table), table.notes["read_rows"]
        if group.rows not in (None, rows):
            raise DataError(
                f"{group.files[0]} and the files after it: {rows:,} rows were read, {group.rows:,} counted before, and"
                " the rows' order is the clock; the files changed meanwhile: run again"
            )
        shift = 0 if data.impression is not None else before - group.first_row
        parts.append(TablePart(table, pl.col(Columns.IMPRESSION) + shift if shift else None))
        before += rows
    return parts


def _base(data: Data, parts: list[TablePart]) -> BaseRows:
    """Return what rows of live traffic follow."""
    base = BaseRows(data)
    for part in parts:
        if (part.table.folder / TAIL).exists():  # a group without rows has none
            base.schema = pl.Schema(pl.read_parquet_schema(part.table.folder / SCHEMA))
            tail = pl.read_parquet(part.table.folder / TAIL)
            base.add_tail(tail if part.changed is None else tail.with_columns(part.changed))
    return base


def _check_columns_present(lacking: Counter[str], tables: list[DayTable]) -> None:
    files = sum(len(_group_of(table).files) for table in tables)
    for column, count in lacking.items():
        if count == files:
            raise DataError(f"{tables[0].notes['place']}: declared column '{column}' is missing in all {files} files")


def _link_side_tables(source: Path, target: Path) -> None:
    target.mkdir()
    for file in source.iterdir():
        link_or_copy(file, target / file.name)
