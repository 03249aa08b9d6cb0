"""The rows of the feature table: the features that models read, with the columns that gates need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import polars as pl

from shortlist.contracts import Columns, best_column, label_column
from shortlist.features.declared.plan import Plan
from shortlist.features.declared.slates import SLATE, at_slate_start, whole_slates
from shortlist.features.live.open_counts import OpenCounts
from shortlist.features.rows.transform import Transformer
from shortlist.spec.log_shape import FurtherLabel
from shortlist.storage.positive_rows import is_further_positive
from shortlist.storage.tables import DayPart, DayTable, iter_row_groups
from shortlist.system.query_engine import resolve_engine

Labels = Mapping[str, FurtherLabel]
_OPTIONAL: Final = (Columns.BEST, Columns.WEIGHT)
"""Columns of a log that has them, copied into the table: of a generated one, and of one with collected rows."""


_PLACEMENT: Final = {"propensity": (Columns.PROPENSITY, pl.Float32()), "position": (Columns.POSITION, pl.Int32())}
"""Columns of the table that say how a row was shown, by the role of the declared column (`Data.placement`)."""


def needs_whole_days(planned: Plan) -> bool:
    """Return whether rows of a day are read together: slates are whole in a part, and open tiles are those of a day."""
    return planned.declared.data.slate is not None or planned.streaming is not None


def table_rows(looked_up: pl.DataFrame, transformer: Transformer, labels: Labels) -> pl.DataFrame:
    """Return the rows of the table for looked-up rows of the log.

    The labels are those that are declared now: an earlier model's own plan may know others.
    """
    return looked_up.select(_context_columns(looked_up, transformer.plan, labels)).hstack(
        transformer.compute(looked_up)
    )


def read_parts(table: DayTable, day: DayPart, transformer: Transformer, labels: Labels) -> Iterator[pl.DataFrame]:
    """Yield the rows of a day of the log part by part, with the counts of the open tiles."""
    yield from _as_features_read(_read_rows(table, day, transformer, labels), transformer.plan, table, day)


def read_day(table: DayTable, day: DayPart, planned: Plan) -> Iterator[pl.DataFrame]:
    """Yield the rows of a day of the log with all columns, about a file at a time, as `Transformer.look_up` reads them.

    Slates that features compare are whole, and have the time of their first row where values change within a day.
    """
    if planned.slates:
        pieces: Iterator[pl.DataFrame] = whole_slates(table, day, planned.declared.data)
    else:
        pieces = (pl.read_parquet(table.folder / name, hive_partitioning=False) for name in day.files)
    yield from _as_features_read(pieces, planned, table, day)


def _as_features_read(
    pieces: Iterable[pl.DataFrame], planned: Plan, table: DayTable, day: DayPart
) -> Iterator[pl.DataFrame]:
    counts = None if planned.streaming is None else OpenCounts.of_day(planned.streaming, table, day.day)
    for rows in pieces:
        timed_rows = at_slate_start(rows) if planned.slates_have_moments else rows
        yield timed_rows if counts is None else timed_rows.hstack(counts.columns(timed_rows))


def _read_rows(table: DayTable, day: DayPart, transformer: Transformer, labels: Labels) -> Iterator[pl.DataFrame]:
    planned = transformer.plan
    if planned.declared.data.slate is not None:  # whole in a part: models may learn the order of a slate's rows
        schema = pl.read_parquet_schema(table.folder / day.files[0])
        columns = columns_to_read(planned, schema, labels)
        yield from whole_slates(table, day, planned.declared.data, columns)
        return
    for name in day.files:
        schema = pl.read_parquet_schema(table.folder / name)
        columns = columns_to_read(planned, schema, labels)
        # Views are searched once for every piece; the smallest good piece for a GPU was not measured.
        whole = bool(planned.views) or resolve_engine(transformer.engine) == "gpu"
        yield from iter_row_groups(table.folder / name, columns, whole=whole)


def columns_to_read(planned: Plan, file_columns: Collection[str], labels: Labels) -> list[str]:
    """Return the columns to read of a file of the valid log that has some columns."""
    outcomes = [label.column for label in labels.values()]
    open_counts = () if planned.streaming is None else (Columns.COUNTS_DELAY,)
    placement = planned.declared.data.placement.values()
    possible = (*_OPTIONAL, *open_counts, *map(best_column, outcomes), *placement)
    optional = [name for name in possible if name in file_columns]
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
    columns += [
        pl.col(declared).cast(kind).alias(name)
        for role, (name, kind) in _PLACEMENT.items()
        if (declared := data.placement.get(role)) in rows.columns
    ]
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
    return value.alias(f"slice_{name}")
