"""What counts of the open tile (`current`) bring: `current.py DATA`, KuaiRand's files and a made log.

Items of the made log live for six hours, and only time tells which are good. Trees, the spec's test days, AUC, log loss
and GAUC. The same rows, rounds and seed for each way of counting, so that only the features differ; one model each.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table

from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.evaluation.measure import scores_file
from shortlist.evaluation.metrics import auc, log_loss
from shortlist.evaluation.ranking import gauc
from shortlist.evaluation.scores import read_scores
from shortlist.features.fit import fit
from shortlist.features.table import build_table
from shortlist.spec.load import load_spec
from shortlist.spec.spec import Spec
from shortlist.training.train import train

WAYS: Final = (("1d", False), ("1d", True), ("1h", False), ("1h", True))
"""Tile, and whether there are features of kind `current`."""
ROUNDS: Final = 120
RESULTS: Final = Path(__file__).parent / "results" / "current.json"
LIVES_HOURS: Final = 6
MADE: Final[dict[str, Any]] = {
    "version": 1,
    "name": "made",
    "data": {
        "source": {"kind": "files", "path": "log.parquet", "format": "parquet"},
        "columns": [
            {"name": "user_id", "type": "integer"},
            {"name": "video_id", "type": "integer"},
            {"name": "is_click", "type": "integer"},
        ],
        "label": "is_click",
        "clock": {"kind": "column", "column": "time", "unit": "s"},
        "user": "user_id",
        "item": "video_id",
        "split": {"warmup_days": 1, "validation_days": 1, "test_days": 2},
    },
    "features": {
        "columns": [
            {"kind": "target", "key": "user_id", "name": "user_rate", "prior": 5},
            {"kind": "target", "key": "video_id", "name": "video_rate", "prior": 10},
            {"kind": "count", "key": "video_id", "name": "video_seen"},
        ]
    },
    "models": {
        "xgboost": {"kind": "xgboost", "features": ["*_rate", "*_seen"], "max_depth": 4, "min_child_weight": 20}
    },
}


def made_log(folder: Path, rows: int = 80_000, days: int = 6, seed: int = 5) -> Path:
    """Write a log whose items are shown for some hours after they appear, each with a click rate of its own."""
    random, span = np.random.default_rng(seed), days * 86_400
    born = np.sort(random.uniform(-LIVES_HOURS * 3600, span, 250 * days))
    good, users = random.beta(1.5, 6, born.size), random.normal(0, 0.5, 2_000)
    time = np.sort(random.uniform(0, span, rows)).astype(np.int64)
    first, last = (np.searchsorted(born, time - late) for late in (LIVES_HOURS * 3600, 0))
    item = first + (random.random(rows) * (last - first)).astype(np.int64)
    user = random.integers(0, users.size, rows)
    odds = np.log(good[item] / (1 - good[item])) + users[user]
    clicked = (random.random(rows) < 1 / (1 + np.exp(-odds))).astype(np.int64)
    start = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp())
    columns = {"time": time + start, "user_id": user, "video_id": item, "is_click": clicked}
    pl.DataFrame(columns).write_parquet(folder / "log.parquet")
    return folder


def spec_of(shipped: Mapping[str, Any], tile: str, current: bool) -> Spec:
    """Return a declaration, counted otherwise; outcomes are known after a minute."""
    spec = json.loads(json.dumps(shipped))
    spec["data"]["outcome_delay"] = "1m"
    spec["features"]["tile"] = tile
    trees = spec["models"]["xgboost"] | {"rounds": ROUNDS, "early_stopping_rounds": 30, "learning_rate": 0.15}
    spec["models"] = {"xgboost": trees | {"refit": False}}
    if current:
        spec["features"]["streaming"] = True
        pairs = [(key, counts) for key in ("user_id", "video_id") for counts in ("rows", "positives")]
        spec["features"]["columns"] += [
            {"kind": "current", "key": [key], "counts": counts, "name": f"{key}_{counts}_now"} for key, counts in pairs
        ]
        trees["features"] = [*trees["features"], "*_now"]
        spec["models"]["xgboost"] = trees | {"refit": False}
    return Spec.model_validate(spec)


def measured(shipped: Mapping[str, Any], log: Path, tile: str, current: bool, out: Path) -> dict[str, Any]:
    """Return how good trees are with one way of counting."""
    spec = spec_of(shipped, tile, current)
    sections = spec.data, spec.features, spec.gates
    fit(*sections, spec.runtime, log, out / "fitted")
    table = build_table(*sections, spec.runtime, log, out / "fitted", out / "table")
    train("xgboost", spec.models["xgboost"], table, spec.runtime, out / "model", out / "scores")
    scored = read_scores(scores_file(out / "scores"), "test")
    assert scored.users is not None
    return {
        "tile": tile, "current": current, "rows": scored.rows, "auc": auc(scored.labels, scored.scores),
        "log_loss": log_loss(scored.labels, scored.scores), "gauc": gauc(scored.labels, scored.scores, scored.users),
    }  # fmt: skip


def all_ways(shipped: Mapping[str, Any], data: Path, folder: Path) -> list[dict[str, Any]]:
    """Return what every way of counting gives on one log."""
    spec = spec_of(shipped, "1d", current=False)
    ingest(spec.data, data, folder / "raw", spec.runtime)
    validate(spec.data, folder / "raw", folder / "log", folder / "bad", spec.runtime, datetime.now(UTC), None)
    return [measured(shipped, folder / "log", *way, folder / f"way{number}") for number, way in enumerate(WAYS)]


def main() -> None:
    """Measure both logs, print and write the results."""
    kuairand = load_spec(Path(__file__).parents[1] / "pipelines/specs/kuairand.yaml").model_dump(
        mode="json", exclude_unset=True
    )
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "made").mkdir()
        found = {
            "made": all_ways(MADE, made_log(folder / "made"), folder / "made"),
            "kuairand": all_ways(kuairand, Path(sys.argv[1]), folder / "kuairand"),
        }
    table = Table("log", "tile", "current", "AUC", "log loss", "GAUC")
    for log, lines in found.items():
        for line in lines:
            quality = (f"{line[name]:.4f}" for name in ("auc", "log_loss", "gauc"))
            table.add_row(log, line["tile"], "yes" if line["current"] else "no", *quality)
    Console().print(table)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
