"""Sequences: training table, Feast, exported graph and server have the same lists and scores."""

from __future__ import annotations

import asyncio
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import polars as pl
import pytest

from shortlist.contracts import Columns, Files
from shortlist.features.feast.skew import check_skew
from shortlist.features.feast.store import apply
from shortlist.features.fits.fit import fit
from shortlist.features.fits.publish import announce_views
from shortlist.features.online_stores.sqlite import SQLiteOnline
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.features.rows.table import build_table
from shortlist.features.rows.transform import Transformer
from shortlist.serving.export.encoding import encode
from shortlist.serving.export.graph import FeatureGraph
from shortlist.serving.export.graph_builder import save
from shortlist.serving.export.signature import FOLDER, MODEL_FILE, SCORE, Signature
from shortlist.serving.server.features.columns import to_codes
from shortlist.serving.server.features.tensor_assembler import TensorAssembler
from shortlist.serving.server.request_inputs.input_reader import InputReader
from shortlist.serving.server.request_inputs.slate_requests import SlateRequestReader
from shortlist.serving.server.requests.request_errors import BadRequestError
from shortlist.serving.server.requests.tensors import Tensor
from shortlist.serving.server.runtime.settings import ServerSettings
from shortlist.serving.server.server import ServerComponents
from shortlist.serving.validation.served_rows import ReferenceRows, ServedRows
from shortlist.spec.features import Features
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import read_json

LAST = 12
FEATURES = [
    {"kind": "sequence", "of": "item_id", "key": "user_id", "last": LAST, "name": "history",
     "with": ["seconds_ago", "seconds"]},
    {"kind": "sequence", "of": "item_id", "key": "user_id", "last": 4, "name": "basket", "sent": "words",
     "sent_times": "places", "with": ["seconds_ago", "seconds", "price", "weight", "topics", "maker"]},
    {"kind": "sequence_score", "of": "item_id", "key": "user_id", "last": 4, "counts": "rows", "name": "follows",
     "sent": "words", "refit_days": 1, "epochs": 1, "embedding_dim": 4, "dropout": 0.0},
    {"kind": "sequence", "of": "position", "key": "page", "last": 3, "counts": "positives", "name": "places"},
]  # fmt: skip
NUMBERS = [name for name in FEATURES[1]["with"] if name != "topics"]
VECTORS = ["history_seconds_ago", "history_seconds", *(f"basket_{name}" for name in NUMBERS)]
LISTS = ["history", "places", "basket", "basket_topics"]
SENT = [["item 2", "in no table", "item 1"], [5 * 10**15, 0, 6 * 10**15]]


@pytest.fixture(scope="module")
def fitted(shop: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sequences") / "fitted"
    features = Features.model_validate({"columns": FEATURES})
    fit(shop.plan.declared.data, features, None, Runtime(engine="cpu"), shop.folder / "log", folder)
    return folder


@pytest.fixture(scope="module")
def table(shop: Any, fitted: Path) -> pl.DataFrame:
    data, features = shop.plan.declared.data, Features.model_validate({"columns": FEATURES})
    out = fitted.with_name("table")
    table_folder = build_table(data, features, None, Runtime(engine="cpu"), shop.folder / "log", fitted, out)
    return pl.concat([rows for _, rows in table_folder.frames()])


@pytest.fixture(scope="module")
def model(fitted: Path) -> Path:
    """A model folder whose graph answers the numbers, of each list the sum of its ids and its length, and a score."""
    folder = fitted.with_name("model")
    (folder / FOLDER).mkdir(parents=True)
    graph = FeatureGraph(Transformer.load(fitted, "cpu").preprocessing)
    parts = [graph.floats(VECTORS)]
    for name in LISTS:
        ids, is_filled = graph.lists(name)
        filled_ids = graph.nodes.add("Where", is_filled, ids, np.array([0]))
        for values in (filled_ids, graph.nodes.cast(is_filled, np.int64)):
            total = graph.nodes.add("ReduceSum", values, np.array([1]), keepdims=1)
            parts.append(graph.nodes.cast(total, np.float32))
    parts.append(graph.floats(["follows"]))
    width = 2 * LAST + 5 * 4 + 8 + 1
    whole, signature = graph.finished(graph.nodes.joined(parts, axis=1), SCORE, width, "sequences", "all")
    save(whole, folder / FOLDER / MODEL_FILE)
    signature.write(folder / FOLDER)
    (folder / Files.PREPROCESSING).symlink_to(fitted)
    return folder


def answered(model: Path, tensors: dict[str, Any]) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(model / FOLDER / MODEL_FILE), providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, tensors)
    return np.asarray(scores)


def expected_values(table: pl.DataFrame) -> np.ndarray:
    parts = [table[name].to_numpy() for name in VECTORS]
    for name in LISTS:
        parts += [table[name].list.sum().to_numpy()[:, None], table[name].list.len().to_numpy()[:, None]]
    return np.concatenate(parts, axis=1).astype(np.float32)


def test_served_rows_of_a_log_equal_the_table(table: pl.DataFrame, shop: Any, fitted: Path, model: Path) -> None:
    """Uses the rows of the parity gate."""
    assert table["history"].list.len().max() == LAST and table["places"].list.len().max() == 3
    sample = table.sample(120, seed=1).select(Columns.IMPRESSION, Columns.DAY)
    scored = sample.with_columns(pl.lit(0.0).alias("label_scored"), pl.lit(0.5, pl.Float32).alias("score"))
    split = read_json(fitted / Files.FEATURES)["split"]
    served = ServedRows(model, shop.folder / "log", fitted, ReferenceRows(scored, table.height))
    for batch in served.batches():
        expected = pl.DataFrame({Columns.IMPRESSION: batch.impressions}).join(
            table, Columns.IMPRESSION, "left", maintain_order="left"
        )
        actual = answered(model, dict(batch.tensors))
        np.testing.assert_allclose(actual[:, :-1], expected_values(expected), rtol=1e-6)
        is_served = (expected["day"] >= date.fromisoformat(split["validation"][0])).to_numpy()
        np.testing.assert_allclose(actual[is_served, -1], expected["follows"].to_numpy()[is_served], rtol=0, atol=1e-5)
        assert np.abs(actual[is_served, -1]).max(initial=0) > 0 or not is_served.any()
    assert served.differing_inputs(int(sample[Columns.IMPRESSION][0])) == ()
    assert (table["follows"] != 0).mean() > 0.2
    assert served.edge_case_difference() is None


def test_feast_and_the_server_equal_the_table(shop: Any, fitted: Path, model: Path) -> None:
    transformer, views, store = Transformer.load(fitted, "cpu"), fitted / "views", fitted.with_name("store")
    day = shop.until.date() - timedelta(days=1)
    opened = apply(views, store, "sequences", SQLiteOnline(), "user_id")
    opened.materialize(shop.until)
    rows = transformer.keys_of(shop.rows(day), day)
    report = check_skew(opened, rows, rows, transformer.answer)
    assert (report.historical_mismatches, report.online_mismatches, report.row_count_ok) == (0, 0, True)
    assert {name.partition(":")[2] for name in report.columns} >= {"newest_values", "newest_times", "newest_seconds"}
    announce_views(views, store, shop.until, shop.folder / "log")
    settings = ServerSettings(
        model="sequences", version=1, model_folder=model, predictor="127.0.0.1:1", http_port=1, grpc_port=2,
        store=store, project="sequences", predictions=fitted.with_name("predictions"),
    )  # fmt: skip
    # One that is known, a new one, whose lists are empty, and nobody, with a list of their own.
    for user, sent in ((2, None), (10**9, None), (None, SENT), (2, [[], []])):
        actual = asyncio.run(tensors_of(settings, user, shop.until + timedelta(hours=2), sent))
        looked_up = transformer.look_up(request_tensors(shop, day, user, sent), shop.until.date())
        expected = encode(looked_up, Signature.read(model / FOLDER), transformer.plan.declared)
        for name, tensor in actual.items():
            np.testing.assert_array_equal(tensor, expected[name])
        features = transformer.compute(looked_up)
        # A session that only the client knows is scored as one that is stored; who has none has no score.
        assert (features["follows"][0] != 0) == (user == 2 or sent == SENT)
        np.testing.assert_allclose(answered(model, actual)[0, -1], features["follows"][0], rtol=0, atol=1e-5)
        assert features["history"].list.len().to_list() == ([LAST] if user == 2 else [0])
        if sent == SENT:
            assert features["basket_weight"].to_list() == [[-2.5, 0.0, 0.0, 0.0]]  # that of item 1 is null
            assert features["basket"].list.len().to_list() == [3] and features["basket_topics"][0][1] == 0


def request_tensors(shop: Any, day: Any, user: int | None, sent: Any) -> pl.DataFrame:
    time = pl.lit(shop.until + timedelta(hours=2)).cast(pl.Datetime("us", "UTC"))
    return shop.rows(day).head(1).with_columns(
        pl.lit(user, pl.Int64).alias("user_id"), pl.lit("item 1").alias("item_id"),
        pl.lit("home").alias("page"), time.alias(Columns.TIME),
        pl.Series("words", [sent[0] if sent else None], pl.List(pl.String)),
        pl.Series("places", [sent[1] if sent else None], pl.List(pl.Int64)),
    )  # fmt: skip


async def tensors_of(settings: ServerSettings, user: int | None, time: Any, brought: Any) -> dict[str, np.ndarray]:
    """Return the model's tensors that the server assembles for a request."""
    sent = [
        Tensor("item_id", "BYTES", (1,), ["item 1"]),
        Tensor("page", "BYTES", (1,), ["home"]),
        Tensor(Columns.TIME, "INT64", (1,), np.array([int(time.timestamp() * 1e6)])),
    ]
    if user is not None:
        sent.append(Tensor("user_id", "INT64", (1,), np.array([user])))
    if brought is not None:
        recent_words, places = brought
        sent.append(Tensor("words", "BYTES", (1, len(recent_words)), recent_words))
        sent.append(Tensor("places", "INT64", (1, len(places)), np.array(places, np.int64)))
    parts = ServerComponents(settings)
    try:
        parts.refresh.poll()
        inputs = parts.service.inputs.read(sent, 0)
        tables, degraded = await parts.service.tables(inputs)
        assert not degraded
        return parts.service.tensors(inputs, tables)
    finally:
        await parts.close()


@pytest.fixture(scope="module")
def reader(shop: Any, model: Path) -> InputReader:
    signature = Signature.read(model / FOLDER)
    plan = Preprocessing.load(model / Files.PREPROCESSING).plan
    assembler = TensorAssembler(plan, signature)
    return InputReader(assembler.requirements, assembler.widths, 10)


def test_sent_recent_items_are_the_history_of_the_candidates(shop: Any, reader: InputReader) -> None:
    slates = SlateRequestReader(reader, shop.plan.declared.data, ())
    k, recent = Tensor("k", "INT64", (1,), np.array([3])), Tensor("recent_items", "BYTES", (2,), ["item 2", "item 1"])
    query = slates.read([k, recent], 0)
    candidates = slates.with_items(query, pl.Series(["item 4", "item 5"]))
    assert (query.recent, query.context["words"]) == (["item 2", "item 1"], ["item 2", "item 1"])
    np.testing.assert_array_equal(candidates.columns["words"].values, to_codes(pl.Series(["item 2", "item 1"])))
    own_query = slates.read([k, recent, Tensor("words", "BYTES", (1, 1), ["item 9"])], 0)
    assert own_query.context["words"] == ["item 9"]
    assert "words" not in slates.read([k], 0).context


def test_a_history_that_is_too_long_is_refused(reader: InputReader) -> None:
    item = Tensor("item_id", "BYTES", (1,), ["item 1"])
    with pytest.raises(BadRequestError, match="input 'words': got 1001 events; wanted at most 1000"):
        reader.read([item, Tensor("words", "BYTES", (1, 1_001), ["item 1"] * 1_001)], 0)
