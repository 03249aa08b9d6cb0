"""Logs with truncated files, or files with other columns."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shortlist.serving.log.log_reader import LogPartError, files_of, parts, read_log, read_parts
from shortlist.serving.log.logs import (
    FEATURE_COLUMNS,
    PART,
    SLATE_COLUMNS,
    logged_inputs,
    outcome_schema,
    prediction_schema,
)
from shortlist.spec.data import Data

NOW = datetime(2026, 1, 2, tzinfo=UTC)
COLUMNS = [
    {"name": "user_id", "type": "integer"},
    {"name": "item_id", "type": "string"},
    {"name": "page", "type": "string"},
    {"name": "words", "type": "tags"},
    {"name": "made", "type": "date"},
    {"name": "status", "type": "integer"},
    {"name": "query", "type": "vector"},
    {"name": "seconds", "type": "number", "known": "after"},
    {"name": "number", "type": "integer"},
    {"name": "is_click", "type": "integer"},
]
DATA = Data.model_validate(
    {
        "source": {"kind": "files"},
        "columns": COLUMNS,
        "label": "is_click",
        "impression": "number",
        "user": "user_id",
        "item": "item_id",
        "clock": {"kind": "column", "column": "time", "unit": "s"},
    }
)
SCHEMA = prediction_schema(DATA)
ANSWER = {"time": NOW, "request_id": "a", "version": 3, "status": 200, "items": ["x"], "scores": [0.5]}


def write(folder: Path, schema: pa.Schema, *rows: dict[str, Any], number: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), folder / PART.format(number=number))
    return folder / PART.format(number=number)


def schema_excluding(*names: str) -> pa.Schema:
    return pa.schema([field for field in SCHEMA if field.name not in names])


def test_the_log_has_columns_known_before_and_no_outcomes() -> None:
    assert list(logged_inputs(DATA)) == ["user_id", "page", "words", "made", "status"]
    sent = list(SCHEMA)[16 : -len((*FEATURE_COLUMNS, *SLATE_COLUMNS))]
    inputs = {field.name: field.type.value_type for field in sent}
    assert inputs == {
        "event_time": pa.timestamp("us", "UTC"),
        "user_id": pa.int64(),
        "page": pa.string(),
        "words": pa.list_(pa.string()),
        "made": pa.date32(),
        "sent:status": pa.int64(),  # `status` is the answer's
    }
    assert SCHEMA.field("items").type.value_type == pa.string()
    assert SCHEMA.field("status").type == pa.int16()


def test_inputs_that_an_older_log_does_not_hold_are_null(tmp_path: Path) -> None:
    write(tmp_path / "old", schema_excluding("page", "words", "made", "sent:status", "event_time"), ANSWER)
    write(tmp_path / "new", SCHEMA, {**ANSWER, "page": ["home"], "made": [date(2026, 1, 1)]})
    rows = read_log(tmp_path, SCHEMA)
    assert rows["page"].to_list() == [["home"], None]
    assert rows["made"].to_list() == [[date(2026, 1, 1)], None]
    assert rows["scores"].to_list() == [[0.5], [0.5]]
    assert rows.columns == SCHEMA.names


def test_a_column_that_is_no_longer_declared_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, SCHEMA.append(pa.field("gone", pa.list_(pa.int64()))), {**ANSWER, "gone": [1]})
    assert read_log(tmp_path, SCHEMA).columns == SCHEMA.names


def test_only_requested_columns_are_read(tmp_path: Path) -> None:
    write(tmp_path, SCHEMA, ANSWER)
    assert read_parts(parts(tmp_path), SCHEMA, ["page", "version"]).to_dicts() == [{"page": None, "version": 3}]


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (
            schema_excluding("scores"),
            r"part-000000\.parquet: got no column 'scores' \(time, request_id, .*\); restore the file, or",
        ),
        (schema_excluding("request_id"), "got no column 'request_id'"),
        (
            pa.schema([*schema_excluding("page"), pa.field("page", pa.list_(pa.int64()))]),
            r"part-000000\.parquet: column 'page': got List\(Int64\); wanted List\(String\); restore the file",
        ),
        (
            pa.schema([*schema_excluding("status"), pa.field("status", pa.string())]),
            "column 'status': got String; wanted Int16",
        ),
        (pa.schema([*schema_excluding("time"), pa.field("time", pa.timestamp("us"))]), "column 'time': got Datetime"),
    ],
)
def test_a_file_of_another_log_is_refused(tmp_path: Path, schema: pa.Schema, sentence: str) -> None:
    write(tmp_path, schema)
    with pytest.raises(LogPartError, match=sentence):
        read_log(tmp_path, SCHEMA)


@pytest.mark.parametrize("kept_share", [0, 3, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_named(tmp_path: Path, kept_share: float) -> None:
    whole = write(tmp_path, SCHEMA, ANSWER, number=0)
    torn = write(tmp_path, SCHEMA, *[{**ANSWER, "request_id": str(number)} for number in range(500)], number=1)
    data = torn.read_bytes()
    torn.write_bytes(data[: int(kept_share * len(data)) if kept_share < 1 else int(kept_share)])
    with pytest.raises(LogPartError, match=r"part-000001\.parquet: cannot be read \(.+\); wanted a whole Parquet file"):
        read_log(tmp_path, SCHEMA)
    assert read_parts([whole], SCHEMA).height == 1


def test_a_file_with_broken_pages_is_named(tmp_path: Path) -> None:
    write(tmp_path, SCHEMA, ANSWER, number=0)
    spoilt = write(tmp_path, SCHEMA, *[{**ANSWER, "request_id": str(number)} for number in range(5_000)], number=1)
    data = bytearray(spoilt.read_bytes())
    data[4:4_000] = bytes(3_996)  # the footer still says where everything is
    spoilt.write_bytes(data)
    with pytest.raises(LogPartError, match=r"part-000001\.parquet: cannot be read"):
        read_log(tmp_path, SCHEMA)


def test_outcomes_that_others_write_may_use_wider_types(tmp_path: Path) -> None:
    schema = outcome_schema(pa.int64())
    times = pl.Series([NOW]).dt.cast_time_unit("ns")
    foreign_rows = pl.DataFrame({"time": times, "request_id": ["a"], "row": [3], "label": [True]})
    tmp_path.joinpath("theirs").mkdir()
    foreign_rows.write_parquet(tmp_path / "theirs" / PART.format(number=0))
    write(tmp_path / "ours", schema, {"time": NOW, "request_id": "b", "item": 7, "row": 1, "label": 0})
    rows = read_log(tmp_path, schema)
    assert rows.schema == pl.Schema(pl.from_arrow(schema.empty_table()).schema)
    assert rows.rows() == [(NOW, "b", 7, 1, 0), (NOW, "a", None, 3, 1)]


def test_a_corrupted_file_is_read_or_refused(tmp_path: Path) -> None:
    rows = [{**ANSWER, "request_id": str(number), "page": ["home", "cart"], "words": [["a"]]} for number in range(20)]
    path, messages = write(tmp_path, SCHEMA, *rows), set()
    whole, chance = path.read_bytes(), random.Random(3)
    for _ in range(400):
        spoilt = bytearray(whole)
        for _ in range(chance.randrange(1, 20)):
            spoilt[chance.randrange(len(spoilt))] = chance.randrange(256)
        path.write_bytes(spoilt)
        try:
            read_log(tmp_path, SCHEMA)
        except LogPartError as refused:  # also where Polars itself panics
            messages.add(str(refused).partition(": ")[0])
    assert messages == {str(path)}


def test_folders_that_are_removed_while_a_log_is_listed_are_no_fault(tmp_path: Path) -> None:
    # Of 500 listings by Path.glob, about 35 raised FileNotFoundError.
    kept_path = tmp_path / "kept" / PART.format(number=1)
    kept_path.parent.mkdir()
    kept_path.touch()
    finished = threading.Event()

    def churn() -> None:
        while not finished.is_set():
            writers = [tmp_path / f"writer-{number}" for number in range(20)]
            for writer in writers:
                writer.mkdir()
            for writer in writers:
                writer.rmdir()

    with ThreadPoolExecutor(1) as pool:
        churning = pool.submit(churn)
        try:
            assert all(files_of(tmp_path, "**/part-*.parquet") == [kept_path] for _ in range(500))
            assert all(parts(tmp_path) == [kept_path] for _ in range(500))
        finally:
            finished.set()
        churning.result()
