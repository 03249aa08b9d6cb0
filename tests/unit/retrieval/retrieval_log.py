from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from shortlist.contracts import Columns, Files
from shortlist.slates.retrieval.retriever import build_catalogue
from shortlist.slates.retrieval.source import FitInputs
from shortlist.spec.data import Data
from shortlist.spec.retrieval import ItemIndex
from shortlist.storage.side_tables import SIDE_FOLDER
from shortlist.storage.tables import DayTable, DayTableWriter

FIRST_DAY = date(2026, 3, 1)

DATA: dict[str, Any] = {
    "source": {"kind": "files"},
    "columns": [
        {"name": "user_id", "type": "integer"},
        {"name": "item_id", "type": "integer"},
        {"name": "surface", "type": "string"},
        {"name": "is_click", "type": "integer"},
    ],
    "label": "is_click",
    "clock": {"kind": "column", "column": "event_time", "unit": "s"},
    "user": "user_id",
    "item": "item_id",
    "side_tables": [
        {
            "name": "users",
            "path": "users.parquet",
            "key": "user_id",
            "columns": [{"name": "user_id", "type": "integer"}, {"name": "country", "type": "string"}],
        },
        {
            "name": "items",
            "path": "items.parquet",
            "key": "item_id",
            "columns": [
                {"name": "item_id", "type": "integer"},
                {"name": "topic", "type": "string"},
                {"name": "tags", "type": "tags"},
                {"name": "price", "type": "number"},
                {"name": "content", "type": "vector"},
            ],
        },
    ],
}

Row = tuple[int, int, int, str, int]
"""Columns of a row: user, item, day from 0, surface, label."""


def days(*numbers: int) -> frozenset[date]:
    return frozenset(FIRST_DAY + timedelta(days=number) for number in numbers)


def declared(**changes: Any) -> Data:
    return Data.model_validate(DATA | changes)


class Log:
    """A validated log made of a few rows; later rows of a day are later in time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(
        self, rows: Sequence[Row], users: dict[str, Any] | None = None, items: dict[str, Any] | None = None
    ) -> DayTable:
        self.folder.mkdir(exist_ok=True)
        side = self.folder / SIDE_FOLDER
        side.mkdir(exist_ok=True)
        item_ids = sorted({item for _, item, *_ in rows})
        plain = {"topic": ["none"] * len(item_ids), "tags": [[]] * len(item_ids), "price": [1.0] * len(item_ids)}
        vectors = {"content": [None] * len(item_ids)}
        pl.DataFrame(
            items or {"item_id": item_ids, **plain, **vectors},
            schema_overrides={"content": pl.List(pl.Float32), "tags": pl.List(pl.String)},
        ).write_parquet(side / "items.parquet")
        people = sorted({user for user, *_ in rows})
        pl.DataFrame(users or {"user_id": people, "country": ["DE"] * len(people)}).write_parquet(
            side / "users.parquet"
        )
        frame = pl.DataFrame(
            {
                "user_id": [row[0] for row in rows],
                "item_id": [row[1] for row in rows],
                "surface": [row[3] for row in rows],
                Columns.LABEL: pl.Series([row[4] for row in rows], dtype=pl.Int8),
                Columns.DAY: [FIRST_DAY + timedelta(days=row[2]) for row in rows],
                Columns.TIME: [
                    datetime(2026, 3, 1, 8, tzinfo=UTC) + timedelta(days=row[2], seconds=place)
                    for place, row in enumerate(rows)
                ],
            },
            schema_overrides={Columns.TIME: pl.Datetime("us", "UTC")},
        )
        writer = DayTableWriter(self.folder, Files.LOG, 1_000)
        writer.append(frame)
        return writer.close()


def fit_data(
    table: DayTable, data: Data, *numbers: int, max_items: int = 10, index: ItemIndex | None = None
) -> FitInputs:
    fitted_days = days(*numbers)
    return FitInputs(
        table, data, fitted_days, build_catalogue(data, table, fitted_days), index or ItemIndex(), max_items, 7
    )
