"""Tiles of an hour, slates, windows, counts of open tiles and expressions together, from the log to a blessed model."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from shortlist.runs.local_training import run_locally
from shortlist.spec.load import parse_spec

FEATURES = [
    {"kind": "target", "key": "user_id", "name": "user_rate"},
    {"kind": "target", "key": "item_id", "name": "item_rate"},
    {"kind": "target", "key": "item_id", "name": "item_rate_3h", "window": "3h"},
    {"kind": "time_since", "key": "item_id", "name": "item_away"},
    {"kind": "current", "key": ["user_id", "surface"], "name": "user_surface_now"},
    {"kind": "current", "key": ["surface", "device"], "counts": "rate", "name": "surface_device_rate_now"},
    {
        "kind": "expression",
        "name": "relative_duration",
        "value": "duration / AVG(duration) OVER (PARTITION BY creator_id)",
    },
    {"kind": "expression", "name": "rate_lift", "value": "features.item_rate / features.user_rate"},
    {"kind": "expression", "name": "days_out", "value": "now - published_date"},
    {"kind": "expression", "name": "text_lengths", "value": "IF(device = 'mobile', LENGTH(surface), LENGTH(country))"},
    *(
        {"kind": "slate", "feature": name}
        for name in ("item_rate", "item_away", "surface_device_rate_now", "relative_duration")
    ),
]


@pytest.mark.long
def test_training_feast_and_triton_agree_on_all_features(small_spec: dict[str, Any], tmp_path: Path) -> None:
    spec = copy.deepcopy(small_spec) | {"name": "hours"}
    spec["data"] |= {"outcome_delay": "10m", "slate": {"gap_seconds": 1800}}
    spec["features"] = {"tile": "1h", "streaming": True, "columns": FEATURES}
    spec["models"] = {"xgboost": {"kind": "xgboost", "features": ["*"], "rounds": 40, "max_depth": 3}}
    spec["gates"] |= {"min_auc": 0.5, "slices": []}
    assert run_locally(parse_spec(yaml.safe_dump(spec)), None, tmp_path / "runs") == 0
    summary = json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())
    gates = {gate["name"]: gate for gate in summary["gates"]}
    for name in ("skew", "parity"):
        assert gates[name]["passed"], gates[name]["reason"]
    assert summary["blessed"] == {"model": "xgboost", "version": "1"}
