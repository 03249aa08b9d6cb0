"""Expressions as features: table, Feast, exported graph, server and Triton have the same values."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import polars as pl
import pytest

from shortlist.contracts import Columns, Files
from shortlist.features.feast.store import apply
from shortlist.features.fits.fit import fit
from shortlist.features.fits.publish import announce_views
from shortlist.features.online_stores.sqlite import SQLiteOnline
from shortlist.features.rows.table import build_table
from shortlist.features.rows.transform import Transformer
from shortlist.features.stored_views.view_index import ViewIndex
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

EXPRESSIONS = {
    "price_per_second": "price / AVG(seconds) OVER (PARTITION BY maker)",
    "relative_weight": "weight / AVG(weight) OVER (PARTITION BY topics)",
    "weight_to_all": "weight - AVG(weight)",
    "share_of_maker": "COUNT(*) OVER (PARTITION BY item_id) / COUNT(*) OVER (PARTITION BY maker)",
    "clicks": "SUM(clicked) OVER (PARTITION BY user_id, page)",
    "seconds_known": "COUNT(seconds) OVER (PARTITION BY city)",
    "text_lengths": "LENGTH(page) + LENGTH(city)",
    "is_home": "IF(page = 'home' AND NOT city = 'Oslo', price, -1)",
    "is_same": "CASE WHEN page = city THEN 1 WHEN page IS NULL THEN 2 ELSE 3 END",
    "days_since_release": "LN(1 + CAST(now AS DATE) - released)",
    "hours_away": "24 * (now - MAX(now) OVER (PARTITION BY user_id))",
    "rate_ratio": "features.maker_rate / features.user_rate",
    "of_features": "features.fit + features.price_per_second + COALESCE(features.price_number, 0)",
    "by_zero": "price / (position - position)",
    "code_part": "code % 7",
}
FEATURES = [
    {"kind": "target", "key": "user_id", "name": "user_rate"},
    {"kind": "target", "key": "maker", "name": "maker_rate"},
    {"kind": "numeric", "each": "price", "standardise": True, "clip": [-10, 10]},
    {"kind": "similarity", "list": "watched", "vector": "picture", "name": "fit"},
    *({"kind": "expression", "name": name, "value": value} for name, value in EXPRESSIONS.items()),
]
NAMES = list(EXPRESSIONS)


@pytest.fixture(scope="module")
def fitted(shop: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("expressions") / "fitted"
    features = Features.model_validate({"columns": FEATURES})
    fit(shop.plan.declared.data, features, None, Runtime(engine="cpu"), shop.folder / "log", folder)
    return folder


@pytest.fixture(scope="module")
def table(shop: Any, fitted: Path) -> pl.DataFrame:
    features, out = Features.model_validate({"columns": FEATURES}), fitted.with_name("table")
    data = shop.plan.declared.data
    table_folder = build_table(data, features, None, Runtime(engine="cpu"), shop.folder / "log", fitted, out)
    return table_folder.scan().sort(Columns.IMPRESSION).collect()


WEIGHTS = np.sqrt(1.0 + np.arange(len(NAMES))).astype(np.float32)[:, None]
"""Weights of a model that adds all expressions up, null as 0."""


@pytest.fixture(scope="module")
def model(fitted: Path) -> Path:
    """A model folder whose graph outputs every expression."""
    return write_model(fitted, "model", summed=False)


def write_model(fitted: Path, name: str, *, summed: bool) -> Path:
    folder = fitted.with_name(name)
    (folder / FOLDER).mkdir(parents=True)
    graph = FeatureGraph(Transformer.load(fitted, "cpu").preprocessing)
    output, add = graph.floats(NAMES), graph.nodes.add
    if summed:
        output = add("MatMul", add("Where", add("IsNaN", output), np.zeros(1, np.float32), output), WEIGHTS)
    whole, signature = graph.finished(output, SCORE, 1 if summed else len(NAMES), "expressions", "all")
    save(whole, folder / FOLDER / MODEL_FILE)
    signature.write(folder / FOLDER)
    (folder / Files.PREPROCESSING).symlink_to(fitted)
    return folder


@pytest.fixture(scope="module")
def log(shop: Any) -> pl.DataFrame:
    """All rows of the log with the columns of the side tables."""
    days = DayTable.open(shop.folder / "log", Files.LOG).by_day
    side = shop.folder / "log" / "side"
    return (
        pl.concat([shop.rows(day) for day in days])
        .join(pl.read_parquet(side / "users.parquet"), "user_id", "left", maintain_order="left")
        .join(pl.read_parquet(side / "items.parquet"), "item_id", "left", maintain_order="left")
        .sort(Columns.IMPRESSION)
    )


def earlier_rows(log: pl.DataFrame, row: dict[str, Any], *keys: str) -> pl.DataFrame:
    """Return the rows of the days before a row's own that have its keys; none for a null key."""
    has_keys = [pl.col(key) == pl.lit(row[key], log.schema[key]) for key in keys]
    return log.filter(pl.col(Columns.DAY) < row[Columns.DAY], *has_keys)


def as_matrix(table: pl.DataFrame) -> np.ndarray:
    return np.column_stack([table[name].cast(pl.Float32).fill_null(np.nan).to_numpy() for name in NAMES])


def test_a_price_is_divided_by_the_mean_of_its_makers_earlier_rows(table: pl.DataFrame, log: pl.DataFrame) -> None:
    for row, expected_row in zip(log.iter_rows(named=True), table["price_per_second"], strict=True):
        mean = earlier_rows(log, row, "maker")["seconds"].mean()
        if row["price"] is None or not mean:
            assert expected_row is None
        else:
            assert expected_row == pytest.approx(row["price"] / float(mean), rel=1e-4)
    assert table["price_per_second"].null_count() < 0.8 * table.height


def test_counts_sums_texts_and_times_are_those_of_the_row(table: pl.DataFrame, log: pl.DataFrame) -> None:
    first_day = log[Columns.DAY].min()
    for row, features in zip(log.iter_rows(named=True), table.iter_rows(named=True), strict=True):
        assert features["clicks"] == earlier_rows(log, row, "user_id", "page")[Columns.LABEL].cast(pl.Int64).sum()
        assert features["seconds_known"] == earlier_rows(log, row, "city")["seconds"].count()
        lengths = None if None in (row["page"], row["city"]) else len(row["page"]) + len(row["city"])
        assert features["text_lengths"] == lengths
        is_home = row["page"] == "home" and row["city"] not in ("Oslo", None)
        assert features["is_home"] == (row["price"] and pytest.approx(row["price"]) if is_home else -1)
        assert features["is_same"] == (2 if row["page"] is None else 3)
        assert features["by_zero"] is None
        assert (features["hours_away"] is None) == (row[Columns.DAY] == first_day or row["user_id"] is None)
        assert features["code_part"] == (None if row["code"] is None else row["code"] % 7)
        assert features["rate_ratio"] == pytest.approx(features["maker_rate"] / features["user_rate"], rel=1e-6)
        parts = features["fit"], features["price_per_second"], features["price_number"] or 0
        assert features["of_features"] == (None if None in parts else pytest.approx(sum(parts), rel=1e-5, abs=1e-6))


def test_the_graph_computes_the_values_of_the_table(shop: Any, fitted: Path, model: Path) -> None:
    transformer, signature = Transformer.load(fitted, "cpu"), Signature.read(model / FOLDER)
    session = onnxruntime.InferenceSession(str(model / FOLDER / MODEL_FILE), providers=["CPUExecutionProvider"])
    for day in DayTable.open(shop.folder / "log", Files.LOG).by_day:
        rows = transformer.look_up(shop.rows(day), day)
        (scores,) = session.run(None, encode(rows, signature, transformer.plan.declared))
        np.testing.assert_allclose(scores, as_matrix(transformer.compute(rows)), rtol=1e-6, atol=1e-7)


def test_a_server_assembles_the_tensors_of_the_table(shop: Any, fitted: Path, model: Path) -> None:
    transformer, signature = Transformer.load(fitted, "cpu"), Signature.read(model / FOLDER)
    assembler = DayAssembler(transformer.plan, signature, ViewIndex.read(fitted / "views"))
    for day in DayTable.open(shop.folder / "log", Files.LOG).by_day:
        expected = encode(transformer.look_up(shop.rows(day), day), signature, transformer.plan.declared)
        for name, tensor in assembler.tensors(shop.rows(day), day).items():
            np.testing.assert_array_equal(tensor, expected[name])


def test_feast_serves_lengths_in_place_of_texts_of_a_side_table(fitted: Path) -> None:
    names = [column.name for column in ViewIndex.read(fitted / "views").view("users").features]
    assert [name for name in names if "_text_" in name] == ["text_lengths_text_1", "is_home_text_1"]


def test_triton_computes_the_values_of_the_table(shop: Any, fitted: Path) -> None:
    model = write_model(fitted, "sum", summed=True)
    views, store = fitted / "views", fitted.parent / "store"
    apply(views, store, "expressions", SQLiteOnline(), "user_id").materialize(shop.until)
    announce_views(views, store, shop.until, shop.folder / "log")
    write_repository(model / FOLDER, 1, Batching(threads=1), fitted.parent / "repository")
    tomorrow = shop.until.date()
    moment = shop.until + timedelta(hours=2)
    items, prices = ["item 1", "item 2", "nowhere"], [2.0, 1.0, -1.0]
    tensors = [
        Tensor("user_id", "INT64", (1,), np.array([1])),
        Tensor("item_id", "BYTES", (3,), items),
        Tensor("page", "BYTES", (3,), ["home", "", "Oslo"]),
        Tensor("price", "FP64", (3,), np.array(prices)),
        Tensor("event_time", "INT64", (1,), np.array([int(moment.timestamp() * 1e6)])),
    ]
    with running_triton(fitted.parent / "repository") as triton:
        settings = ServerSettings(
            model="expressions", version=1, model_folder=model, predictor=triton.http, http_port=1, grpc_port=2,
            store=store, project="expressions", predictions=fitted.parent / "predictions",
        )  # fmt: skip
        scores = asyncio.run(answer(settings, tensors))
    nulls = shop.rows(tomorrow - timedelta(days=1)).head(1).with_columns(pl.all().replace_strict({}, default=None))
    rows = pl.concat([nulls] * 3).with_columns(
        pl.lit(1, pl.Int64).alias("user_id"), pl.Series("item_id", items), pl.Series("price", prices),
        pl.Series("page", ["home", None, "Oslo"]), pl.lit(moment).dt.cast_time_unit("us").alias(Columns.TIME),
        pl.lit(tomorrow).alias(Columns.DAY),
    )  # fmt: skip
    transformer = Transformer.load(fitted, "cpu")
    expected = as_matrix(transformer.compute(transformer.look_up(rows, tomorrow)))
    np.testing.assert_allclose(np.ravel(scores), np.ravel(np.nan_to_num(expected) @ WEIGHTS), rtol=1e-6)
    assert expected[2, NAMES.index("is_same")] == 1
    assert (~np.isnan(expected[0])).sum() > len(NAMES) / 2


async def answer(settings: ServerSettings, tensors: list[Tensor]) -> np.ndarray:
    """Return the scores of the request."""
    parts = ServerComponents(settings)
    try:
        parts.refresh.poll()
        assert parts.refresh.problem is None
        answered = await parts.service.answer(InferenceRequest("expressions", "", tensors, RequestContext()))
        return np.asarray(answered.scores)
    finally:
        await parts.close()
