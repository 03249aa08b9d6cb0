from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import xgboost as xgb

from models.xgboost.export import tree_attributes
from shortlist.serving.export.graph_builder import ML, ExportError, GraphBuilder, tensor_info

PARAMS: dict[str, Any] = {"objective": "binary:logistic", "max_depth": 5, "min_child_weight": 0, "nthread": 1}


def rows(count: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    values = random.integers(-4, 5, (count, 4)) / np.float32(8)  # few values: rows lie on thresholds
    return np.where(random.random(values.shape) < 0.2, np.nan, values).astype(np.float32)


def boosted(folder: Path, trees: int = 30, **params: Any) -> tuple[xgb.Booster, Path]:
    values = rows(3_000)
    signal = np.nan_to_num(values[:, 0]) - np.isnan(values[:, 1]) + np.nan_to_num(values[:, 2] * values[:, 3])
    labels = (signal + np.random.default_rng(1).normal(0, 1, len(values)) > 0.4).astype(float)
    booster = xgb.train(PARAMS | params, xgb.QuantileDMatrix(values, labels), trees)
    booster.save_model(folder / "model.ubj")
    return booster, folder / "model.ubj"


def margins(weights: Path, values: np.ndarray) -> np.ndarray:
    nodes = GraphBuilder()
    output = nodes.add("TreeEnsembleRegressor", "x", domain=ML, **tree_attributes(weights))
    model = nodes.model([tensor_info("x", np.float32, 4)], [tensor_info(output, np.float32, 1)])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": values})[0][:, 0])


@pytest.mark.parametrize("params", [{}, {"base_score": 0.03}, {"max_depth": 1}, {"learning_rate": 1.0}])
def test_trees_give_their_log_odds_on_thresholds_and_for_missing_values(tmp_path: Path, params: dict[str, Any]) -> None:
    booster, weights = boosted(tmp_path, **params)
    thresholds = np.unique(tree_attributes(weights)["nodes_values"]).astype(np.float32)
    near = np.concatenate([np.nextafter(thresholds, np.float32(side)) for side in (-np.inf, np.inf)])
    values = np.concatenate(
        [rows(500, seed=9), *(np.repeat(split_value[:, None], 4, 1) for split_value in (thresholds, near))]
    )
    expected = booster.inplace_predict(values, predict_type="margin", validate_features=False)
    np.testing.assert_allclose(margins(weights, values), expected, atol=2e-6)
    assert np.unique(expected).size > 5


def test_a_model_of_one_leaf_is_its_base_rate(tmp_path: Path) -> None:
    booster, weights = boosted(tmp_path, trees=1, gamma=1e9)
    assert len(tree_attributes(weights)["nodes_treeids"]) == 1
    expected = booster.inplace_predict(rows(3), predict_type="margin", validate_features=False)
    np.testing.assert_allclose(margins(weights, rows(3)), expected, atol=1e-6)


def test_only_the_trees_that_the_booster_keeps_count(tmp_path: Path) -> None:
    booster, _ = boosted(tmp_path, trees=9)
    booster[:4].save_model(tmp_path / "model.ubj")
    assert set(tree_attributes(tmp_path / "model.ubj")["nodes_treeids"].tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("params", [{"objective": "reg:squarederror"}, {"booster": "dart"}])
def test_another_sort_of_booster_is_refused(tmp_path: Path, params: dict[str, Any]) -> None:
    _, weights = boosted(tmp_path, trees=2, **params)
    with pytest.raises(ExportError, match=r"model\.ubj: .*wanted trees for binary:logistic"):
        tree_attributes(weights)


def test_categorical_splits_are_refused(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 6, (500, 1)).astype(np.float32)
    matrix = xgb.DMatrix(values, values[:, 0] % 2, feature_types=["c"], enable_categorical=True)
    xgb.train(PARAMS, matrix, 2).save_model(tmp_path / "model.ubj")
    with pytest.raises(ExportError, match="tree 0 splits categories"):
        tree_attributes(tmp_path / "model.ubj")
