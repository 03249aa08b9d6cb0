"""Calibration: fitted on the validation days, exported with the model, checked by the calibration gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime
import polars as pl
import pytest

from models.xgboost.ranker import XGBoostRanker
from models.xgboost.section import XGBoostModel
from shortlist.contracts import Columns, DataError
from shortlist.evaluation.gates.gates import calibration_gate
from shortlist.evaluation.metrics.measure import measure_rows
from shortlist.evaluation.metrics.scores import read_scores
from shortlist.ranking.calibration import fit_calibration
from shortlist.ranking.ranker import DivergedError
from shortlist.ranking.saved_models import load_ranker
from shortlist.ranking.validation import probabilities
from shortlist.serving.export.calibration import CALIBRATION_FILE, Calibration
from shortlist.serving.export.graph_builder import GraphBuilder, tensor_info
from shortlist.spec.gates import Gates
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import IntegrityError, read_json
from shortlist.storage.tables import DayTable
from shortlist.training.train import train

Method = Literal["platt", "isotonic"]
CURVE = Calibration(points=(-2.0, 0.0, 1.0), values=(-1.0, 0.5, 4.0))
BAD: dict[str, Any] = {
    "learning_rate": 1.0, "rounds": 40, "early_stopping_rounds": 40, "min_child_weight": 0.0, "refit": False,
}  # fmt: skip
"""Trees that overfit: their scores are far too certain."""


def overconfident(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and log-odds three times as far from 0 as calibrated ones."""
    random = np.random.default_rng(seed)
    true = random.normal(-0.5, 1, rows)
    return (3 * true).astype(np.float32), (random.random(rows) < 1 / (1 + np.exp(-true))).astype(np.int8)


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_scores_become_rates_and_rows_keep_their_order(method: Method) -> None:
    fitted = fit_calibration(method, *overconfident(20_000, 1), "models.trees")
    log_odds, labels = overconfident(20_000, 2)
    scores = probabilities(fitted.apply(log_odds))
    for part in np.array_split(np.argsort(log_odds), 10):
        assert abs(scores[part].mean() - labels[part].mean()) < 0.04
    distinct = np.unique(log_odds[:2_000])
    assert (np.diff(fitted.apply(distinct).astype(float)) >= 0).all()


def test_a_line_goes_on_beyond_the_points() -> None:
    points = np.array([-4, -2, -1, 0, 0.5, 1, 3], np.float32)
    assert CURVE.apply(points).tolist() == [-3, -1, -0.25, 0.5, 2.25, 4, 6]


def test_the_graph_computes_what_training_computes() -> None:
    nodes = GraphBuilder()
    output = CURVE.add_nodes(nodes, "x")
    model = nodes.model([tensor_info("x", np.float32, 1)], [tensor_info(output, np.float32, 1)])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    points = np.append(np.linspace(-9, 9, 1_001), [-3e5, 3e5, np.nan]).astype(np.float32)[:, None]
    np.testing.assert_allclose(session.run(None, {"x": points})[0], CURVE.apply(points), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_labels_that_never_vary_are_refused(method: Method) -> None:
    with pytest.raises(
        DataError, match=rf"models.trees.calibration: {method}: the label is 0 on all 100 rows of the val"
    ):
        fit_calibration(method, np.arange(100.0), np.zeros(100), "models.trees")


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_scores_that_fall_where_labels_rise_are_refused(method: Method) -> None:
    log_odds, labels = overconfident(5_000, 1)
    with pytest.raises(DataError, match="higher scores do not mean more positives; the model learnt nothing"):
        fit_calibration(method, -log_odds, labels, "models.trees")


def test_few_rows_and_equal_scores_are_no_trouble() -> None:
    labels = np.array([0, 1] * 20)
    assert fit_calibration("isotonic", np.zeros(40), labels, "models.m").apply(np.zeros(1)) == pytest.approx(0)
    assert fit_calibration("isotonic", np.zeros(400), np.tile(labels, 10), "models.m").values == pytest.approx((0,))


def section(calibration: str, **changed: Any) -> XGBoostModel:
    return XGBoostModel.model_validate(
        {"kind": "xgboost", "features": ["user_id", "item_id", "age", "text"], "calibration": calibration}
        | BAD | changed
    )  # fmt: skip


@pytest.mark.parametrize(("calibration", "passes"), [("none", False), ("platt", True), ("isotonic", True)])
def test_a_badly_calibrated_model_passes_the_gate_only_with_calibration(
    table: DayTable, runtime: Runtime, tmp_path: Path, calibration: str, passes: bool
) -> None:
    train("xgboost", section(calibration), table, runtime, tmp_path / "model", tmp_path / "scores")
    rows = read_scores(tmp_path / "scores/scores.parquet", "test")
    limits = Gates(max_calibration_error=0.03, max_rate_error=0.15, bootstrap_rounds=50)
    verdict = calibration_gate(measure_rows("trees", "candidate", rows, limits, 1).measures, limits)
    assert verdict.passed is passes, verdict.reason
    assert (tmp_path / "model" / CALIBRATION_FILE).exists() is passes


def test_it_is_a_part_of_the_release(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, tmp_path: Path
) -> None:
    train("xgboost", section("isotonic"), table, runtime, tmp_path / "model", tmp_path / "scores")
    scores = pl.read_parquet(tmp_path / "scores/scores.parquet").filter(pl.col("split") == "test")["score"]
    np.testing.assert_array_equal(load_ranker(tmp_path / "model").predict(test_rows), scores.to_numpy())
    assert CALIBRATION_FILE in read_json(tmp_path / "model/manifest.json")["sha256"]
    path = tmp_path / "model" / CALIBRATION_FILE
    path.write_text(path.read_text().replace("1", "2"))
    with pytest.raises(IntegrityError, match=CALIBRATION_FILE):
        load_ranker(tmp_path / "model")


def test_a_refit_is_calibrated_on_rows_new_to_the_model(table: DayTable, runtime: Runtime) -> None:
    plain, refit = (XGBoostRanker(section("platt", refit=refit, rounds=10)) for refit in (False, True))
    for ranker in (plain, refit):
        ranker.fit(table, runtime)
    frame = pl.concat(table_frames(table))
    assert plain._calibration == refit._calibration
    assert not np.array_equal(plain.predict(frame), refit.predict(frame))


def table_frames(table: DayTable) -> list[pl.DataFrame]:
    return [frame for day, frame in table.frames() if day == table.days[-2].day and Columns.LABEL in frame.columns]


class Reversed(XGBoostRanker):
    """A model whose scores fall where labels rise."""

    def _log_odds(self, frame: pl.DataFrame) -> np.ndarray:
        return -super()._log_odds(frame)


def test_a_model_that_cannot_be_calibrated_is_held_as_one_without_scores(table: DayTable, runtime: Runtime) -> None:
    with pytest.raises(DivergedError, match=r"models.xgboost.calibration: platt: on the validation days, higher"):
        Reversed(section("platt", rounds=5)).fit(table, runtime)
