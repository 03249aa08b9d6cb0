"""The feature table: the features that models read, row by row, with the columns that gates need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final

import polars as pl

from shortlist.contracts import Columns, DataError, Files, best_column, label_column
from shortlist.features.open_counts import OpenCounts
from shortlist.features.parallel_map import workers
from shortlist.features.plan import Plan, plan
from shortlist.features.slates import SLATE, whole_slates
from shortlist.features.split import split_days
from shortlist.features.tiles import Tiles
from shortlist.features.transform import Transformer
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.gates import Gates
from shortlist.spec.log_shape import FurtherLabel
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import atomic_folder, read_json
from shortlist.storage.groups import check_all_days_grouped
from shortlist.storage.positive_rows import is_further_positive
from shortlist.storage.tables import DayPart, DayTable, DayTableWriter, iter_row_groups
from shortlist.system.prefetch import parallel_map, prefetch
from shortlist.system.progress import progress
from shortlist.system.query_engine import resolve_engine

_COMPRESSION: Final = "uncompressed"
"""Ids of a few bits each hardly get shorter: 2 M rows are written in 0.50 s of processor time, where lz4 takes 0.74,
and read, in every epoch, in 0.10 s instead of 0.18. Files are 1.6 times as large (206 MB for a text of 493 MB)."""

Labels = Mapping[str, FurtherLabel]
_OPTIONAL: Final = (Columns.BEST, Columns.WEIGHT)
"""Columns of a log that has them, copied into the table: of a generated one, and of one with collected rows."""


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
    split = split_days([part.day for part in table.days], data.split)
    parts = table.days if only_days is None else [table.by_day[day] for day in sorted(only_days)]
    with atomic_folder(out) as staging, progress("feature table", sum(part.rows for part in parts)) as advance:
        writer = DayTableWriter(staging, Files.TABLE, runtime.chunk_rows, _COMPRESSION)
        for day, day_rows in groupby(_make_rows(table, parts, transformer, data.labels), key=itemgetter(0)):
            for _, rows in day_rows:
                writer.append(rows)
                advance(rows.height, str(day))
            writer.flush()
        writer.close({"columns": transformer.columns(), "split": split.notes()})
    return DayTable.open(out, Files.TABLE)


def join_tables(groups: Sequence[Path], log: Path, out: Path) -> DayTable:
    """Write one feature table of those of groups of days; no row is read.

    Args:
        groups: What `build_table` wrote for some days each.
        log: Folder of the valid log.
        out: Folder to write.

    Returns:
        The table, the same as if it had been built at once.

    Raises:
        DataError: A day is in two groups, or a day of the log in none; or the groups were built from different fits.
    """
    tables = [DayTable.open(group, Files.TABLE) for group in groups]
    for other_table in tables[1:]:
        if other_table.notes != tables[0].notes:
            raise DataError(f"{other_table.folder} and {tables[0].folder}: built from different fits; build both again")
    check_all_days_grouped({str(table.folder): list(table.by_day) for table in tables}, DayTable.open(log, Files.LOG))
    with atomic_folder(out) as staging:
        writer = DayTableWriter(staging, Files.TABLE, chunk_rows=1)  # it writes no row itself
        for table in tables:
            for part in table.days:
                writer.link_day(table.folder, part)
        writer.close(tables[0].notes)
    return DayTable.open(out, Files.TABLE)


def _make_rows(
    table: DayTable, parts: Iterable[DayPart], transformer: Transformer, labels: Labels
) -> Iterator[tuple[date, pl.DataFrame]]:  # fmt: skip
    """Yield each day's rows of the table, part by part of the log.

    The labels are those that are declared now: an earlier model's own plan may know others.
    """

    def make(part: tuple[date, pl.DataFrame]) -> tuple[date, pl.DataFrame]:
        day, rows = part
        looked_up = transformer.look_up(rows, day)
        return day, looked_up.select(_context_columns(looked_up, transformer.plan, labels)).hstack(
            transformer.compute(looked_up)
        )

    read = prefetch((part.day, rows) for part in parts for rows in _parts(table, part, transformer, labels))
    # Views are read from where the last part stopped, so that parts are computed one after the other.
    parallel_parts = 1 if transformer.plan.views else workers(transformer.engine)
    yield from parallel_map(make, read, parallel_parts)


def _parts(table: DayTable, day: DayPart, transformer: Transformer, labels: Labels) -> Iterator[pl.DataFrame]:
    streaming = transformer.plan.streaming
    if streaming is None:
        yield from _read_rows(table, day, transformer, labels)
        return
    counts = OpenCounts.of_day(streaming, table, day.day)
    for rows in _read_rows(table, day, transformer, labels):
        yield rows.hstack(counts.columns(rows))


def _read_rows(table: DayTable, day: DayPart, transformer: Transformer, labels: Labels) -> Iterator[pl.DataFrame]:
    planned = transformer.plan
    if planned.declared.data.slate is not None:  # whole in a part: models may learn the order of a slate's rows
        schema = pl.read_parquet_schema(table.folder / day.files[0])
        columns = _columns_to_read(planned, schema, labels)
        yield from whole_slates(table, day, planned.declared.data, columns)
        return
    for name in day.files:
        schema = pl.read_parquet_schema(table.folder / name)
        columns = _columns_to_read(planned, schema, labels)
        # Views are searched once for every piece; the smallest good piece for a GPU was not measured.
        whole = bool(planned.views) or resolve_engine(transformer.engine) == "gpu"
        yield from iter_row_groups(table.folder / name, columns, whole=whole)


def _columns_to_read(planned: Plan, file_columns: Collection[str], labels: Labels) -> list[str]:
    """Return the columns to read of a file of the valid log that has some columns."""
    outcomes = [label.column for label in labels.values()]
    open_counts = () if planned.streaming is None else (Columns.COUNTS_DELAY,)
    optional = [name for name in (*_OPTIONAL, *open_counts, *map(best_column, outcomes)) if name in file_columns]
    return [*dict.fromkeys((*planned.log_columns((*planned.read, *outcomes)), *optional))]


def _context_columns(rows: pl.DataFrame, planned: Plan, labels: Labels) -> list[pl.Expr]:
    """Return the columns of the table that are not features."""
    data = planned.declared.data
    columns = [pl.col(Columns.LABEL), pl.col(Columns.TIME), pl.col(Columns.DAY), pl.col(Columns.IMPRESSION)]
    columns += [_further_label(label).alias(label_column(name)) for name, label in labels.items()]
    for key, name in ((data.user, Columns.USER), (data.item, Columns.ITEM)):
        if key is not None:
            columns.append(pl.col(key).alias(name))
            rows_of_key = pl.col(f"by_{key}:{Columns.ROWS}").fill_null(0)
            columns.append((rows_of_key == 0).alias(f"cold_{name}"))
    columns += [pl.col(SLATE).alias(Columns.SLATE)] if data.slate is not None else []
    columns += [_slice(name, planned) for name in planned.slices]
    columns += [
        pl.col(planted).alias(best_column(name)) for name, label in labels.items()
        # The planted probability is that of a 1 in the column, not of the condition in `positive`.
        if label.positive is None and (planted := best_column(label.column)) in rows.columns
    ]  # fmt: skip
    return [*columns, *(pl.col(name) for name in _OPTIONAL if name in rows.columns)]


def _further_label(label: FurtherLabel) -> pl.Expr:
    """Return 1 where a further label's column says so, else 0; a row without a value did not have that outcome."""
    return is_further_positive(pl.col(label.column), label).fill_null(value=False).cast(pl.Int8)


def _slice(name: str, planned: Plan) -> pl.Expr:
    value = pl.col(planned.declared.row_column(name))
    kind = planned.declared.column(name).type
    if kind == "tags":
        value = value.cast(pl.List(pl.String)).list.join(",")
    if kind == "date":  # days since 1970-01-01 when it comes from a side table
        value = value.cast(pl.Int32).cast(pl.Date)
    return value.cast(pl.String).alias(f"slice_{name}")


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
