from __future__ import annotations

from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import onnxruntime
import polars as pl
import pytest

from models.lightgbm.export import tree_attributes
from models.lightgbm.ranker import LightGBMRanker
from models.lightgbm.section import LightGBMModel
from shortlist.contracts import ShortlistError
from shortlist.ranking.ranker import IncompatibleModelError
from shortlist.serving.export.graph_builder import ML, ExportError, GraphBuilder, tensor_info
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable

SECTION = LightGBMModel(features=("user_id", "item_id", "age", "text"), rounds=30, num_leaves=8, refit=False)
PARAMS: dict[str, Any] = {"objective": "binary", "num_leaves": 15, "min_data_in_leaf": 5, "verbosity": -1}


def fitted(table: DayTable, runtime: Runtime, champion: Path | None = None, **changes: Any) -> LightGBMRanker:
    ranker = LightGBMRanker(SECTION.model_copy(update=changes))
    ranker.fit(table, runtime, champion=champion)
    return ranker


def test_it_ranks_and_is_the_same_again_whatever_the_budget(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame
) -> None:
    in_memory, streamed = (fitted(table, runtime.model_copy(update={"memory_budget_mib": mib})) for mib in (0, 4_096))
    np.testing.assert_array_equal(in_memory.predict(test_rows), streamed.predict(test_rows))
    best = in_memory.record.history[(in_memory.record.rounds or 0) - 1]
    assert best["validation_auc"] and best["validation_auc"] > 0.7
    assert sum(in_memory.record.importance.values()) == pytest.approx(1)
    assert set(in_memory.record.importance) == {"user_id", "item_id", "age", "text"}


def test_it_stops_early_and_keeps_the_best_trees(table: DayTable, runtime: Runtime, tmp_path: Path) -> None:
    greedy = fitted(table, runtime, rounds=200, learning_rate=0.8, early_stopping_rounds=5, min_data_in_leaf=1)
    assert greedy.record.rounds == len(greedy.record.history) - 5
    greedy.save(tmp_path / "model")
    assert len(LightGBMRanker.load(tmp_path / "model")._leaves) == greedy.record.rounds


def test_a_saved_model_gives_the_same_scores(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, tmp_path: Path
) -> None:
    ranker = fitted(table, runtime, refit=True)
    ranker.save(tmp_path / "model")
    np.testing.assert_array_equal(LightGBMRanker.load(tmp_path / "model").predict(test_rows), ranker.predict(test_rows))


def test_it_goes_on_from_an_earlier_model(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, tmp_path: Path
) -> None:
    continuing = {"retrain": "continue", "retrain_rounds": 5, "retrain_days": 0}
    champion = fitted(table, runtime, rounds=10)
    champion.save(tmp_path / "before")
    continued = fitted(table, runtime, tmp_path / "before", **continuing)
    assert (champion.record.rounds, continued.record.rounds) == (10, 15)
    first = lgb.Booster(model_str=continued._booster.model_to_string(num_iteration=10))
    rows = np.zeros((1, 6), np.float32)
    assert first.predict(rows) == pytest.approx(champion._booster.predict(rows))
    with pytest.raises(IncompatibleModelError, match=r"has 10 trees; 30 more are beyond models.lightgbm.rounds \(30\)"):
        LightGBMRanker.check_previous_model(champion.record, SECTION.model_copy(update={"retrain_rounds": 30}))
    small = runtime.model_copy(update={"memory_budget_mib": 0})
    with pytest.raises(IncompatibleModelError, match="trees can only go on from rows in memory"):
        fitted(table, small, tmp_path / "before", **continuing)


def test_another_models_features_are_refused(table: DayTable, runtime: Runtime, tmp_path: Path) -> None:
    fitted(table, runtime, rounds=3).save(tmp_path / "before")
    with pytest.raises(IncompatibleModelError, match="the champion reads user_id, item_id"):
        fitted(table, runtime, tmp_path / "before", features=("age",))


def test_lists_are_refused(table: DayTable, runtime: Runtime) -> None:
    with pytest.raises(ShortlistError, match=r"models.lightgbm.features: tags_id: trees cannot read lists of ids"):
        fitted(table, runtime, features=("*",))


def rows(count: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    values = random.integers(-4, 5, (count, 4)) / np.float32(8)  # few values: rows lie near thresholds
    values[:, :3] = np.where(random.random((count, 3)) < 0.2, np.nan, values[:, :3])  # the last column is never missing
    return values.astype(np.float32)


def test_trees_give_their_log_odds_on_thresholds_and_for_missing_values() -> None:
    values = rows(3_000)
    labels = np.nan_to_num(values[:, 0]) - np.isnan(values[:, 1]) + values[:, 3] > np.random.default_rng(1).normal(
        0, 1, 3_000
    )
    booster = lgb.train(PARAMS, lgb.Dataset(values, labels.astype(int)), 20)
    attributes = tree_attributes(booster)
    nodes = GraphBuilder()
    output = nodes.add("TreeEnsembleRegressor", "x", domain=ML, **attributes)
    model = nodes.model([tensor_info("x", np.float32, 4)], [tensor_info(output, np.float32, 1)])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    thresholds = np.unique(attributes["nodes_values"]).astype(np.float32)
    thresholds = thresholds[np.abs(thresholds) < 1e30]  # larger ones split missing from present values
    near = [np.nextafter(thresholds, np.float32(side)) for side in (-np.inf, np.inf)]
    missing = np.full((1, 4), np.nan, np.float32)  # also where no training row was missing
    probes = np.concatenate(
        [rows(500, 9), missing, *(np.repeat(threshold[:, None], 4, 1) for threshold in (thresholds, *near))]
    )
    probes = np.where(np.abs(probes) < 1e-30, np.float32(0), probes)  # LightGBM takes what is closer to 0 for 0
    expected = booster.predict(probes, raw_score=True)
    np.testing.assert_allclose(session.run(None, {"x": probes})[0][:, 0], expected, atol=3e-6)
    assert np.unique(expected).size > 20


def test_categorical_splits_are_refused() -> None:
    values = np.random.default_rng(0).integers(0, 6, (500, 1)).astype(float)
    dataset = lgb.Dataset(values, values[:, 0] % 2, categorical_feature=[0])
    with pytest.raises(ExportError, match="tree 0 splits categories"):
        tree_attributes(lgb.train(PARAMS, dataset, 2))
