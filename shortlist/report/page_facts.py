"""Facts for the page from the tables of a run, read file by file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pydantic import Field

from shortlist.contracts import Columns, Files
from shortlist.data.rules.leakage import has_both_labels, single_column_aucs
from shortlist.evaluation.metrics.records import Record
from shortlist.storage.row_digest import row_hashes
from shortlist.storage.tables import DayTable

_SAMPLES = 3
_RANKED_ROWS = 50_000
"""Most test rows, and most rows of the days before, on which features are ranked alone."""
_RANKED_VALUES = 10_000_000
"""Most values of all features in either part, so that memory does not grow with the features."""
_NEAR_SHARE = 0.8


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
    auc: float | None = Field(default=None, ge=0, le=1)
    """AUC of the feature alone on `ranked_rows` test rows: by the order of numbers, or by the label rate of a value on
    the days before. Null for vectors, and where a label is too rare."""
    ranked_rows: int = Field(default=0, ge=0)


class BrokenRule(Record):
    """A rule that rows broke, with the number of rows and samples."""

    rule: str
    rows: int
    samples: tuple[tuple[str, int | None, str], ...]
    """(file, line, detail) of the first few rows."""


def feature_facts(table: DayTable) -> list[FeatureFact]:
    """Return the facts of every feature, the best alone first; the table is read once, file by file."""
    columns: list[dict[str, Any]] = table.notes.get("columns", [])
    queries = [query for column in columns for query in _sums(column["name"], column["kind"])]
    sample = _RankedSample(table, {c["name"]: c["kind"] for c in columns if c["kind"] != "vector"})
    parts = []
    for day, frame in table.frames():
        parts.append(frame.select(queries))
        sample.add(day, frame)
    sums = pl.concat(parts).sum().row(0, named=True) if parts else {}
    aucs, ranked_rows = sample.rank_features()
    facts = [_fact(column, sums, table.rows, aucs.get(column["name"]), ranked_rows) for column in columns]
    return sorted(facts, key=lambda fact: -(fact.auc or 0))


def near_auc(auc: float) -> float:
    """Return the AUC from which a feature alone is near a model of some AUC: at four fifths of its lead over guessing.

    >>> round(near_auc(0.8), 2)
    0.74
    """
    return 0.5 + _NEAR_SHARE * (auc - 0.5)


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


class _RankedSample:
    """Random rows of the test days, whose features are ranked alone, and of the days before, which give label rates."""

    def __init__(self, table: DayTable, kinds: Mapping[str, str]) -> None:
        rows_by_part, days_by_part = split_rows(table), split_days(table)
        most_rows = min(_RANKED_ROWS, _RANKED_VALUES // max(len(kinds), 1))
        self._columns = [pl.struct(name).alias(name) if kind == "id" else pl.col(name) for name, kind in kinds.items()]
        self._names, self._days_before = list(kinds), set[date]()
        self._highest_hash: dict[date, np.uint64] = {}
        self._frames: list[pl.DataFrame] = []
        for parts in (("test",), ("train", "validation")):
            rows = sum(rows_by_part.get(part, 0) for part in parts)
            days = [day for part in parts for day in days_by_part.get(part, ())]
            highest = np.uint64(min(most_rows / max(rows, 1), 1) * (2**64 - 2**11))
            self._highest_hash |= dict.fromkeys(days, highest)
            self._days_before.update(days if "test" not in parts else ())

    def add(self, day: date, rows: pl.DataFrame) -> None:
        """Add those rows of a day whose impressions have a low hash."""
        if day in self._highest_hash:
            is_sampled = row_hashes(rows.select(Columns.IMPRESSION)) <= self._highest_hash[day]
            self._frames.append(rows.filter(is_sampled).select(Columns.DAY, Columns.LABEL, *self._columns))

    def rank_features(self) -> tuple[dict[str, float], int]:
        """Return the AUC of each feature alone, and the number of ranked rows; none where a label is too rare."""
        if not self._frames:
            return {}, 0
        rows = pl.concat(self._frames)
        label, is_earlier = (rows[Columns.LABEL] == 1).to_numpy(), rows[Columns.DAY].is_in(self._days_before).to_numpy()
        if not (has_both_labels(label[is_earlier]) and has_both_labels(label[~is_earlier])):
            return {}, 0
        return single_column_aucs(rows.select(self._names), label, is_earlier), int((~is_earlier).sum())


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


def _fact(column: dict[str, Any], sums: dict[str, Any], rows: int, auc: float | None, ranked_rows: int) -> FeatureFact:
    name, kind = column["name"], column["kind"]
    missing, total = sums.get(f"{name}:missing"), sums.get(f"{name}:sum")
    counted = rows - (missing or 0) if kind == "dense" else rows
    return FeatureFact(
        name=name,
        kind=kind,
        size=column.get("width") if kind == "vector" else column.get("size"),
        missing_share=missing / rows if rows and missing is not None else None,
        mean=total / counted if counted and total is not None else None,
        auc=auc,
        ranked_rows=ranked_rows,
    )


def _name(sample: dict[str, Any]) -> str:
    return Path(sample[Columns.SOURCE_FILE] or "").name


def _detail(sample: dict[str, Any]) -> str:
    return str(sample[Columns.DETAIL] or "")
