"""Features that look inside texts, each a file of the tests: from the spec to table, Feast, graph and server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import polars as pl
import pytest
from ngram_kind import NGramLookup
from word_count_kind import WordCount

from shortlist.contracts import DataError, Files
from shortlist.features.feast.store import apply
from shortlist.features.fits.fit import fit
from shortlist.features.fits.publish import announce_views
from shortlist.features.kinds.registry import FEATURE_KINDS
from shortlist.features.online_stores.sqlite import SQLiteOnline
from shortlist.features.rows.table import build_table
from shortlist.features.rows.transform import Transformer
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.features.values.derived_columns import DerivedColumn
from shortlist.serving.export.encoding import encode
from shortlist.serving.export.graph import FeatureGraph
from shortlist.serving.export.graph_builder import save
from shortlist.serving.export.repository import write_repository
from shortlist.serving.export.signature import FOLDER, MODEL_FILE, SCORE, Signature
from shortlist.serving.server.day_assembler import DayAssembler
from shortlist.serving.server.inference.service import InferenceRequest
from shortlist.serving.server.requests.headers import RequestContext
from shortlist.serving.server.requests.tensors import Tensor
from shortlist.serving.server.runtime.settings import ServerSettings
from shortlist.serving.server.server import ServerComponents
from shortlist.serving.triton.triton import running_triton
from shortlist.spec.features import Features
from shortlist.spec.runtime import Runtime
from shortlist.spec.serving import Batching
from shortlist.storage.tables import DayTable

FEATURES = [
    {"kind": "word_count", "each": ["page", "city"]},
    {"kind": "ngrams", "each": ["page", "city"], "ngrams": ["om", "ür", "xx", "漢字"], "suffix": "grams"},
]
"""`page` is a text of the log, which requests send; `city` one of the users' side table, which Feast serves."""


@pytest.fixture(autouse=True, scope="module")
def text_kinds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FEATURE_KINDS, "word_count", WordCount)  # the line in the registry
        patch.setitem(FEATURE_KINDS, "ngrams", NGramLookup)
        yield


@pytest.fixture(scope="module")
def fitted(shop: Any, text_kinds: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts") / "fitted"
    features = Features.model_validate({"columns": FEATURES})
    fit(shop.plan.declared.data, features, None, Runtime(engine="cpu"), shop.folder / "log", folder)
    return folder


@pytest.fixture(scope="module")
def model(fitted: Path) -> Path:
    """Return a model folder: the score is the sum of all numbers and of all ids of the texts."""
    folder = fitted.parent / "model"
    (folder / FOLDER).mkdir(parents=True)
    graph = FeatureGraph(Transformer.load(fitted, "cpu").preprocessing)
    add = graph.nodes.add
    numbers = graph.floats(["page_words", "city_words"])
    numbers = add("Where", add("IsNaN", numbers), np.zeros(1, np.float32), numbers)
    total = add("ReduceSum", numbers, np.array([1]), keepdims=1)
    for name in ("page_grams", "city_grams"):
        ids, is_present = graph.lists(name)
        present = add("Where", is_present, ids, np.array([0]))
        total = add("Add", total, graph.nodes.cast(add("ReduceSum", present, np.array([1]), keepdims=1), np.float32))
    whole, signature = graph.finished(total, SCORE, 1, "texts", "sum")
    save(whole, folder / FOLDER / MODEL_FILE)
    signature.write(folder / FOLDER)
    (folder / Files.PREPROCESSING).symlink_to(fitted)
    return folder


def word_sum(text: str | None) -> int:
    return 0 if text is None else {"home": 1, "Zürich, 漢字": 2, "x" * 200: 1, "Oslo": 1, "Rome": 1}[text]


def gram_ids(text: str | None) -> list[int]:
    return {None: [], "home": [1], "Zürich, 漢字": [2, 4], "x" * 200: [3] * 199, "Oslo": [], "Rome": [1]}[text]


def score(page: str | None, city: str | None) -> int:
    return word_sum(page) + word_sum(city) + sum(gram_ids(page)) + sum(gram_ids(city))


CITIES = {1: "Oslo", 2**40: "Rome"}


def test_the_table_holds_the_words_and_n_grams_of_texts(shop: Any, fitted: Path) -> None:
    data, features = shop.plan.declared.data, Features.model_validate({"columns": FEATURES})
    table = build_table(
        data, features, None, Runtime(engine="cpu"), shop.folder / "log", fitted, fitted.parent / "table"
    )
    rows = table.scan().sort("impression_id").collect()
    log = pl.concat([shop.rows(day) for day in table.by_day]).sort("impression_id")
    pages, cities = log["page"].to_list(), [CITIES.get(user) for user in log["user_id"]]
    assert rows["page_words"].to_list() == [None if page is None else word_sum(page) for page in pages]
    assert rows["city_words"].to_list() == [None if city is None else word_sum(city) for city in cities]
    assert rows["page_grams"].to_list() == [gram_ids(page) for page in pages]
    assert rows["city_grams"].to_list() == [gram_ids(city) for city in cities]
    notes = {column["name"]: (column["kind"], column["size"]) for column in table.notes["columns"]}
    assert notes == {
        "page_words": ("dense", None),
        "city_words": ("dense", None),
        "page_grams": ("ids", 5),
        "city_grams": ("ids", 5),
    }


def test_feast_serves_what_was_derived_from_a_side_table_and_no_text(shop: Any, fitted: Path) -> None:
    view = ViewIndex.read(fitted / "views").view("users")
    assert [(column.name, column.dtype) for column in view.features] == [
        ("city_words", "Float64"),
        ("city_grams", "List(Int64)"),
    ]
    store = apply(fitted / "views", fitted.parent / "feast", "texts", SQLiteOnline(), "user_id")
    store.materialize(shop.until)
    rows = store.online(pl.DataFrame({"user_id": [1, 2**40, 2, 9]}), ["users"])
    assert rows["users:city_words"].to_list() == [1.0, 1.0, None, None]
    assert [ids or [] for ids in rows["users:city_grams"].to_list()] == [[], [1], [], []]


def test_the_graph_computes_the_features_of_the_table(shop: Any, fitted: Path, model: Path) -> None:
    transformer, signature = Transformer.load(fitted, "cpu"), Signature.read(model / FOLDER)
    session = onnxruntime.InferenceSession(str(model / FOLDER / MODEL_FILE), providers=["CPUExecutionProvider"])
    for day in DayTable.open(shop.folder / "log", Files.LOG).by_day:
        rows = transformer.look_up(shop.rows(day), day)
        (scores,) = session.run(None, encode(rows, signature, transformer.plan.declared))
        cities = [CITIES.get(user) for user in rows["user_id"]]
        assert scores[:, 0].tolist() == [score(*texts) for texts in zip(rows["page"], cities, strict=True)]


def test_a_server_assembles_the_tensors_of_the_table(shop: Any, fitted: Path, model: Path) -> None:
    transformer, signature = Transformer.load(fitted, "cpu"), Signature.read(model / FOLDER)
    assembler = DayAssembler(transformer.plan, signature, ViewIndex.read(fitted / "views"))
    for day in DayTable.open(shop.folder / "log", Files.LOG).by_day:
        expected = encode(transformer.look_up(shop.rows(day), day), signature, transformer.plan.declared)
        tensors = assembler.tensors(shop.rows(day), day)
        assert tensors.keys() == expected.keys()
        for name, tensor in expected.items():
            np.testing.assert_array_equal(tensors[name], tensor)


def test_the_server_derives_from_the_texts_of_a_request(shop: Any, fitted: Path, model: Path) -> None:
    views, store = fitted / "views", fitted.parent / "store"
    apply(views, store, "texts", SQLiteOnline(), "user_id").materialize(shop.until)
    announce_views(views, store, shop.until, shop.folder / "log")
    write_repository(model / FOLDER, 1, Batching(threads=1), fitted.parent / "repository")
    with running_triton(fitted.parent / "repository") as triton:
        settings = ServerSettings(
            model="texts", version=1, model_folder=model, predictor=triton.http, http_port=1, grpc_port=2, store=store,
            project="texts", predictions=fitted.parent / "predictions",
        )  # fmt: skip
        scores = asyncio.run(answer_requests(settings))
    assert scores == [
        [score("home", "Rome")] * 2,  # one text for all rows
        [score("Zürich, 漢字", "Oslo"), score(None, "Oslo")],  # a text per row
        [score(None, None)] * 2,  # an unknown user, and no text
    ]


async def answer_requests(settings: ServerSettings) -> list[list[float]]:
    """Return the scores of three requests of two items each."""
    items = Tensor("item_id", "BYTES", (2,), ["item 1", "item 2"])
    requests = [
        [Tensor("user_id", "INT64", (1,), np.array([2**40])), items, Tensor("page", "BYTES", (1,), ["home"])],
        [Tensor("user_id", "INT64", (1,), np.array([1])), items, Tensor("page", "BYTES", (2,), ["Zürich, 漢字", ""])],
        [Tensor("user_id", "INT64", (1,), np.array([9])), items],
    ]
    parts = ServerComponents(settings)
    try:
        parts.refresh.poll()
        assert parts.refresh.problem is None
        answers = [
            await parts.service.answer(InferenceRequest("texts", "", tensors, RequestContext())) for tensors in requests
        ]
        return [np.asarray(answer.scores).tolist() for answer in answers]
    finally:
        await parts.close()


def test_a_text_of_another_type_is_refused(shop: Any) -> None:
    columns = [{"kind": "word_count", "each": ["price"]}]
    feature = Features.model_validate({"columns": columns}).columns[0]
    with pytest.raises(ValueError, match="'price' is of type number; wanted string"):
        feature.check(shop.plan.declared.data)


def test_a_kind_must_derive_one_value_from_each_text() -> None:
    column = DerivedColumn("page_words", "page", "number", lambda texts: texts.drop_nulls().str.len_chars())
    with pytest.raises(DataError, match="'page_words': got 1 derived values for 2 values of 'page'"):
        column.values(pl.Series("page", ["home", None]))
