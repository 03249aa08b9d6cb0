"""Every kind of model scores rows with a missing or unseen value like the average."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pytest

from models import missing_directions
from models.catboost import ranker as catboost_ranker
from models.embedding.training import unknown_ids
from models.logistic.ranker import LogisticRanker
from models.registry import KINDS
from shortlist.contracts import Files
from shortlist.data.ingest import ingest
from shortlist.data.validate import validate
from shortlist.evaluation.gates.unknown_values import UnknownValueLimits
from shortlist.evaluation.metrics.measure import scores_file
from shortlist.evaluation.metrics.pointwise import auc
from shortlist.evaluation.metrics.scores import read_scores
from shortlist.features.fits.fit import fit
from shortlist.features.rows.table import build_table
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
    - {kind: target, key: [user_id, device], prior_key: user_id, name: user_device_rate, prior: 5}
    - {kind: numeric, each: [price], suffix: log, log: true}
    - {kind: vocabulary, each: [device, shop], suffix: code, min_rows: 20}
    - {kind: vocabulary, each: [user_id, item_id], min_rows: 20}
    - {kind: sequence, of: item_id, key: user_id, last: 5, name: taken, min_rows: 20}
models:
  trees: {kind: xgboost, features: ["*_rate"]}
"""
NUMBERS: Final = ["*_rate", "hour_*", "*_log", "*_code"]
NETWORK: Final = {
    "features": ["*_log", "hour_*", "*_rate", "*_code"], "embedding_dim": 8, "epochs": 6,
    "batch_size": 512, "learning_rate": 0.01,
}  # fmt: skip
MODELS: Final[dict[str, dict[str, Any]]] = {
    "xgboost": {"features": NUMBERS, "rounds": 600, "learning_rate": 0.05, "max_depth": 4, "refit": True},
    "lightgbm": {"features": NUMBERS, "rounds": 400, "learning_rate": 0.05, "refit": True},
    "catboost": {"features": NUMBERS, "rounds": 400, "learning_rate": 0.05, "depth": 4, "refit": True},
    "logistic": {"features": ["*"], "role": "candidate"},
    "dlrm": {**NETWORK, "bottom_mlp": [32], "top_mlp": [32, 16]},
    "dcn": NETWORK,
    "wide_deep": NETWORK,
    "finalnet": NETWORK,
    "din": {**NETWORK, "features": [*NETWORK["features"], "item_id_id", "taken"], "history": "taken",
            "target": "item_id_id"},
    "blend": {"models": ["xgboost", "logistic"]},
}  # fmt: skip
MATTERING: Final = (1.0, -1.1, 12_000, 0.0)
"""A log whose columns matter: see `write_log`."""
SHORT: Final = ("xgboost", "lightgbm", "catboost")
"""Kinds that `make test` tries."""
CASES: Final = [kind if kind in SHORT else pytest.param(kind, marks=pytest.mark.long) for kind in MODELS]


@dataclass(frozen=True)
class World:
    """Outputs of the steps before a training."""

    spec: Spec
    folder: Path

    def train(self, kind: str, variant: str = "models") -> MemberFiles:
        """Return a trained model; those of a variant are trained once."""
        files = MemberFiles(self.folder / variant / kind / "model", self.folder / variant / kind / "scores")
        if not files.scores.exists():
            section = kind_of(kind).section.model_validate({"kind": kind, **MODELS[kind]})
            members = {name: self.train(name, variant) for name in section.members}
            table = DayTable.open(self.folder / "table", Files.TABLE)
            train(kind, section, table, self.spec.runtime, *files, members=members)
        return files

    def auc(self, kind: str, variant: str = "models") -> float:
        """Return the AUC of a model on the test days."""
        scored_rows = read_scores(scores_file(self.train(kind, variant).scores), "test")
        return auc(scored_rows.labels.astype(float), scored_rows.scores)


def write_log(path: Path, effect: float, base: float, rows: int, crawler: float) -> None:
    """Write a log in which users and items matter; devices, shops and prices do by an effect, which may be none.

    A crawler, a user without positives, has a share of the rows.
    """
    draw = np.random.default_rng(1)
    users, items, shops = (draw.integers(0, count, rows) for count in (140, 48, 40))
    devices, prices = draw.integers(0, 3, rows), np.exp(draw.normal(2.5, 0.7, rows)).round(2)
    item_effects, user_effects, shop_effects = (
        draw.normal(0, size, n) for size, n in ((0.8, 48), (0.5, 140), (0.6, 40))
    )
    of_columns = np.array([-0.9, 0, 0.9])[devices] - 0.6 * (np.log(prices) - 2.5) + shop_effects[shops]
    log_odds = base + item_effects[items] + user_effects[users] + effect * of_columns
    is_crawler = np.random.default_rng(2).random(rows) < crawler
    users, log_odds = np.where(is_crawler, 140, users), np.where(is_crawler, -9.0, log_odds)
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
        pytest.param(MATTERING, id="columns that matter"),
        pytest.param((0.0, -1.1, 16_000, 0.25), id="columns without an effect, a crawler", marks=pytest.mark.long),
        pytest.param((1.0, -4.2, 30_000, 0.0), id="columns that matter, one positive in forty", marks=pytest.mark.long),
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


def test_every_served_kind_is_tested() -> None:
    assert {name for name in KINDS if kind_of(name).export} == set(MODELS)


@pytest.mark.parametrize("kind", CASES)
def test_an_unknown_value_is_scored_like_the_average(world: World, kind: str, tmp_path: Path) -> None:
    files = world.train(kind)
    model, scores = Path(shutil.copytree(files.model, tmp_path / "model")), files.scores
    pack(model, world.folder / "fitted")
    export(model, "shop")
    served = ServedRows(model, world.folder / "valid", world.folder / "fitted", draw_reference_rows(scores, 2_000, 1))
    effects = [effect for effect in measure_unknown_values(model, served) if not effect.is_key]
    assert {(effect.column, effect.value) for effect in effects} == {
        ("device", "missing"), ("device", "unseen"), ("shop", "missing"), ("shop", "unseen"), ("price", "missing")
    }  # fmt: skip
    assert max(abs(effect.shift) for effect in effects) < 0.15 == UnknownValueLimits().max_shift


@pytest.mark.long
@pytest.mark.parametrize("world", [pytest.param(MATTERING, id="columns that matter")], indirect=True)
@pytest.mark.parametrize("kind", MODELS)
def test_a_column_that_matters_loses_none_of_what_it_says(
    world: World, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    auc_of_average = world.auc(kind)
    for module in (catboost_ranker, missing_directions, unknown_ids):
        monkeypatch.setattr(module, "find_rarely_unknown_features", lambda learning: ())
    monkeypatch.setattr(LogisticRanker, "_set_unknown", lambda ranker, learning: None)
    assert auc_of_average > world.auc(kind, "not averaged") - 0.001
