"""Every kind of model scores rows with a missing or unseen value like the average."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pytest

from models.registry import KINDS
from shortlist.contracts import Files
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.evaluation.gates.unknown_values import UnknownValueLimits
from shortlist.features.fit import fit
from shortlist.features.table import build_table
from shortlist.ranking.ranker import MemberFiles
from shortlist.ranking.registry import kind_of
from shortlist.serving.validation.served_rows import ServedRows, draw_reference_rows
from shortlist.serving.validation.unknown_values import measure_unknown_values
from shortlist.spec.load import parse_spec
from shortlist.spec.spec import Spec
from shortlist.storage.tables import DayTable
from shortlist.training.export import export, pack
from shortlist.training.train import train

SPEC: Final = """
version: 1
name: shop
data:
  source: {kind: files, path: log.csv}
  columns:
    - {name: user_id, type: integer}
    - {name: item_id, type: integer}
    - {name: device, type: string}
    - {name: shop, type: string}
    - {name: price, type: number}
    - {name: label, type: integer}
  label: label
  clock: {kind: column, column: time, unit: iso}
  user: user_id
  item: item_id
  split: {warmup_days: 1, validation_days: 2, test_days: 2}
features:
  columns:
    - {kind: cyclic, period: day, name: hour}
    - {kind: target, key: user_id, name: user_rate, prior: 10}
    - {kind: target, key: item_id, name: item_rate, prior: 10}
    - {kind: target, key: shop, name: shop_rate}
    - {kind: target, key: [user_id, device], name: user_device_rate, prior: 5}
    - {kind: numeric, each: [price], suffix: log, log: true}
    - {kind: vocabulary, each: [device, shop], suffix: code, min_rows: 20}
    - {kind: vocabulary, each: [user_id, item_id], min_rows: 20}
    - {kind: sequence, of: item_id, key: user_id, last: 5, name: taken, min_rows: 20}
models:
  trees: {kind: xgboost, features: ["*_rate"]}
"""
NUMBERS: Final = ["*_rate", "hour_*", "*_log", "*_code"]
NETWORK: Final = {
    "features": ["*_log", "hour_*", "user_rate", "item_rate", "shop_rate", "*_code"], "embedding_dim": 8, "epochs": 6,
    "batch_size": 512, "learning_rate": 0.01,
}  # fmt: skip
MODELS: Final[dict[str, dict[str, Any]]] = {
    "xgboost": {"features": NUMBERS, "rounds": 600, "learning_rate": 0.05, "max_depth": 4, "refit": True},
    "lightgbm": {"features": NUMBERS, "rounds": 400, "learning_rate": 0.05, "refit": True},
    "logistic": {"features": ["*"], "role": "candidate"},
    "dlrm": {**NETWORK, "bottom_mlp": [32], "top_mlp": [32, 16]},
    "dcn": NETWORK,
    "wide_deep": NETWORK,
    "finalnet": NETWORK,
    "din": {**NETWORK, "features": [*NETWORK["features"], "item_id_id", "taken"], "history": "taken",
            "target": "item_id_id"},
    "blend": {"models": ["xgboost", "logistic"]},
}  # fmt: skip
SHORT: Final = ("xgboost", "lightgbm")
"""Kinds that `make test` tries."""
CASES: Final = [kind if kind in SHORT else pytest.param(kind, marks=pytest.mark.long) for kind in MODELS]


@dataclass(frozen=True)
class World:
    """Outputs of the steps before a training."""

    spec: Spec
    folder: Path

    def train(self, kind: str, out: Path) -> MemberFiles:
        section = kind_of(kind).section.model_validate({"kind": kind, **MODELS[kind]})
        members = {name: self.train(name, out / "members" / name) for name in section.members}
        table = DayTable.open(self.folder / "table", Files.TABLE)
        train(kind, section, table, self.spec.runtime, out / "model", out / "scores", members=members)
        return MemberFiles(out / "model", out / "scores")


def write_log(path: Path, effect: float, base: float, rows: int) -> None:
    """Write a log in which users and items matter; devices, shops and prices do by an effect, which may be none."""
    draw = np.random.default_rng(1)
    users, items, shops = (draw.integers(0, count, rows) for count in (140, 48, 40))
    devices, prices = draw.integers(0, 3, rows), np.exp(draw.normal(2.5, 0.7, rows)).round(2)
    item_effects, user_effects, shop_effects = (
        draw.normal(0, size, n) for size, n in ((0.8, 48), (0.5, 140), (0.6, 40))
    )
    of_columns = np.array([-0.9, 0, 0.9])[devices] - 0.6 * (np.log(prices) - 2.5) + shop_effects[shops]
    log_odds = base + item_effects[items] + user_effects[users] + effect * of_columns
    seconds = np.sort(draw.integers(0, 14 * 86_400, rows))
    pl.DataFrame(
        {
            "user_id": users, "item_id": items, "device": np.array(["ios", "android", "web"])[devices],
            "shop": [f"s{shop}" for shop in shops], "price": prices,
            "label": (draw.random(rows) < 1 / (1 + np.exp(-log_odds))).astype(np.int8),
            "time": [datetime(2026, 3, 2, tzinfo=UTC) + timedelta(seconds=int(second)) for second in seconds],
        }
    ).write_csv(path)  # fmt: skip


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((1.0, -1.1, 12_000), id="columns that matter"),
        pytest.param((0.0, -1.1, 12_000), id="columns without an effect", marks=pytest.mark.long),
        pytest.param((1.0, -4.2, 30_000), id="columns that matter, one positive in forty", marks=pytest.mark.long),
    ],
)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    write_log(folder / "log.csv", *request.param)
    spec = parse_spec(SPEC)
    runtime, valid, fitted = spec.runtime, folder / "valid", folder / "fitted"
    ingest(spec.data, folder, folder / "raw", runtime)
    validate(spec.data, folder / "raw", valid, folder / "quarantine", runtime, datetime.now(UTC))
    fit(spec.data, spec.features, spec.gates, runtime, valid, fitted)
    build_table(spec.data, spec.features, spec.gates, runtime, valid, fitted, folder / "table")
    return World(spec, folder)


def test_every_served_kind_is_tried() -> None:
    assert {name for name in KINDS if kind_of(name).export} == set(MODELS)


@pytest.mark.parametrize("kind", CASES)
def test_an_unknown_value_is_scored_like_the_average(world: World, kind: str, tmp_path: Path) -> None:
    model, scores = world.train(kind, tmp_path)
    pack(model, world.folder / "fitted")
    export(model, "shop")
    served = ServedRows(model, world.folder / "valid", world.folder / "fitted", draw_reference_rows(scores, 2_000, 1))
    effects = [effect for effect in measure_unknown_values(model, served) if not effect.is_key]
    assert {(effect.column, effect.value) for effect in effects} == {
        ("device", "missing"), ("device", "unseen"), ("shop", "missing"), ("shop", "unseen"), ("price", "missing")
    }  # fmt: skip
    assert max(abs(effect.shift) for effect in effects) < 0.15 < UnknownValueLimits().max_shift
