"""Facts for the page from the tables of a run, read file by file."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import Field

from shortlist.contracts import Columns, Files
from shortlist.evaluation.metrics.records import Record
from shortlist.storage.tables import DayTable

_SAMPLES = 3


class FeatureFact(Record):
    """Facts of one column of the feature table, over all its days."""

    name: str
    kind: str
    size: int | None
    """Number of ids, 0 included, or width of a vector."""
    missing_share: float | None = Field(ge=0, le=1)
    """Share of null numbers, unknown ids, empty lists or zero vectors."""
    mean: float | None
    """Mean of numbers, or mean length of lists."""


class BrokenRule(Record):
    """A rule that rows broke, with the number of rows and samples."""

    rule: str
    rows: int
    samples: tuple[tuple[str, int | None, str], ...]
    """(file, line, detail) of the first few rows."""


def feature_facts(table: DayTable) -> list[FeatureFact]:
    """Return the facts of every feature, in the table's order; the table is read once, file by file."""
    columns: list[dict[str, Any]] = table.notes.get("columns", [])
    queries = [query for column in columns for query in _sums(column["name"], column["kind"])]
    parts = [frame.select(queries) for _, frame in table.frames()]
    sums = pl.concat(parts).sum().row(0, named=True) if parts else {}
    return [_fact(column, sums, table.rows) for column in columns]


def broken_rules(quarantine: Path) -> list[BrokenRule]:
    """Return the rules that quarantined rows broke, most rows first.

    Args:
        quarantine: Folder of the quarantine, or its file.
    """
    path = quarantine / Files.QUARANTINE if quarantine.is_dir() else quarantine
    if not path.is_file():
        return []
    samples = pl.struct(Columns.SOURCE_FILE, Columns.SOURCE_LINE, Columns.DETAIL).head(_SAMPLES)
    by_rule = pl.scan_parquet(path).group_by(Columns.RULE).agg(pl.len().alias(Columns.ROWS), samples.alias("samples"))
    lines = by_rule.sort([Columns.ROWS, Columns.RULE], descending=[True, False]).collect()
    return [
        BrokenRule(rule=rule, rows=rows, samples=tuple((_name(s), s[Columns.SOURCE_LINE], _detail(s)) for s in first))
        for rule, rows, first in lines.iter_rows()
    ]


def split_days(table: DayTable) -> dict[str, list[date]]:
    """Return the days of every part of the split, in time order."""
    split: dict[str, list[str]] = table.notes.get("split", {})
    return {part: [date.fromisoformat(day) for day in days] for part, days in split.items()}


def split_rows(table: DayTable) -> dict[str, int]:
    """Return the rows of every part of the split."""
    rows = {part.day: part.rows for part in table.days}
    return {part: sum(rows.get(day, 0) for day in days) for part, days in split_days(table).items()}


def _sums(name: str, kind: str) -> Iterable[pl.Expr]:
    column = pl.col(name)
    missing: dict[str, pl.Expr] = {
        "dense": column.is_null() | column.is_nan(),
        "id": column == 0,
        "ids": column.list.len() == 0,
        "vector": (column.arr.min() == 0) & (column.arr.max() == 0),
    }
    yield missing[kind].fill_null(value=True).sum().cast(pl.Int64).alias(f"{name}:missing")
    if kind == "dense":
        yield column.cast(pl.Float64).fill_nan(None).sum().alias(f"{name}:sum")
    if kind == "ids":
        yield column.list.len().cast(pl.Float64).sum().alias(f"{name}:sum")


def _fact(column: dict[str, Any], sums: dict[str, Any], rows: int) -> FeatureFact:
    name, kind = column["name"], column["kind"]
    missing, total = sums.get(f"{name}:missing"), sums.get(f"{name}:sum")
    counted = rows - (missing or 0) if kind == "dense" else rows
    return FeatureFact(
        name=name,
        kind=kind,
        size=column.get("width") if kind == "vector" else column.get("size"),
        missing_share=missing / rows if rows and missing is not None else None,
        mean=total / counted if counted and total is not None else None,
    )


def _name(sample: dict[str, Any]) -> str:
    return Path(sample[Columns.SOURCE_FILE] or "").name


def _detail(sample: dict[str, Any]) -> str:
    return str(sample[Columns.DETAIL] or "")
