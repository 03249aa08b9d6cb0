"""Fixtures that declare, ingest and validate small logs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from shortlist.contracts import Files
from shortlist.data.ingest import REJECTED, ingest
from shortlist.data.validate import validate
from shortlist.spec.data import Data
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable

CLICKS: list[dict[str, Any]] = [
    {"name": "user_id", "type": "integer"},
    {"name": "price", "type": "number"},
    {"name": "click", "type": "integer"},
]
SECONDS = {"kind": "column", "column": "time", "unit": "s"}
NOW = datetime(2024, 1, 9, tzinfo=UTC)


@pytest.fixture
def declare() -> Callable[..., Data]:
    """Build a data section: by default clicks of users at seconds since 1970."""

    def build_data(columns: list[dict[str, Any]] = CLICKS, **sections: Any) -> Data:
        source = {"kind": "files", **sections.pop("source", {})}
        settings = {"label": "click", "clock": SECONDS, "columns": columns, **sections}
        return Data.model_validate({"source": source, **settings})

    return build_data


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., tuple[pl.DataFrame, pl.DataFrame, DayTable]]:
    """Ingest; return the raw rows, the rejected ones and the table."""

    def ingest_rows(data: Data, location: Path) -> tuple[pl.DataFrame, pl.DataFrame, DayTable]:
        table = ingest(data, location, tmp_path / "raw", Runtime(chunk_rows=1_000))
        rows = table.scan().collect() if table.rows else pl.DataFrame()
        return rows, pl.read_parquet(table.folder / REJECTED), table

    return ingest_rows


@pytest.fixture
def judge(tmp_path: Path) -> Callable[..., tuple[pl.DataFrame, pl.DataFrame, DayTable]]:
    """Ingest and validate; return the valid rows, the quarantined ones and the table."""

    def validate_rows(
        data: Data, location: Path, now: datetime = NOW, chunk_rows: int = 1_000, until: datetime | None = None
    ) -> tuple[pl.DataFrame, pl.DataFrame, DayTable]:
        runtime = Runtime(chunk_rows=chunk_rows)
        ingest(data, location, tmp_path / "raw", runtime)
        table = validate(data, tmp_path / "raw", tmp_path / "valid", tmp_path / "quarantine", runtime, now, until)
        return table.scan().collect(), pl.read_parquet(tmp_path / "quarantine" / Files.QUARANTINE), table

    return validate_rows
