"""A log in a Delta table: the same rows as in other files, whatever was added to its schema, at a version."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake

from shortlist.contracts import Columns, DataError
from shortlist.data.digest import input_digest
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.spec.data import Data
from shortlist.spec.runtime import Runtime
from shortlist.storage.row_digest import DIGESTS

NOW = datetime(2026, 3, 9, tzinfo=UTC)
RUNTIME = Runtime(engine="cpu")
FIRST = datetime(2026, 3, 2, 12, tzinfo=UTC)


def declared(**source: Any) -> Data:
    return Data.model_validate(
        {
            "source": source,
            "columns": [
                {"name": "user_id", "type": "integer"},
                {"name": "page", "type": "string"},
                {"name": "price", "type": "number"},
                {"name": "clicked", "type": "integer"},
            ],
            "label": "clicked",
            "clock": {"kind": "column", "column": "time", "unit": "iso"},
            "rules": {"min_rows": 1, "undeclared_columns": "ignore"},
        }
    )


def log_rows(first_day: int = 0, days: int = 4) -> pl.DataFrame:
    numbers = range(first_day * 20, (first_day + days) * 20)
    return pl.DataFrame(
        {
            "time": [FIRST + timedelta(days=number // 20, minutes=number % 20) for number in numbers],
            "user_id": [number % 7 for number in numbers],
            "page": [("home", "cart", None)[number % 3] for number in numbers],
            "price": [number / 4 for number in numbers],
            "clicked": [number % 2 for number in numbers],
        },
        schema_overrides={"time": pl.Datetime("us", "UTC")},
    )


def with_day(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(pl.col("time").dt.date().alias("day"))


def digests_of(data: Data, location: Path, out: Path) -> dict[str, str]:
    ingest(data, location, out / "raw", RUNTIME)
    table = validate(data, out / "raw", out / "valid", out / "quarantine", RUNTIME, NOW)
    digests: dict[str, str] = table.notes[DIGESTS]
    return digests


def test_the_same_log_as_csv_parquet_and_delta_has_the_same_digests(tmp_path: Path) -> None:
    rows = log_rows()
    rows.with_columns(pl.col("time").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")).write_csv(tmp_path / "log.csv")
    rows.write_parquet(tmp_path / "log.parquet")
    for day in range(4):  # a commit a day, partitioned by a column that the spec does not declare
        write_deltalake(tmp_path / "log", with_day(log_rows(day, 1)).to_arrow(), mode="append", partition_by=["day"])
    of_csv = digests_of(declared(kind="files", path="log.csv"), tmp_path, tmp_path / "csv")
    assert len(of_csv) == 4
    assert digests_of(declared(kind="files", path="log.parquet"), tmp_path, tmp_path / "parquet") == of_csv
    assert digests_of(declared(kind="delta", path="log"), tmp_path, tmp_path / "delta") == of_csv
    DeltaTable(tmp_path / "log").optimize.compact()
    assert digests_of(declared(kind="delta", path="log"), tmp_path, tmp_path / "compacted") == of_csv


def test_a_declared_column_may_be_one_that_the_table_is_partitioned_by(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "log", log_rows().fill_null("none").to_arrow(), partition_by=["page"])
    table = ingest(declared(kind="delta", path="log"), tmp_path, tmp_path / "raw", RUNTIME)
    read = table.scan().sort(Columns.TIME).collect()
    assert read["page"].to_list() == log_rows()["page"].fill_null("none").to_list()


def test_a_column_that_was_added_later_is_null_in_old_rows(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "log", log_rows(0, 1).drop("price").to_arrow())
    write_deltalake(tmp_path / "log", log_rows(1, 1).to_arrow(), mode="append", schema_mode="merge")
    table = ingest(declared(kind="delta", path="log"), tmp_path, tmp_path / "raw", RUNTIME)
    prices = table.scan().sort(Columns.TIME).collect()["price"].to_list()
    assert prices == [None] * 20 + log_rows(1, 1)["price"].to_list()


def test_a_declared_version_is_read_whatever_was_added_since(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "log", log_rows(0, 1).to_arrow())
    pinned, newest = declared(kind="delta", path="log", version=0), declared(kind="delta", path="log")
    before = input_digest(pinned, tmp_path)
    assert before == input_digest(newest, tmp_path)
    write_deltalake(tmp_path / "log", log_rows(1, 1).to_arrow(), mode="append")
    assert input_digest(pinned, tmp_path) == before != input_digest(newest, tmp_path)
    assert ingest(pinned, tmp_path, tmp_path / "pinned", RUNTIME).notes["raw_rows"] == 20
    assert ingest(newest, tmp_path, tmp_path / "newest", RUNTIME).notes["raw_rows"] == 40


def test_tables_that_cannot_be_read_are_refused_with_the_next_step(tmp_path: Path) -> None:
    delta = declared(kind="delta", path="log")
    with pytest.raises(DataError, match=r"log: no Delta table \(there is no folder _delta_log\); check data.source"):
        ingest(delta, tmp_path, tmp_path / "raw", RUNTIME)
    write_deltalake(tmp_path / "log", log_rows(0, 1).to_arrow())
    with pytest.raises(DataError, match=r"version 7 of the table cannot be read; the newest is 0"):
        ingest(declared(kind="delta", path="log", version=7), tmp_path, tmp_path / "raw", RUNTIME)
    with pytest.raises(DataError, match="'price'"):
        write_deltalake(tmp_path / "narrow", log_rows(0, 1).drop("price").to_arrow())
        ingest(declared(kind="delta", path="narrow"), tmp_path, tmp_path / "raw", RUNTIME)
    DeltaTable(tmp_path / "log").delete()
    with pytest.raises(DataError, match="version 1 of the table has no rows"):
        ingest(delta, tmp_path, tmp_path / "raw", RUNTIME)
    assert not (tmp_path / "raw").exists()
