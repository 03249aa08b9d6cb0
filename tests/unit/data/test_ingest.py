"""A whole ingest: side tables, generated logs, order, and nothing half-written."""

from __future__ import annotations

import errno
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from shortlist.contracts import DataError, ShortlistError
from shortlist.storage.tables import DayTableWriter

NOON = 1_704_110_400  # 2024-01-01 12:00 UTC
USERS = {
    "name": "users",
    "path": "users.csv",
    "key": "user_id",
    "columns": [{"name": "user_id", "type": "integer"}, {"name": "age", "type": "integer"}],
}
PLACES = {
    "name": "places",
    "path": "places.npz",
    "key": "user_id",
    "columns": [{"name": "user_id", "source": "ids", "type": "integer"}, {"name": "place", "type": "vector"}],
}
Declare = Callable[..., Any]
Read = Callable[..., Any]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    rows = "".join(f"{NOON + n},{n % 3},1.5,{n % 2}\n" for n in range(6))
    (folder / "log.csv").write_text("time,user_id,price,click\n" + rows)
    (folder / "users.csv").write_text("user_id,age\n0,30\n1,old\n2,\n")
    np.savez(folder / "places.npz", ids=np.arange(3), place=np.eye(3, 2))
    return folder


def test_side_tables_are_written_beside_the_raw_log(log: Path, declare: Declare, read: Read) -> None:
    _, rejected, table = read(declare(source={"path": "log.csv"}, side_tables=[USERS, PLACES]), log)
    users = pl.read_parquet(table.folder / "side" / "users.parquet")
    assert users.select("user_id", "age").rows() == [(0, 30), (2, None)]
    places = pl.read_parquet(table.folder / "side" / "places.parquet")
    assert places["place"].to_list() == [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    assert rejected.rows() == [("users.csv", 3, "type", "age: got 'old', wanted an integer")]
    assert table.notes["side"] == {
        "users": {"raw_rows": 3, "rejected_rows": 1},
        "places": {"raw_rows": 3, "rejected_rows": 0},
    }
    assert table.notes["rejected_rows"] == 0  # of the log


def test_a_side_key_of_another_type_than_in_the_log_is_refused(log: Path, declare: Declare, read: Read) -> None:
    columns = [{"name": "user_id", "type": "string"}, {"name": "age", "type": "integer"}]
    with pytest.raises(DataError, match="its key 'user_id' is of type string there and integer in the log"):
        read(declare(source={"path": "log.csv"}, side_tables=[{**USERS, "columns": columns}]), log)


def test_a_side_table_without_rows_is_refused(log: Path, declare: Declare, read: Read) -> None:
    (log / "users.csv").write_text("user_id,age\n")
    with pytest.raises(DataError, match="side table 'users': its files hold no rows"):
        read(declare(source={"path": "log.csv"}, side_tables=[USERS]), log)


@pytest.mark.parametrize("kind", ["string", "tags", "hex"])
def test_a_label_that_cannot_be_0_or_1_is_refused(log: Path, declare: Declare, read: Read, kind: str) -> None:
    columns = [{"name": "user_id", "type": "integer"}, {"name": "click", "type": kind}]
    with pytest.raises(DataError, match=f"data.label 'click' is of type {kind}; wanted integer or number"):
        read(declare(columns), log / "log.csv")


def test_a_declared_impression_column_becomes_the_impression_id(log: Path, declare: Declare, read: Read) -> None:
    columns = [
        {"name": "view", "source": "user_id", "type": "integer"},
        {"name": "price", "type": "number"},
        {"name": "click", "type": "integer"},
    ]
    rows, _, _ = read(declare(columns, impression="view"), log / "log.csv")
    assert rows["impression_id"].to_list() == [0, 1, 2, 0, 1, 2]
    assert "view" not in rows.columns


def test_row_order_makes_days_of_equal_size_over_all_files(tmp_path: Path, declare: Declare, read: Read) -> None:
    for name, rows in (("a.csv", 3), ("b.csv", 5)):
        (tmp_path / name).write_text('title,click\n"two\nlines",1\n' + "x,0\n" * (rows - 1))
    columns = [{"name": "title", "type": "string"}, {"name": "click", "type": "integer"}]
    _, _, table = read(declare(columns, source={"path": "*.csv"}, clock={"kind": "row_order", "days": 4}), tmp_path)
    assert [part.rows for part in table.days] == [2, 2, 2, 2]


def test_rows_out_of_order_are_rejected_where_order_is_declared(tmp_path: Path, declare: Declare, read: Read) -> None:
    hours = [0, 2, 1, 2, 30, 29, 31]  # 1 comes after 2, and 29 after 30 across midnight
    text = "time,user_id,price,click\n" + "".join(f"{NOON + 3_600 * hour},1,1,0\n" for hour in hours)
    (tmp_path / "log.csv").write_text(text)
    _, rejected, _ = read(declare(rules={"sorted": True}), tmp_path / "log.csv")
    assert rejected.select("source_line", "rule").rows() == [(4, "time_order"), (7, "time_order")]
    assert rejected["detail"][0].endswith("wanted no earlier time than in a row before")
    assert read(declare(), tmp_path / "log.csv")[1].is_empty()


def test_every_format_gives_the_same_rows(tmp_path: Path, declare: Declare, read: Read) -> None:
    columns = [
        {"name": "user_id", "type": "integer"},
        {"name": "price", "type": "number"},
        {"name": "title", "type": "string"},
        {"name": "born", "type": "date"},
        {"name": "tags", "type": "tags", "separator": "|"},
        {"name": "click", "type": "integer"},
    ]
    frame = pl.DataFrame(
        {
            "time": [NOON + 3_600 * hour for hour in range(40)],
            "user_id": [None if n % 7 == 0 else n for n in range(40)],
            "price": [None if n % 5 == 0 else n / 8 for n in range(40)],
            "title": [None if n % 3 == 0 else f'{n}, "two"\nlines\té' for n in range(40)],
            "born": [None if n % 4 == 0 else date(2024, 1, 1 + n % 28) for n in range(40)],
            "tags": [None if n % 6 == 0 else ["a", f"{n}"] for n in range(40)],
            "click": [n % 2 for n in range(40)],
        }
    )
    with_joined_tags = frame.with_columns(pl.col("tags").list.join("|"))
    with_joined_tags.write_csv(tmp_path / "log.csv")
    with_joined_tags.write_csv(tmp_path / "log.tsv", separator="\t")
    frame.write_ndjson(tmp_path / "log.jsonl")
    frame.write_parquet(tmp_path / "log.parquet")
    suffixes = ("parquet", "csv", "tsv", "jsonl")
    rows_by_format = [read(declare(columns), tmp_path / f"log.{suffix}")[0] for suffix in suffixes]
    assert rows_by_format[0].select(feature_names(columns)).rows() == frame.select(feature_names(columns)).rows()
    for rows in rows_by_format[1:]:
        assert rows.drop("source_file", "source_line").equals(rows_by_format[0].drop("source_file", "source_line"))


def feature_names(columns: list[dict[str, Any]]) -> list[str]:
    return [column["name"] for column in columns if column["name"] != "click"]


def test_a_generated_log_is_ingested_with_its_planted_probabilities(
    tmp_path: Path, declare: Declare, read: Read
) -> None:
    columns = [
        {"name": "user_id", "type": "integer"},
        {"name": "item_id", "type": "integer"},
        {"name": "click", "source": "is_click", "type": "integer"},
    ]
    key = {"name": "item_id", "type": "integer"}
    data = declare(
        columns,
        source={"kind": "generated", "rows": 1_000, "users": 50, "items": 20, "days": 3, "likes": {}},
        clock={"kind": "column", "column": "event_time", "unit": "us"},
        side_tables=[{"name": "items", "path": "items.parquet", "key": "item_id", "columns": [key]}],
        rules={"undeclared_columns": "ignore"},
    )
    rows, _, table = read(data, Path())
    assert rows["true_probability"].is_between(0, 1).all()
    assert abs(rows["true_probability"].mean() - rows["label"].mean()) < 0.1
    assert (rows["true_probability_is_like"] < rows["true_probability"]).all()
    assert len(table.days) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]  # the generated files are gone


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        pl.exceptions.ComputeError("parquet: underlying IO error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_stops_the_run_without_partial_output(
    log: Path, declare: Declare, read: Read, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def raise_error(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(pl.DataFrame, "write_parquet", raise_error)
    with pytest.raises(ShortlistError, match=r"raw: the disk is full; no incomplete file is left. Free space"):
        read(declare(source={"path": "log.csv"}), log)
    assert [path.name for path in log.parent.iterdir()] == ["data"]


def test_an_interrupted_ingest_leaves_no_partial_output(
    log: Path, declare: Declare, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(DayTableWriter, "append", raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        read(declare(source={"path": "log.csv"}), log)
    assert [path.name for path in log.parent.iterdir()] == ["data"]


def test_the_same_input_gives_the_same_bytes(log: Path, declare: Declare, read: Read) -> None:
    data = declare(source={"path": "log.csv"}, side_tables=[USERS])

    def contents() -> dict[str, bytes]:
        folder = read(data, log)[2].folder
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}

    assert contents() == contents()
