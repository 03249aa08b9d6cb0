"""The example curl commands."""

from __future__ import annotations

import json
import shlex
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from shortlist.contracts import Columns, Files
from shortlist.serving.traffic.example import example_requests
from shortlist.spec.data import Data
from shortlist.spec.retrieval import Retrieval
from shortlist.storage.tables import DayTableWriter

DECLARED = {
    "source": {"kind": "files", "path": "log.csv"}, "label": "clicked", "user": "user_id", "item": "item_id",
    "clock": {"kind": "column", "column": "time", "unit": "s"},
    "columns": [
        {"name": "user_id", "type": "string"}, {"name": "item_id", "type": "integer"},
        {"name": "surface", "type": "string"}, {"name": "price", "type": "number"},
        {"name": "clicked", "type": "integer"},
    ],
}  # fmt: skip
READ = {"user_id", "item_id", "surface", "price"}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    writer = DayTableWriter(tmp_path, Files.LOG, chunk_rows=10)
    rows = {"user_id": ["a", "o'b"], "item_id": [5, 7], "surface": ["feed", "home"], "price": [1.5, None]}
    writer.append(pl.DataFrame(rows).with_columns(
        pl.lit(date(2026, 1, 1)).alias(Columns.DAY), pl.lit(0, pl.Int8).alias(Columns.LABEL)
    ))  # fmt: skip
    writer.close()
    return tmp_path


def request(command: str) -> tuple[str, dict[str, Any]]:
    """Return the URL and the body that a shell would send."""
    _, _, url, _, header, _, body = shlex.split(command)
    assert header == "x-shortlist-user: o'b"
    return url, json.loads(body)


def test_a_version_that_recommends_has_examples_for_scores_and_a_slate(log: Path) -> None:
    data = Data.model_validate(DECLARED)
    retrieval = Retrieval.model_validate({"sources": {"popular": {"kind": "popular"}}, "context": ["surface", "price"]})
    ranks, recommends = example_requests("http://x", "shop", data, READ, log, retrieval).splitlines()
    # A price that is null is left out.
    context = {"surface": "home"}
    assert request(ranks) == ("http://x/v1/rank", {"user": "o'b", "items": [5, 7], "context": context})
    assert request(recommends) == ("http://x/v1/recommend", {"user": "o'b", "k": 10, "context": context})


def test_items_are_sent_with_the_columns_that_they_determine(log: Path) -> None:
    section = {"sources": {"popular": {"kind": "popular"}}, "context": ["surface"], "item_columns": ["price"]}
    retrieval = Retrieval.model_validate(section)
    ranks, _ = example_requests("http://x", "shop", Data.model_validate(DECLARED), READ, log, retrieval).splitlines()
    body = {"user": "o'b", "items": [{"item_id": 5, "price": 1.5}, 7], "context": {"surface": "home"}}
    assert request(ranks) == ("http://x/v1/rank", body)


def test_a_version_that_does_not_recommend_has_an_example_for_scores(log: Path) -> None:
    (ranks,) = example_requests("http://x", "shop", Data.model_validate(DECLARED), READ, log).splitlines()
    assert "recommend" not in ranks


def test_an_example_sends_no_ids_of_requests_and_no_column_that_nothing_reads(log: Path) -> None:
    unread = [{"name": name, "type": "integer"} for name in ("shown_id", "basket", "visit")]
    declared = {**DECLARED, "columns": [*DECLARED["columns"], *unread], "impression": "shown_id"}
    declared |= {"slate": {"column": "basket"}}
    (path,) = log.rglob("*.parquet")
    frame = pl.read_parquet(path, hive_partitioning=False).with_columns(price=2.5)
    frame.with_columns(**{column["name"]: pl.lit(9) for column in unread}).write_parquet(path)
    read = {"item_id", "surface", "shown_id", "basket"}
    (ranks,) = example_requests("http://x", "shop", Data.model_validate(declared), read, log).splitlines()
    assert request(ranks)[1] == {"user": "o'b", "items": [5, 7], "context": {"surface": "home"}}


def test_each_item_is_sent_with_its_own_values_where_no_retrieval_names_them(log: Path) -> None:
    (path,) = log.rglob("*.parquet")
    rows = {
        "user_id": ["a", "a", "b", "o'b", "o'b"], "item_id": [5, 7, 5, 7, 8], "price": [1.5, 2.5, 1.5, 2.5, 3.5],
        "surface": ["feed", "home", "home", "feed", "home"],
    }  # fmt: skip
    pl.DataFrame(rows).write_parquet(path)
    (ranks,) = example_requests("http://x", "shop", Data.model_validate(DECLARED), READ, log).splitlines()
    items = [{"item_id": 5, "price": 1.5}, {"item_id": 7, "price": 2.5}, {"item_id": 8, "price": 3.5}]
    assert request(ranks)[1] == {"user": "o'b", "items": items, "context": {"surface": "home"}}
