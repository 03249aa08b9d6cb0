"""A small shop with a column of every type, fitted and published, for a server whose model is a stand-in."""

from __future__ import annotations

import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from shortlist.contracts import Columns, Files
from shortlist.features.declared.plan import Plan
from shortlist.features.feast.store import apply
from shortlist.features.fits.fit import fit
from shortlist.features.fits.publish import announce_views
from shortlist.features.live.open_counts import open_count_columns
from shortlist.features.online_stores.sqlite import SQLiteOnline
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.serving.export.signature import FOLDER, SECOND_OF_DAY, ListInput, Signature, VectorInput
from shortlist.slates.release import write_release
from shortlist.slates.retrieval.retriever import fit_retrieval
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.filters import Filters
from shortlist.spec.ordering import Ordering
from shortlist.spec.retrieval import Retrieval
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable, DayTableWriter

MODEL: Final = "shop"
INFER: Final = f"/v2/models/{MODEL}/infer"
RECOMMEND: Final = f"{MODEL}.recommend"
RECOMMEND_INFER: Final = f"/v2/models/{RECOMMEND}/infer"
SCORES: Final = [1.0, -2.5]
"""Of `requests.valid_request`: the weights of its two items."""
_DAYS: Final = [date(2026, 1, 5) + timedelta(days=number) for number in range(4)]
_ROWS: Final = 60
_SIDES: Final[list[dict[str, Any]]] = [
    {
        "name": "users", "path": "users.csv", "key": "user_id",
        "columns": [
            {"name": "user_id", "type": "integer"},
            {"name": "city", "type": "string"},
            {"name": "likes", "type": "tags"},
        ],
    },
    {
        "name": "items", "path": "items.csv", "key": "item_id",
        "columns": [
            {"name": "item_id", "type": "string"},
            {"name": "weight", "type": "number"},
            {"name": "topics", "type": "tags"},
            {"name": "picture", "type": "vector"},
        ],
    },
]  # fmt: skip
_DECLARED: Final[dict[str, Any]] = {
    "source": {"kind": "files"},
    "columns": [
        {"name": "user_id", "type": "integer"},
        {"name": "item_id", "type": "string"},
        {"name": "page", "type": "string"},
        {"name": "position", "type": "integer"},
        {"name": "code", "type": "hex"},
        {"name": "price", "type": "number"},
        {"name": "words", "type": "tags"},
        {"name": "places", "type": "tags", "tag_type": "integer"},
        {"name": "made", "type": "date"},
        {"name": "query", "type": "vector"},
        {"name": "clicked", "type": "integer"},
    ],
    "label": "clicked",
    "clock": {"kind": "column", "column": "time", "unit": "s", "timezone": "UTC"},
    "user": "user_id",
    "item": "item_id",
    "outcome_delay": "10m",
    "side_tables": _SIDES,
    "split": {"warmup_days": 1, "validation_days": 1, "test_days": 1},
}
_FEATURES: Final[list[dict[str, Any]]] = [
    {"kind": "numeric", "each": ["price", "position", "weight", "code"]},
    {"kind": "age", "each": ["made"]},
    {"kind": "target", "key": "user_id", "name": "user_rate"},
    {"kind": "target", "key": ["user_id", "words"], "name": "user_words_rate"},
    {"kind": "target", "key": ["words", "topics"], "name": "words_topics_rate"},
    {"kind": "target", "key": ["page", "position"], "prior_key": "page", "name": "page_position_rate"},
    {"kind": "count", "key": "item_id", "name": "item_seen"},
    {"kind": "vocabulary", "each": ["page", "position", "user_id", "code", "city"]},
    {"kind": "vocabulary", "each": ["words", "places", "topics", "likes"], "max_values": 2},
    {"kind": "vector", "each": ["query"]},
]


_STREAMED: Final[list[dict[str, Any]]] = [
    {"kind": "current", "key": key, "counts": counts, "name": f"{key}_{counts}_now"}
    for key in ("user_id", "page") for counts in ("rows", "positives")
] + [
    {"kind": "sequence", "of": "item_id", "key": "user_id", "last": 3, "live": True, "with": ["seconds_ago"],
     "name": "history"},
    {"kind": "sequence", "of": "page", "key": "code", "last": 4, "live": True, "counts": "positives", "name": "liked"},
]  # fmt: skip
_RETRIEVAL: Final[dict[str, Any]] = {
    "candidates": 8,
    "context": ["page"],
    "sources": {
        "popular": {"kind": "popular", "keys": ["page"], "min_positives": 1},
        "together": {"kind": "co_visitation"},
        "alike": {"kind": "item_vector", "column": "picture"},
        "towers": {"kind": "two_tower", "embedding_dim": 4, "epochs": 1, "user_columns": ["city"]},
        "next": {"kind": "sequence", "embedding_dim": 4, "epochs": 1, "last": 4, "heads": 1},
    },
}
_FILTERS: Final[dict[str, Any]] = {
    "rules": [
        {"kind": "seen", "window": "1h"},
        {"kind": "where", "name": "fitting", "keep": "price IS NULL OR price < 1000000000"},
        {"kind": "where", "name": "local", "keep": "city IS NULL OR page IS NULL OR city <> page"},
    ],
    "fallback": ["popular", "alike"],
}
_ORDERING: Final[dict[str, Any]] = {
    "value": "score * (1 + COALESCE(position, 0))",
    "diversity": {"kind": "mmr", "by": "picture"},
    "explore": {"kind": "gumbel", "temperature": 1.0},
}


class FuzzWorld(NamedTuple):
    """Folders that a server is started with."""

    model: Path
    store: Path
    release: Path


def fuzz_world(folder: Path) -> FuzzWorld:
    """Write the shop into a folder: events are counted as they arrive, and every kind of source finds candidates."""
    _write_log(folder / "log")
    declared = {"columns": [*_FEATURES, *_STREAMED], "streaming": True}
    data, features = Data.model_validate(_DECLARED), Features.model_validate(declared)
    fitted, store = folder / "fitted", folder / "store"
    fit(data, features, None, Runtime(engine="cpu"), folder / "log", fitted)
    views = fitted / "views"
    until = datetime.combine(_DAYS[-1] + timedelta(days=1), datetime.min.time(), UTC)
    apply(views, store, MODEL, SQLiteOnline(), "user_id").materialize(until)
    announce_views(views, store, until, folder / "log")
    model = folder / "model"
    (model / FOLDER).mkdir(parents=True)
    _signature(Preprocessing.load(fitted).plan).write(model / FOLDER)
    (model / "preprocessing").mkdir()
    shutil.copyfile(fitted / Files.FEATURES, model / "preprocessing" / Files.FEATURES)
    shutil.copytree(fitted / "vocabularies", model / "preprocessing" / "vocabularies")
    sources = folder / "sources"
    table = DayTable.open(folder / "log", Files.LOG)
    fit_retrieval(Retrieval.model_validate(_RETRIEVAL), data, table, frozenset(_DAYS), sources, 1)
    sections = Filters.model_validate(_FILTERS), Ordering.model_validate(_ORDERING)
    write_release(sources, data, *sections, folder / "log", None, folder / "release")
    return FuzzWorld(model, store, folder / "release")


def _signature(plan: Plan) -> Signature:
    places = [joined_list.row_column(feature) for joined_list in plan.joined_lists for feature in joined_list.lists]
    assert len(places) == 4  # values and times of two live sequences
    return Signature(
        model=MODEL,
        kind="tiny",
        numbers=("items:weight", "price", "position", "code", "made", "event_time", SECOND_OF_DAY, "by_user_id:rows",
                 *open_count_columns(plan.streaming)),
        codes=("page", "position", "user_id", "code", "users:city"),
        lists=(
            ListInput(tensor="list_0", place="words", longest=2),
            ListInput(tensor="list_1", place="places", longest=None),
            ListInput(tensor="list_2", place="items:topics", longest=2),
            ListInput(tensor="list_3", place="users:likes", longest=1),
            *(ListInput(tensor=f"list_{4 + number}", place=place, longest=4) for number, place in enumerate(places)),
        ),
        vectors=(VectorInput(tensor="vector_0", place="query", width=2),),
    )  # fmt: skip


def _write_log(folder: Path) -> None:
    random = np.random.default_rng(3)
    (folder / "side").mkdir(parents=True)
    writer = DayTableWriter(folder, Files.LOG, 250_000)
    for number, day in enumerate(_DAYS):
        writer.append(_rows(random, day, number))
    writer.close()
    pl.DataFrame(
        {"user_id": [1, 2, 2**40], "city": ["Oslo", None, "Rome"], "likes": [["a"], ["b"], None]}
    ).write_parquet(folder / "side" / "users.parquet")
    pl.DataFrame(
        {
            "item_id": [f"item {number}" for number in range(9)],
            "weight": [1.0, None, -2.5, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
            "topics": [["a", "b"], [], None, *[["c"]] * 6],
            "picture": [None, *([1.0, number / 8] for number in range(8))],
        }
    ).write_parquet(folder / "side" / "items.parquet")


def _rows(random: np.random.Generator, day: date, number: int) -> pl.DataFrame:
    def draw_values(values: list[Any], dtype: Any) -> pl.Series:
        return pl.Series([values[place] for place in random.integers(0, len(values), _ROWS)], dtype=dtype)

    midnight = datetime.combine(day, datetime.min.time(), UTC)
    return pl.DataFrame(
        {
            "user_id": draw_values([1, 2, 3, 2**40, None], pl.Int64),
            "item_id": draw_values([f"item {number}" for number in range(9)], pl.String),
            "page": draw_values(["home", "漢字", None], pl.String),
            "position": draw_values([1, 2, -3, None], pl.Int64),
            "code": draw_values([255, -1, None], pl.Int64),
            "price": draw_values([1.5, -2.0, None], pl.Float64),
            "words": draw_values([["a", "b"], ["c"], [], None], pl.List(pl.String)),
            "places": draw_values([[1, 2], [-1], [], None], pl.List(pl.Int64)),
            "made": draw_values([day, None], pl.Date),
            "query": draw_values([[1.0, 2.0], [0.0, -1.0], None], pl.List(pl.Float32)),
            Columns.LABEL: pl.Series(random.integers(0, 2, _ROWS), dtype=pl.Int8),
            Columns.TIME: pl.Series(
                [midnight + timedelta(seconds=60 * row) for row in range(_ROWS)], dtype=pl.Datetime("us", "UTC")
            ),
            Columns.DAY: pl.Series([day] * _ROWS),
            Columns.IMPRESSION: pl.Series(range(number * _ROWS, (number + 1) * _ROWS), dtype=pl.Int64),
        }
    )
