"""Slate features: training table, exported graph and server have the same values, bit by bit."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shortlist.contracts import Columns, Files
from shortlist.features.declared.slates import SLATE
from shortlist.features.fits.fit import fit
from shortlist.features.live.open_counts import open_count_columns
from shortlist.features.rows.table import build_table
from shortlist.features.rows.transform import Transformer
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.serving.export.encoding import encode
from shortlist.serving.export.graph import FeatureGraph
from shortlist.serving.export.graph_builder import save
from shortlist.serving.export.signature import FOLDER, MODEL_FILE, SCORE, Signature
from shortlist.serving.server.day_assembler import DayAssembler
from shortlist.serving.server.features.columns import TextCodes
from shortlist.serving.server.features.snapshot import load_with_users
from shortlist.serving.server.features.tensor_assembler import TensorAssembler
from shortlist.serving.validation.served_rows import ReferenceRows, ServedRows
from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable

FEATURES = [
    {"kind": "target", "key": "maker", "name": "maker_rate"},
    {"kind": "time_since", "key": "item_id", "name": "item_away"},
    {"kind": "expression", "name": "price_to_weight", "value": "price / AVG(weight) OVER (PARTITION BY maker)"},
    {"kind": "slate", "feature": "maker_rate", "gives": ["rank", "share", "difference", "size"]},
    {"kind": "slate", "feature": "item_away"},
    {"kind": "slate", "feature": "price_to_weight"},
    {"kind": "slate", "column": "price"},
    {"kind": "slate", "column": "weight", "name": "heavy", "gives": ["rank"]},
]
OPEN_FEATURES = [
    {"kind": "current", "key": "item_id", "name": "item_now"},
    {"kind": "current", "key": ["item_id", "page"], "counts": "rate", "name": "item_page_rate_now"},
    {"kind": "slate", "feature": "item_page_rate_now"},
    {"kind": "slate", "feature": "item_now"},
    {"kind": "target", "key": "item_id", "name": "item_rate_3h", "window": "3h"},
    {"kind": "slate", "feature": "item_rate_3h"},
]
SECTIONS = {
    "days": {"columns": FEATURES},
    "hours": {"columns": [*FEATURES, *OPEN_FEATURES], "tile": "1h", "streaming": True},
}


@pytest.fixture(scope="module", params=["days", "hours"])
def features(request: Any) -> Features:
    """Features by whole days; by hours, with counts of the open tiles."""
    return Features.model_validate(SECTIONS[request.param])


@pytest.fixture(scope="module")
def data(shop: Any, features: Features) -> Data:
    outcomes = {"outcome_delay": "10m"} if features.streaming else {}
    declared = shop.plan.declared.data.model_dump()
    return Data.model_validate({**declared, **outcomes, "slate": {"gap_seconds": 3600}})


@pytest.fixture(scope="module")
def fitted(shop: Any, data: Data, features: Features, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slates") / "fitted"
    fit(data, features, None, Runtime(engine="cpu"), shop.folder / "log", folder)
    return folder


@pytest.fixture(scope="module")
def table(shop: Any, data: Data, features: Features, fitted: Path) -> pl.DataFrame:
    out = fitted.with_name("table")
    table_folder = build_table(data, features, None, Runtime(engine="cpu"), shop.folder / "log", fitted, out)
    return pl.concat([rows for _, rows in table_folder.frames()])


@pytest.fixture(scope="module")
def model(fitted: Path, features: Features) -> Path:
    """A model folder whose graph outputs every feature."""
    folder = fitted.with_name("model")
    (folder / FOLDER).mkdir(parents=True)
    graph = FeatureGraph(Transformer.load(fitted, "cpu").preprocessing)
    names = features.names
    whole, signature = graph.finished(graph.floats(names), SCORE, len(names), "slates", "all")
    save(whole, folder / FOLDER / MODEL_FILE)
    signature.write(folder / FOLDER)
    (folder / Files.PREPROCESSING).symlink_to(fitted)
    return folder


def answered(model: Path, tensors: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(model / FOLDER / MODEL_FILE), providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, tensors)
    return np.asarray(scores)


def test_every_row_has_its_rank_among_its_users_rows(table: pl.DataFrame, shop: Any, data: Data) -> None:
    assert table.height == sum(part.rows for part in DayTable.open(shop.folder / "log", Files.LOG).days)
    assert table["maker_rate_slate_size"].max() > 1
    day = table[Columns.DAY].max()
    user = shop.rows(day).filter(pl.col("user_id") == 1).sort(Columns.TIME)
    slate = (user[Columns.TIME].diff() > timedelta(hours=1)).fill_null(value=False).cum_sum()
    expected = user.select(Columns.IMPRESSION, slate.alias("slate")).with_columns(pl.len().over("slate").alias("size"))
    joined = expected.join(table, Columns.IMPRESSION)
    assert joined["maker_rate_slate_size"].to_list() == joined["size"].to_list()
    assert joined["size"].max() > 1


def test_rows_of_a_slate_are_as_of_its_first_row_where_values_change_within_a_day(
    table: pl.DataFrame, shop: Any, features: Features
) -> None:
    times = table.select(Columns.DAY, Columns.SLATE, Columns.TIME).unique()
    is_one_time = times.height == times.select(Columns.DAY, Columns.SLATE).n_unique()
    assert is_one_time == (features.streaming is not None)
    own_times = pl.concat([shop.rows(day) for day in table[Columns.DAY].unique().to_list()])
    compared = table.join(own_times, Columns.IMPRESSION, suffix="_own")
    first = pl.col(f"{Columns.TIME}_own").min().over(Columns.DAY, Columns.SLATE)
    assert compared.filter(pl.col(Columns.TIME) < first).is_empty()
    if is_one_time:
        assert compared.filter(pl.col(Columns.TIME) != first).is_empty()


def test_served_rows_of_a_log_equal_the_table(
    table: pl.DataFrame, shop: Any, fitted: Path, model: Path, features: Features
) -> None:
    """Uses the rows of the parity gate: a sample, each with all rows of its slate."""
    sample = table.sample(80, seed=1).select(Columns.IMPRESSION, Columns.DAY)
    scored = sample.with_columns(pl.lit(0.0).alias("label_scored"), pl.lit(0.5, pl.Float32).alias("score"))
    served = ServedRows(model, shop.folder / "log", fitted, ReferenceRows(scored, table.height))
    batches = served.batches()
    assert sum(batch.impressions.size for batch in batches) == 80
    names = features.names
    by_impression = table.select(Columns.IMPRESSION, *names)
    for batch in batches:
        expected_rows = pl.DataFrame({Columns.IMPRESSION: batch.impressions}).join(
            by_impression, Columns.IMPRESSION, "left", maintain_order="left"
        )
        expected = np.column_stack(
            [expected_rows[name].cast(pl.Float32).fill_null(np.nan).to_numpy() for name in names]
        )
        actual = answered(model, dict(batch.tensors))
        slated = [number for number, name in enumerate(names) if "_slate_" in name]
        np.testing.assert_array_equal(actual[:, slated], expected[:, slated])
        np.testing.assert_allclose(actual, expected, rtol=1e-6)
    assert served.differing_inputs(int(sample[Columns.IMPRESSION][0])) == ()
    assert served.edge_case_difference() is None


@settings(max_examples=15)
@given(
    items=st.lists(st.sampled_from([*(f"item {number}" for number in range(9)), "nowhere"]), min_size=1, max_size=30),
    prices=st.lists(st.sampled_from([1.0, 1.5, 2.0, 0.0, -3.0, 7.25, float("nan")]), min_size=30, max_size=30),
)
def test_a_request_equals_the_table(
    shop: Any, fitted: Path, model: Path, items: list[str], prices: list[float]
) -> None:
    day, count = shop.until.date() - timedelta(days=1), len(items)
    transformer, signature = Transformer.load(fitted, "cpu"), Signature.read(model / FOLDER)
    template = (
        shop.rows(day)
        .head(1)
        .drop("item_id", "price")
        .with_columns(pl.lit(0).alias(place) for place in open_count_columns(transformer.plan.streaming))
    )
    rows = pl.concat([template] * count).with_columns(
        pl.Series("item_id", items), pl.Series("price", prices[:count]).fill_nan(None)
    )
    looked_up = transformer.look_up(rows, day)
    assembler = TensorAssembler(transformer.plan, signature)
    whole = DayAssembler(transformer.plan, signature, ViewIndex.read(fitted / "views"))
    columns = whole.columns(rows.head(1)) | {
        "item_id": TextCodes().encode(items), "price": np.array(prices[:count])
    }  # fmt: skip
    views = ViewIndex.read(fitted / "views")
    moment = views.tiles.known_at(views.start_of(day))
    tensors = assembler.tensors(columns, load_with_users(assembler, views, moment).tables, count)
    expected = encode(looked_up, signature, transformer.plan.declared)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, expected[name])


def test_slates_are_independent(shop: Any, fitted: Path, model: Path) -> None:
    day = shop.until.date() - timedelta(days=1)
    transformer, signature = Transformer.load(fitted, "cpu"), Signature.read(model / FOLDER)
    rows = shop.rows(day).head(12)
    rows = rows.with_columns(pl.lit(rows[Columns.TIME][0]).alias(Columns.TIME))
    served = DayAssembler(transformer.plan, signature, ViewIndex.read(fitted / "views"))
    apart = [served.tensors(part, day) for part in (rows.head(5), rows.tail(7))]
    together = served.tensors(rows.with_columns(pl.Series(SLATE, [0] * 5 + [1] * 7)), day)
    for name, tensor in together.items():
        np.testing.assert_array_equal(tensor, np.concatenate([part[name] for part in apart]))
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(served.tensors(rows, day)["numbers"], together["numbers"])
