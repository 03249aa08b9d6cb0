"""Sessions, content vectors and a second label together, from spec to a blessed release in one run of the graph."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from old_recommender import leave_out_recommender

from shortlist.runs.local_training import run_locally
from shortlist.spec.load import parse_spec

pytestmark = pytest.mark.long

VECTORS = ["text_vector", "image_vector"]
NETWORK = {
    "kind": "din", "features": ["*_log", "*_rate", "surface_id", "device_id", "*_vector", "past_seconds_ago",
                 "next_score"],
    "history": "past", "target": "item_id_id", "labels": ["like"], "refit": True,
    "vectors": {"of": [f"{column}_vector" for column in VECTORS]},
    "embedding_dim": 8, "epochs": 2, "batch_size": 512, "learning_rate": 0.003, "embedding_learning_rate": 0.03,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(small_spec: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    spec = copy.deepcopy(small_spec)
    source = {
        "chapters": {"count": 4, "follow": 0.4, "effect": 2.0, "within_session": True},
        "content": {},
        "likes": {"rate": 0.7},
    }
    spec["data"]["source"] |= {"items": 60, **source}
    leave_out_recommender(spec["data"])  # chapters choose the shown items
    spec["data"]["columns"].append({"name": "is_like", "type": "integer", "min": 0, "max": 1, "known": "after"})
    spec["data"]["labels"] = {"like": {"column": "is_like"}}
    items = next(table for table in spec["data"]["side_tables"] if table["name"] == "items")
    items["columns"] += [
        {"name": "title", "type": "string"},
        *({"name": column, "type": "vector"} for column in VECTORS),
    ]
    past = {"kind": "sequence", "of": "item_id", "key": "user_id", "last": 5, "live": True, "name": "past"}
    past |= {"with": ["seconds_ago", "duration", "watch_seconds", "tags"], "min_rows": 150}
    spec["features"] |= {"streaming": {"delay": "500ms"}}
    spec["features"]["columns"] = [column for column in spec["features"]["columns"] if column["kind"] != "slate"]
    # A column has one vocabulary, whoever reads it.
    spec["features"]["columns"] = [
        column | {"min_rows": 150} if column.get("each") == "tags" and column["kind"] == "vocabulary" else column
        for column in spec["features"]["columns"]
    ]
    score = {"kind": "sequence_score", "of": "item_id", "key": "user_id", "last": 5, "live": True, "counts": "rows",
             "name": "next_score", "refit_days": 3, "embedding_dim": 8, "epochs": 2}  # fmt: skip
    spec["features"]["columns"] += [past, score, {"kind": "vector", "each": VECTORS}]
    spec["models"] = {"din": NETWORK, "logistic": spec["models"]["logistic"]}
    follow = {"kind": "sequence", "embedding_dim": 8, "last": 5, "epochs": 1, "item_vectors": {"of": VECTORS}}
    spec["retrieval"] = {
        "candidates": 40,
        "context": ["surface"],
        "sources": {"popular": {"kind": "popular"}, "next": follow},
    }
    spec["ordering"] = {"value": "score + 0.5 * score_like"}
    loose = {"min_auc": 0.5, "max_log_loss": 2, "min_gain_over_baseline": 0, "min_gauc_gain": None, "metric": "auc"}
    spec["gates"] |= loose | {"max_calibration_error": 0.5, "max_rate_error": 1, "parity_rows": 300}
    spec["gates"]["custom"] = {"retrieval": {"min_recall": 0.1}}
    folder = tmp_path_factory.mktemp("sequences") / "runs"
    assert run_locally(parse_spec(yaml.safe_dump(spec)), None, folder) == 0
    summary: dict[str, Any] = json.loads((folder / "latest/summary.json").read_text())
    return summary


def test_all_together_end_in_a_blessed_release(run: dict[str, Any]) -> None:
    assert run["blessed"]["model"] == "din"
    assert {gate["name"] for gate in run["gates"]} >= {"labels", "parity", "skew", "retrieval", "slates"}
