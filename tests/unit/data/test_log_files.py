"""Files of one log differ: a column comes later, a key is written in several ways, a file is read by nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from shortlist.contracts import DataError
from shortlist.data.log_notices import LACKING, lacking_column_notices, unread_file_notices
from shortlist.data.sample_check import check_sample
from shortlist.spec.data import Data
from shortlist.storage.tables import DayTable

START = datetime(2024, 1, 1, tzinfo=UTC)
Declare = Callable[..., Data]
Read = Callable[..., tuple[pl.DataFrame, pl.DataFrame, DayTable]]
COLUMNS = [
    {"name": "user_id", "type": "integer"},
    {"name": "device", "type": "string"},
    {"name": "click", "type": "integer"},
]
ROWS_PER_FILE = 400


def rows_of_day(day: int, **columns: Any) -> pl.DataFrame:
    seconds = [int(START.timestamp()) + day * 86_400 + 7 * row for row in range(ROWS_PER_FILE)]
    frame = pl.DataFrame({"time": seconds, "user_id": [row % 50 for row in range(ROWS_PER_FILE)]})
    click = [int(row % 4 == 0) for row in range(ROWS_PER_FILE)]
    return frame.with_columns(pl.Series("click", click), **columns)


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_a_column_that_older_files_lack_is_null_in_their_rows(
    ending: str, tmp_path: Path, declare: Declare, read: Read
) -> None:
    for day in range(4):
        frame = rows_of_day(day, device=pl.lit("ios")) if day > 1 else rows_of_day(day)
        path = tmp_path / f"{day}.{ending}"
        {"csv": frame.write_csv, "parquet": frame.write_parquet, "jsonl": frame.write_ndjson}[ending](path)
    rows, rejected, table = read(declare(COLUMNS, source={"path": f"*.{ending}"}), tmp_path)
    assert rows.height == 4 * ROWS_PER_FILE and rejected.is_empty()
    assert rows.group_by("day").agg(pl.col("device").null_count()).sort("day")["device"].to_list() == [400, 400, 0, 0]
    assert table.notes[LACKING] == {"device": 2}
    assert list(lacking_column_notices(table.notes)) == [
        "The log: column 'device' is not in 2 of its files; it is null in their rows."
    ]


@pytest.mark.parametrize(("lacking_file", "column"), [(3, "device"), (0, "click"), (0, "time")])
def test_a_column_that_disappears_or_that_every_row_needs_is_refused(
    lacking_file: int, column: str, tmp_path: Path, declare: Declare, read: Read
) -> None:
    for day in range(4):
        frame = rows_of_day(day, device=pl.lit("ios"))
        (frame.drop(column) if day == lacking_file else frame).write_csv(tmp_path / f"{day}.csv")
    with pytest.raises(DataError, match=rf"^{lacking_file}\.csv \(the log\): declared column '{column}' is missing"):
        read(declare(COLUMNS, source={"path": "*.csv"}), tmp_path)


def test_a_nameless_column_is_ignored(tmp_path: Path, declare: Declare, read: Read) -> None:
    rows_of_day(0, device=pl.lit("web")).with_row_index("").write_csv(tmp_path / "log.csv")
    rows, _, _ = read(declare(COLUMNS), tmp_path / "log.csv")
    assert rows.height == ROWS_PER_FILE and "" not in rows.columns


def test_the_delimiter_is_declared(tmp_path: Path, declare: Declare, read: Read) -> None:
    rows_of_day(0, device=pl.lit("a,b")).write_csv(tmp_path / "log.csv", separator=";")
    rows, _, _ = read(declare(COLUMNS, source={"delimiter": ";"}), tmp_path / "log.csv")
    assert rows["device"].unique().to_list() == ["a,b"] and rows["user_id"].n_unique() == 50


def test_leading_zeros_of_an_integer_key_are_quarantined_and_of_a_text_key_preserved(
    tmp_path: Path, declare: Declare, read: Read
) -> None:
    key = pl.when(pl.int_range(pl.len()) == 7).then(pl.lit("0101")).otherwise(pl.col("user_id").cast(pl.String))
    rows_of_day(0, device=pl.lit("ios")).with_columns(user_id=key).write_csv(tmp_path / "log.csv")
    rows, rejected, _ = read(declare(COLUMNS, user="user_id"), tmp_path / "log.csv")
    assert rows.height == ROWS_PER_FILE - 1
    assert rejected["detail"].to_list() == [
        "user_id: got '0101', wanted an integer without leading zeros (type: string keeps them)"
    ]
    texts = [{**COLUMNS[0], "type": "string"}, *COLUMNS[1:]]
    rows, rejected, _ = read(declare(texts, user="user_id"), tmp_path / "log.csv")
    assert rejected.is_empty() and "0101" in rows["user_id"].to_list()


def test_a_key_is_the_same_in_files_of_integers_floats_and_texts(tmp_path: Path, declare: Declare, read: Read) -> None:
    for day, kind in enumerate((pl.Int64, pl.Float64, pl.String, pl.UInt64)):
        rows_of_day(day, device=pl.lit("ios")).cast({"user_id": kind}).write_parquet(tmp_path / f"{day}.parquet")
    texts = [{**COLUMNS[0], "type": "string"}, *COLUMNS[1:]]
    rows, _, _ = read(declare(texts, source={"path": "*.parquet"}, user="user_id"), tmp_path)
    assert rows["user_id"].n_unique() == 50


def test_unsigned_keys_of_64_bits_are_read_as_texts(tmp_path: Path, declare: Declare, read: Read) -> None:
    large = pl.col("user_id").cast(pl.UInt64) + 2**63
    rows_of_day(0, device=pl.lit("ios")).with_columns(user_id=large).write_parquet(tmp_path / "log.parquet")
    texts = [{**COLUMNS[0], "type": "string"}, *COLUMNS[1:]]
    rows, _, _ = read(declare(texts, user="user_id"), tmp_path / "log.parquet")
    assert str(2**63) in rows["user_id"].to_list() and rows["user_id"].n_unique() == 50


def test_the_check_names_a_key_that_is_written_in_two_forms(tmp_path: Path, declare: Declare) -> None:
    for day in range(6):
        key = pl.concat_str(pl.col("user_id"), pl.lit(".0" if day == 5 else ""))
        rows_of_day(day, device=pl.lit("ios")).with_columns(user_id=key).write_csv(tmp_path / f"{day}.csv")
    texts = [{**COLUMNS[0], "type": "string"}, *COLUMNS[1:]]
    data = declare(texts, source={"path": "*.csv"}, user="user_id")
    (problem,) = check_sample(data, tmp_path).problems
    assert re.match(r"key 'user_id' is written in two ways: '(\d+)' and '\1\.0' are one key", problem)
    assert check_sample(declare(COLUMNS, source={"path": "*.csv"}, user="user_id"), tmp_path).problems == ()


def test_the_check_reads_rows_of_every_file(tmp_path: Path, declare: Declare) -> None:
    for day in range(12):
        device = pl.lit("ios") if day < 11 else pl.lit(None, pl.String)
        rows_of_day(day, device=device).write_parquet(tmp_path / f"{day:02}.parquet")
    columns = [COLUMNS[0], {**COLUMNS[1], "nullable": False}, COLUMNS[2]]
    report = check_sample(declare(columns, source={"path": "*.parquet"}), tmp_path, max_rows=1_200)
    assert report.rows == 12 * 200 and report.facts is not None and report.facts.raw_rows == 12 * ROWS_PER_FILE
    assert any("200 rows break 'not_null', e.g. 11.parquet" in problem for problem in report.problems)


def test_the_check_names_files_that_nothing_reads(tmp_path: Path, declare: Declare) -> None:
    for day in (1, 2, 32):
        moment = START + timedelta(days=day)
        rows_of_day(day, device=pl.lit("ios")).write_csv(tmp_path / f"{moment:%Y-%m-%d}.csv")
    data = declare(COLUMNS, source={"path": "2024-01-*.csv"})
    assert list(unread_file_notices(data, tmp_path)) == [
        f"{tmp_path}: nothing reads 2024-02-02.csv; the log's path is '2024-01-*.csv' (data.source)."
    ]
    assert list(unread_file_notices(declare(COLUMNS, source={"path": ""}), tmp_path)) == []
