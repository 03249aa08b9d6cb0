"""Vectors of texts by a user's model, from the log's files to a blessed release in one run of the graph."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from old_recommender import leave_out_recommender
from onnx import TensorProto, helper, save

from shortlist.data.world.generate import generate_log
from shortlist.features.feast.feast_store_location import spec_feast_store_location
from shortlist.features.fits.previous_fit import newest_fit
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.runs.local_training import run_locally
from shortlist.serving.export.signature import FOLDER, Signature
from shortlist.spec.data import GeneratedSource
from shortlist.spec.generated_options import GeneratedContent
from shortlist.spec.load import parse_spec
from shortlist.storage.objects import CACHE_VARIABLE
from shortlist.storage.storage_config import StorageConfig
from shortlist.tracking.mlflow_store import Tracker
from shortlist.tracking.store_access import tracking_uri

pytestmark = pytest.mark.long

WORLD = GeneratedSource(
    kind="generated", rows=16_000, users=300, items=120, days=8, seed=7, content=GeneratedContent(effect=1.5)
)
VOCABULARY = ["calm", "fast", "simple", "expert", "old", "new", "alone", "together"]


def word_counts(path: Path) -> None:
    """Write a model that counts words in a text, split at spaces."""
    nodes = [
        helper.make_node("StringSplit", ["text"], ["words", "numbers"], delimiter=" "),
        helper.make_node(
            "TfIdfVectorizer", ["words"], ["vectors"], mode="TF", min_gram_length=1, max_gram_length=1,
            max_skip_count=0, ngram_counts=[0], ngram_indexes=list(range(len(VOCABULARY))), pool_strings=VOCABULARY,
        ),
    ]  # fmt: skip
    text_input = helper.make_tensor_value_info("text", TensorProto.STRING, [None])
    answer = helper.make_tensor_value_info("vectors", TensorProto.FLOAT, [None, len(VOCABULARY)])
    graph = helper.make_graph(nodes, "words", [text_input], [answer])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)


@pytest.fixture(scope="module")
def run(small_spec: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    generate_log(WORLD, folder / "data")
    word_counts(folder / "data" / "words.onnx")
    items = folder / "data" / "items.parquet"
    pl.read_parquet(items).drop("text_vector", "image_vector").write_parquet(items)
    spec = copy.deepcopy(small_spec)
    spec["data"]["source"] = {"kind": "files", "path": "impressions"}
    leave_out_recommender(spec["data"])
    spec["data"]["rules"] = spec["data"].get("rules", {}) | {"undeclared_columns": "ignore"}
    table = next(table for table in spec["data"]["side_tables"] if table["name"] == "items")
    vector_column = {"name": "title_vector", "type": "vector", "embedding": {"text": "title", "model": "words.onnx"}}
    table["columns"] += [{"name": "title", "type": "string"}, vector_column]
    spec["features"]["columns"].append({"kind": "vector", "each": "title_vector"})
    line = {"kind": "logistic", "role": "candidate", "bins": [0], "l2": [1e-5]}
    context = ["*_log", "surface_rate"]
    spec["models"] = {
        "texts": line | {"features": [*context, "title_vector_vector"]},
        "context": line | {"features": context},
        "popularity": {"kind": "popularity", "role": "baseline"},
    }
    spec["gates"] |= {
        "min_auc": 0.5, "max_log_loss": 2, "min_gain_over_baseline": 0, "min_gauc_gain": None, "metric": "auc",
        "max_calibration_error": 0.5, "max_rate_error": 1, "parity_rows": 300,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(folder / "cache"))
        assert run_locally(parse_spec(yaml.safe_dump(spec)), folder / "data", folder / "runs") == 0
    return folder


def test_texts_improve_the_blessed_release(run: Path) -> None:
    summary = json.loads((run / "runs/latest/summary.json").read_text())
    assert summary["blessed"]["model"] == "texts"
    assert summary["models"]["texts"]["auc"] > summary["models"]["context"]["auc"] + 0.005
    # A real Triton was asked with the vectors that a server reads of the items.
    assert {gate["name"] for gate in summary["gates"]} >= {"parity", "skew"}
    assert summary["reasons"]["texts"][0].startswith("passes every gate")


def test_served_vectors_are_those_of_the_items_titles(run: Path) -> None:
    tracker = Tracker(tracking_uri(run / "runs/stores"), "demo")
    blessed = tracker.registry.find("champion", run / "champion")
    assert blessed is not None
    signature = Signature.read(blessed.folder / FOLDER)
    assert [(column.place, column.width) for column in signature.vectors] == [("items:title_vector", len(VOCABULARY))]
    published = newest_fit(spec_feast_store_location(StorageConfig.parse(str(run / "runs/stores")), "demo"))
    served = ViewIndex.read(Path(published) / "views")
    view = pl.read_parquet(served.path(served.view("items"))).select("item_id", "title_vector")
    titles = pl.read_parquet(run / "data/items.parquet", columns=["item_id", "title"])
    rows = view.join(titles, on="item_id", validate="1:1")
    assert rows.height == WORLD.items
    counted = [[title.split().count(term) for term in VOCABULARY] for title in rows["title"]]
    np.testing.assert_array_equal(rows["title_vector"].to_list(), counted)
