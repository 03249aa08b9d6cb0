"""Logs whose rows and labels are derived: from ratings, event names, lists and shared requests."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from monitoring.windows.known_columns import log_columns
from shortlist.contracts import DataError
from shortlist.data.ingest import ingest
from shortlist.data.sample_check import check_sample
from shortlist.serving.log.logs import logged_inputs
from shortlist.serving.traffic.inputs import sent_columns
from shortlist.spec.runtime import Runtime

Declare = Callable[..., Any]
Read = Callable[..., Any]
START = 1_704_110_400
USER = {"name": "user_id", "type": "integer"}


def test_a_label_is_derived_from_a_rating_that_stays_an_outcome(tmp_path: Path, declare: Declare, read: Read) -> None:
    (tmp_path / "log.csv").write_text(
        "time,user_id,rating\n" + "".join(f"{START},{n},{n / 2}\n" for n in range(11)) + f"{START},11,\n{START},12,9\n"
    )
    columns = [
        USER,
        {"name": "stars", "source": "rating", "type": "number", "max": 5},
        {"name": "rating", "type": "number", "known": "after"},
    ]
    data = declare(columns, label="stars", positive={"at_least": 4})
    rows, rejected, _ = read(data, tmp_path / "log.csv")
    assert rows["label"].to_list() == [0] * 8 + [1] * 3 + [None]  # 4, 4.5, 5; a row without a rating is refused later
    assert rows["rating"].to_list()[:2] == [0.0, 0.5] and "stars" not in rows.columns
    assert rejected["detail"].to_list() == ["stars: got '9.0', wanted a value in [-inf, 5]"]


@pytest.mark.parametrize(
    ("kind", "positive", "values", "labels"),
    [
        ("string", {"any_of": ["buy", "cart"]}, ["view", "buy", "cart", "Buy"], [0, 1, 1, 0]),
        ("integer", {"any_of": [2, 3]}, [1, 2, 3, 4], [0, 1, 1, 0]),
        ("integer", {"at_least": 2, "at_most": 3}, [1, 2, 3, 4], [0, 1, 1, 0]),
        ("number", {"at_most": 0.5}, [0.0, 0.5, 0.75], [1, 1, 0]),
    ],
)
def test_a_label_is_derived_by(
    kind: str,
    positive: dict[str, Any],
    values: list[Any],
    labels: list[int],
    tmp_path: Path,
    declare: Declare,
    read: Read,
) -> None:
    frame = pl.DataFrame({"time": [START] * len(values), "event": values, "user_id": range(len(values))})
    frame.write_parquet(tmp_path / "log.parquet")
    data = declare([USER, {"name": "event", "type": kind}], label="event", positive=positive)
    assert read(data, tmp_path / "log.parquet")[0]["label"].to_list() == labels


NEWS = [
    USER,
    {"name": "news", "type": "string", "source": "shown"},
    {"name": "click", "type": "integer", "source": "shown"},
]


def test_pairs_in_one_text_become_rows(tmp_path: Path, declare: Declare, read: Read) -> None:
    (tmp_path / "log.tsv").write_text(
        "user_id\ttime\tshown\n"
        f"1\t{START}\tN1-0 N2-1  N-3-0\n"
        f"2\t{START + 60}\t\n"
        f"3\t{START + 60}\tN4-1 N5\n"
    )  # fmt: skip
    explode = {"columns": ["news", "click"], "separator": " ", "within": "-"}
    rows, rejected, table = read(declare(NEWS, explode=explode, item="news"), tmp_path / "log.tsv")
    assert rows.select("impression_id", "source_line", "user_id", "news", "label").rows() == [
        (0, 2, 1, "N1", 0),
        (1, 2, 1, "N2", 1),
        (2, 2, 1, "N-3", 0),
        (3, 4, 3, "N4", 1),
    ]
    assert rejected.rows() == [("log.tsv", 4, "explode", "got 'N5', wanted 2 values with '-' between them")]
    assert table.notes["raw_rows"] == 5


@pytest.mark.parametrize("form", ["jsonl", "parquet", "csv"])
def test_parallel_lists_become_rows(form: str, tmp_path: Path, declare: Declare, read: Read) -> None:
    frame = pl.DataFrame({
        "user_id": [1, 2, 3], "time": [START] * 3, "thing": [[7, 8], [9], [5, 6]], "click": [[1, 0], [1], [1]],
    })  # fmt: skip
    path = tmp_path / f"log.{form}"
    if form == "csv":
        things, clicks = (pl.col(name).cast(pl.List(pl.String())).list.join(", ") for name in ("thing", "click"))
        frame.with_columns(things, pl.format("[{}]", clicks)).write_csv(path)  # as Python prints a list
    else:
        (frame.write_ndjson if form == "jsonl" else frame.write_parquet)(path)
    columns = [USER, {"name": "thing", "type": "integer"}, {"name": "click", "type": "integer"}]
    data = declare(columns, explode={"columns": ["thing", "click"]}, item="thing")
    rows, rejected, _ = read(data, path)
    assert rows.select("user_id", "thing", "label").rows() == [(1, 7, 1), (1, 8, 0), (2, 9, 1)]
    (broken,) = rejected["detail"].to_list()
    assert broken == "got lists of different lengths (thing: 2, click: 1), wanted equal ones"


def test_days_of_a_longer_exploded_log_are_counted(tmp_path: Path, declare: Declare) -> None:
    frame = pl.DataFrame({"user_id": range(3_000), "time": [START + n * 100 for n in range(3_000)],
                          "shown": [f"N{n % 7}-0 N{n % 5}-1" for n in range(3_000)]})  # fmt: skip
    frame.write_csv(tmp_path / "log.csv")
    explode = {"columns": ["news", "click"], "separator": " ", "within": "-"}
    data = declare(NEWS, explode=explode, item="news", split={"test_days": 9})
    (problem,) = check_sample(data, tmp_path / "log.csv", 1_000).problems
    assert "the log has 4 day(s), the split needs 12" in problem


def test_dates_are_parsed_in_a_declared_format(tmp_path: Path, declare: Declare, read: Read) -> None:
    (tmp_path / "log.csv").write_text(f"time,born,click\n{START},31/12/1999,1\n{START},1999-12-31,0\n")
    columns = [{"name": "born", "type": "date", "format": "%d/%m/%Y"}, {"name": "click", "type": "integer"}]
    rows, rejected, _ = read(declare(columns), tmp_path / "log.csv")
    assert rows["born"].to_list() == [date(1999, 12, 31)]
    assert rejected["detail"].to_list() == ["born: got '1999-12-31', wanted a date as %d/%m/%Y"]


def test_a_request_key_declared_as_impression_is_refused_with_advice(
    tmp_path: Path, declare: Declare, judge: Read
) -> None:
    rows = 2_000
    pl.DataFrame({
        "request": [n // 20 for n in range(rows)], "user_id": range(rows), "click": [n % 3 // 2 for n in range(rows)],
        "time": [START + n * 300 for n in range(rows)],
    }).write_csv(tmp_path / "log.csv")  # fmt: skip
    columns = [{"name": "request", "type": "integer"}, USER, {"name": "click", "type": "integer"}]
    with pytest.raises(
        DataError, match=r"duplicate_impression 1 894\).*`impression` names one row: a key that several"
    ):
        judge(declare(columns, impression="request"), tmp_path / "log.csv")
    valid, _, table = judge(declare(columns, request="request"), tmp_path / "log.csv")
    assert valid.height == rows and valid["request"].n_unique() == 100
    assert "request" not in table.notes["column_aucs"]  # it alone may know the label; no feature reads it


def test_a_label_that_is_not_binary_is_refused_with_advice(tmp_path: Path, declare: Declare) -> None:
    (tmp_path / "log.csv").write_text(
        "time,user_id,click\n" + "".join(f"{START + n * 300},{n},{n % 5 + 1}\n" for n in range(2_000))
    )
    (problem, *_) = check_sample(declare([USER, {"name": "click", "type": "integer"}]), tmp_path / "log.csv").problems
    assert "a label that is not 0 or 1 needs data.positive, e.g. {at_least: 4}" in problem


def test_a_log_of_empty_lists_is_refused(tmp_path: Path, declare: Declare) -> None:
    (tmp_path / "log.tsv").write_text(f"user_id\ttime\tshown\n1\t{START}\t\n")
    explode = {"columns": ["news", "click"], "separator": " ", "within": "-"}
    with pytest.raises(DataError, match="the log has no rows"):
        ingest(declare(NEWS, explode=explode), tmp_path / "log.tsv", tmp_path / "raw", Runtime())


def test_columns_that_identify_rows_and_outcomes_are_not_sent_to_the_server(declare: Declare) -> None:
    names = ("request", "imp", "click", "shop")
    data = declare([{"name": name, "type": "integer"} for name in names], impression="imp", request="request")
    assert set(sent_columns(data)) == {"shop", "event_time"}
    assert set(logged_inputs(data)) == set(log_columns(data)) == {"shop"}
