"""Feature kinds defined in this file, from the spec through fitting and table to the graph and the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import onnxruntime
import polars as pl
import pytest
import yaml
from pydantic import Field

from monitoring.reference.distributions import compared_columns
from shortlist.contracts import Columns, Files
from shortlist.features.counts.keyed import ROWS, KeyedView, Total
from shortlist.features.declared.feature_interfaces import DeclaredIds, IdOutputs
from shortlist.features.declared.feature_kind import (
    ColumnwiseFeature,
    Fitted,
    KeyedFeature,
    NumberQuery,
    OutputForm,
    view_column,
    view_number,
)
from shortlist.features.declared.graph import Graph, constant_per_output
from shortlist.features.declared.plan import plan
from shortlist.features.feast.store import apply
from shortlist.features.fits.fit import fit
from shortlist.features.fits.publish import announce_views
from shortlist.features.kinds.registry import FEATURE_KINDS
from shortlist.features.online_stores.sqlite import SQLiteOnline
from shortlist.features.rows.table import build_table
from shortlist.features.rows.transform import Transformer
from shortlist.features.values.columns import DeclaredColumns
from shortlist.serving.export.encoding import encode
from shortlist.serving.export.graph import FeatureGraph
from shortlist.serving.export.graph_builder import save
from shortlist.serving.export.repository import write_repository
from shortlist.serving.export.signature import FOLDER, MODEL_FILE, SCORE, Signature
from shortlist.serving.server.inference.service import InferenceRequest
from shortlist.serving.server.requests.headers import RequestContext
from shortlist.serving.server.requests.tensors import Tensor
from shortlist.serving.server.runtime.settings import ServerSettings
from shortlist.serving.server.server import ServerComponents
from shortlist.serving.triton.triton import running_triton
from shortlist.spec.features import Features
from shortlist.spec.load import SpecError, parse_spec
from shortlist.spec.monitoring import DriftLimits
from shortlist.spec.runtime import Runtime
from shortlist.spec.serving import Batching
from shortlist.storage.tables import DayTable
from shortlist.system.query_engine import Engine

DEMO = Path(__file__).parents[4] / "pipelines" / "specs" / "demo.yaml"


class Trend(KeyedFeature):
    """Share of a key's rows that fell on the last few days."""

    kind: Literal["trend"]
    """Whether a key gets more frequent."""
    window_days: int = Field(default=2, ge=1)
    """The last days."""

    def views(self, declared: DeclaredColumns) -> Iterator[KeyedView]:
        yield KeyedView(*self.keys_and_tags(declared), (ROWS, self._recent))

    def numbers(self, fitted: Fitted, engine: Engine) -> Iterator[NumberQuery]:
        view = self.view(fitted.declared)
        recent, whole = (view_number(view, total.name) for total in (self._recent, ROWS))
        yield NumberQuery(self.name, (recent + 1) / (whole + 2))

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, features: Sequence[tuple[Self, int]]) -> str:
        views = [(feature, feature.view(fitted.declared)) for feature, _ in features]
        places = [view_column(view, feature._recent.name) for feature, view in views]
        places += [view_column(view, ROWS.name) for _, view in views]
        filled_numbers = graph.fill_missing(graph.numbers(places), np.zeros(1))
        recent, whole = graph.split(filled_numbers, [len(features)] * 2)
        return graph.add("Div", graph.add("Add", recent, np.ones(1)), graph.add("Add", whole, np.full(1, 2.0)))

    @property
    def _recent(self) -> Total:
        return Total(Columns.ROWS, self.window_days)


class Bands(ColumnwiseFeature, IdOutputs):
    """Ids of ranges of a number, from 1 on; 0 is null."""

    kind: Literal["bands"]
    """Ranges to ids."""
    edge: float
    """Where the second range begins."""

    own_suffix: ClassVar[str] = "band"
    column_types: ClassVar[tuple[str, ...]] = ("number",)

    def forms(self, declared: DeclaredColumns) -> list[OutputForm]:
        return ["id"] * len(self.each)

    def id_count(self, output: int, fitted: Fitted) -> int:
        return 3

    def declared_ids(self, output: int, declared: DeclaredColumns) -> DeclaredIds:
        return DeclaredIds(3)

    def compute(self, rows: pl.DataFrame, fitted: Fitted, engine: Engine) -> Iterator[pl.Series]:
        for name, output in zip(self.each, self.outputs, strict=True):
            value = pl.col(fitted.declared.row_column(name))
            band = pl.when(value.is_finite()).then(1 + (value >= self.edge).cast(pl.UInt32))
            yield rows.select(band.fill_null(0).cast(pl.UInt32).alias(output)).to_series()

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, features: Sequence[tuple[Self, int]]) -> str:
        value = graph.declared_numbers([feature.each[number] for feature, number in features], "a band")
        edges = constant_per_output(feature.edge for feature, _ in features)
        band = graph.add("Where", graph.add("Less", value, edges), np.array([1]), np.array([2]))
        return graph.add("Where", graph.is_missing(value), np.array([0]), band)


FEATURES = [
    {"kind": "trend", "key": "page", "name": "page_trend"},
    {"kind": "trend", "key": ["user_id", "words"], "name": "user_words_trend", "window_days": 1},
    {"kind": "bands", "each": "price", "edge": 1.5},
    {"kind": "count", "key": "item_id", "name": "item_seen"},
]
NAMES = ["page_trend", "user_words_trend", "price_band", "item_seen"]


@pytest.fixture(autouse=True, scope="module")
def own_kinds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FEATURE_KINDS, "trend", Trend)
        patch.setitem(FEATURE_KINDS, "bands", Bands)
        yield


@pytest.fixture(scope="module")
def fitted(shop: Any, own_kinds: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    features = Features.model_validate({"columns": FEATURES})
    fit(shop.plan.declared.data, features, None, Runtime(engine="cpu"), shop.folder / "log", folder / "fitted")
    return folder / "fitted"


@pytest.fixture(scope="module")
def model(fitted: Path) -> Path:
    """A model folder: the score is the sum of all features."""
    folder = fitted.parent / "model"
    (folder / FOLDER).mkdir(parents=True)
    graph = FeatureGraph(Transformer.load(fitted, "cpu").preprocessing)
    floats = graph.floats(NAMES)
    is_unknown = graph.nodes.add("IsNaN", floats)
    filled = graph.nodes.add("Where", is_unknown, np.zeros(1, np.float32), floats)  # the unknown id counts as 0
    total = graph.nodes.add("ReduceSum", filled, np.array([1]), keepdims=1)
    whole, signature = graph.finished(total, SCORE, 1, "own", "sum")
    save(whole, folder / FOLDER / MODEL_FILE)
    signature.write(folder / FOLDER)
    (folder / Files.PREPROCESSING).symlink_to(fitted)
    return folder


def test_a_spec_can_declare_the_feature_and_is_validated() -> None:
    raw = yaml.safe_load(DEMO.read_text())
    key = raw["data"]["user"]
    raw["features"]["columns"].append({"kind": "trend", "key": key, "name": "own_trend"})
    spec = parse_spec(yaml.safe_dump(raw))
    assert spec.features.names[-1] == "own_trend"
    assert parse_spec(spec.model_dump_json()) == spec  # as the graph's steps are told of it
    assert "Trend" in type(spec).model_json_schema()["$defs"]
    raw["features"]["columns"][-1]["window_day"] = 3
    with pytest.raises(SpecError, match=r"trend\.window_day: unknown key; did you mean 'window_days'"):
        parse_spec(yaml.safe_dump(raw))


def test_the_table_has_the_values_of_the_previous_days(shop: Any, fitted: Path) -> None:
    data, features = shop.plan.declared.data, Features.model_validate({"columns": FEATURES})
    out = fitted.parent / "table"
    table = build_table(data, features, None, Runtime(engine="cpu"), shop.folder / "log", fitted, out)
    days = [part.day for part in table.days]
    rows = pl.concat([frame for part, frame in table.frames() if part == days[3]])
    pages = [shop.rows(day)["page"].to_list() for day in days]
    for page, trend in zip(pages[3], rows["page_trend"], strict=True):
        recent, whole = (sum(pages_of_day.count(page) for pages_of_day in pages[first:3]) for first in (1, 0))
        expected = (recent + 1) / (whole + 2) if page is not None else 1 / 2
        assert trend == np.float32(expected)
    prices = shop.rows(days[3])["price"].to_list()
    assert rows["price_band"].to_list() == [0 if price is None else 1 + (price >= 1.5) for price in prices]
    notes = {
        column_notes["name"]: (column_notes["kind"], column_notes["size"]) for column_notes in table.notes["columns"]
    }
    assert notes["price_band"] == ("id", 3)


def test_the_graph_computes_the_values_of_the_table(shop: Any, fitted: Path, model: Path) -> None:
    transformer, signature = Transformer.load(fitted, "cpu"), Signature.read(model / FOLDER)
    session = onnxruntime.InferenceSession(str(model / FOLDER / MODEL_FILE), providers=["CPUExecutionProvider"])
    for day in DayTable.open(shop.folder / "log", Files.LOG).by_day:
        rows = transformer.look_up(shop.rows(day), day)
        (scores,) = session.run(None, encode(rows, signature, transformer.plan.declared))
        np.testing.assert_allclose(scores[:, 0], summed(transformer.compute(rows)), rtol=1e-6)


def test_the_server_computes_the_values_of_the_table(shop: Any, fitted: Path, model: Path) -> None:
    views, store = fitted / "views", fitted.parent / "store"
    apply(views, store, "own", SQLiteOnline(), "user_id").materialize(shop.until)
    announce_views(views, store, shop.until, shop.folder / "log")
    write_repository(model / FOLDER, 1, Batching(threads=1), fitted.parent / "repository")
    sent = {
        "user_id": [2], "item_id": ["item 1", "item 2", "nowhere"], "page": ["home"], "price": [2.0, 1.0, -1.0],
    }  # fmt: skip
    with running_triton(fitted.parent / "repository") as triton:
        settings = ServerSettings(
            model="own", version=1, model_folder=model, predictor=triton.http, http_port=1, grpc_port=2, store=store,
            project="own", predictions=fitted.parent / "predictions",
        )  # fmt: skip
        scores = asyncio.run(answered(settings, sent))
    tomorrow = shop.until.date()
    request_row = shop.rows(tomorrow - timedelta(days=1)).head(1).drop("words", *sent)
    rows = pl.concat([request_row] * 3).with_columns(
        pl.lit(2, pl.Int64).alias("user_id"), pl.Series("item_id", sent["item_id"]), pl.lit("home").alias("page"),
        pl.Series("price", sent["price"]), pl.lit(None, pl.List(pl.String)).alias("words"),
    )  # fmt: skip
    transformer = Transformer.load(fitted, "cpu")
    np.testing.assert_allclose(scores, summed(transformer.compute(transformer.look_up(rows, tomorrow))), rtol=1e-6)


async def answered(settings: ServerSettings, sent: dict[str, list[Any]]) -> np.ndarray:
    """Return the scores that the server's parts give for columns of a request."""
    types = {"user_id": "INT64", "item_id": "BYTES", "page": "BYTES", "price": "FP64"}
    tensors = [
        Tensor(name, types[name], (len(values),), values if types[name] == "BYTES" else np.array(values))
        for name, values in sent.items()
    ]
    parts = ServerComponents(settings)
    try:
        parts.refresh.poll()
        assert parts.refresh.problem is None
        answer = await parts.service.answer(InferenceRequest("own", "", tensors, RequestContext()))
        assert not answer.degraded
        return np.asarray(answer.scores)
    finally:
        await parts.close()


def test_drift_compares_its_key_as_a_category(shop: Any) -> None:
    features = Features.model_validate({"columns": [{"kind": "trend", "key": "position", "name": "trend"}]})
    data, other_features = shop.plan.declared.data, Features.model_validate({"columns": FEATURES})
    kinds = [
        compared_columns(plan(data, declared), DriftLimits())["position"] for declared in (features, other_features)
    ]
    assert kinds == ["categorical", "numeric"]


def summed(table: pl.DataFrame) -> np.ndarray:
    return np.column_stack([table[name].cast(pl.Float32).to_numpy() for name in NAMES]).sum(axis=1, dtype=np.float32)
