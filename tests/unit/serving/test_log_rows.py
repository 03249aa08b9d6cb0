"""Rows of logs as records, and rows with other columns or types."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shortlist.serving.log.log_rows import LogRowsError, declared_rows, decode_rows, encode_rows, stored_rows
from shortlist.serving.log.logs import (
    FEATURE_COLUMNS,
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
OUTCOME = ["time", "request_id", "item", "row", "label"]
ANSWER = {"time": NOW, "request_id": "a", "version": 3, "status": 200, "items": ["x"], "scores": [0.5]}


def rows_of(schema: pa.Schema, *rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


def schema_excluding(*names: str) -> pa.Schema:
    return pa.schema([field for field in SCHEMA if field.name not in names])


def test_the_log_has_columns_known_before_and_no_outcomes() -> None:
    assert list(logged_inputs(DATA)) == ["user_id", "page", "words", "made", "status"]
    sent = list(SCHEMA)[18 : -len((*FEATURE_COLUMNS, *SLATE_COLUMNS))]
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


def test_rows_come_back_from_a_record_unchanged(tmp_path: Path) -> None:
    rows = rows_of(SCHEMA, {**ANSWER, "page": ["home", None], "words": [["x"], []]}, ANSWER)
    assert decode_rows(encode_rows(rows)).equals(rows)


def test_inputs_that_older_rows_do_not_hold_are_null() -> None:
    rows = rows_of(schema_excluding("page", "words", "made", "sent:status", "event_time"), ANSWER)
    assert declared_rows(rows, SCHEMA, SCHEMA.names).columns == SCHEMA.names
    assert declared_rows(rows, SCHEMA, ["page", "version"]).to_dicts() == [{"page": None, "version": 3}]


def test_a_column_that_is_no_longer_declared_is_left_out() -> None:
    rows = rows_of(SCHEMA.append(pa.field("gone", pa.list_(pa.int64()))), {**ANSWER, "gone": [1]})
    assert declared_rows(rows, SCHEMA, SCHEMA.names).columns == SCHEMA.names


def test_stored_rows_have_the_types_of_the_table_and_new_columns_last() -> None:
    table = schema_excluding("page", "version").append(pa.field("version", pa.int32()))
    rows = stored_rows(rows_of(SCHEMA, {**ANSWER, "page": ["home"]}), table)
    assert rows.schema.field("version").type == pa.int32()
    assert rows.column_names[-1] == "page"
    with pytest.raises(LogRowsError, match=r"column 'version': .*3000000000"):
        stored_rows(rows_of(SCHEMA, {**ANSWER, "version": 3_000_000_000}), table)


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (
            schema_excluding("scores"),
            r"got no column 'scores' \(time, request_id, .*\)",
        ),
        (schema_excluding("request_id"), "got no column 'request_id'"),
        (
            pa.schema([*schema_excluding("page"), pa.field("page", pa.list_(pa.int64()))]),
            r"column 'page': got list<.*int64>; wanted list<.*string>",
        ),
        (
            pa.schema([*schema_excluding("status"), pa.field("status", pa.string())]),
            "column 'status': got string; wanted int16",
        ),
        (pa.schema([*schema_excluding("time"), pa.field("time", pa.timestamp("us"))]), "column 'time': got timestamp"),
    ],
)
def test_rows_of_another_log_are_refused(schema: pa.Schema, sentence: str) -> None:
    with pytest.raises(LogRowsError, match=sentence):
        declared_rows(rows_of(schema, {name: ANSWER.get(name) for name in schema.names if name == "request_id"}),
                      SCHEMA, SCHEMA.names)  # fmt: skip


def test_outcomes_may_use_wider_types() -> None:
    schema = outcome_schema(pa.int64())
    times = pa.array([NOW], pa.timestamp("ns", "UTC"))
    rows = declared_rows(pa.table({"time": times, "request_id": ["a"], "row": [3], "label": [True]}), schema, OUTCOME)
    assert rows.rows() == [(NOW, "a", None, 3, 1)]
