from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import xgboost

from models.xgboost.edges import quantile_edges, sampled_edges
from models.xgboost.matrices import binned_matrices
from models.xgboost.ranker import XGBoostRanker
from models.xgboost.section import XGBoostModel
from shortlist.contracts import DataError
from shortlist.ranking.inputs import LearningTable, TableFeature, features_matching
from shortlist.ranking.process_group import ProcessGroup
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable

AGE = TableFeature(name="age", kind="dense")
TEXT = TableFeature(name="text", kind="vector", width=2)
SECTION = XGBoostModel(features=("user_id", "item_id", "age", "text"), rounds=20, max_depth=4, refit=False)
SAMPLED: dict[str, Any] = {"bin_sample_rows": 1_000}
"""Fewer rows than the two training days have (3 000), and than a spec may declare."""
RANDOM = np.random.default_rng(4)
# Few enough for the sketch to be exact: it holds eight times as many as there are bins.
VALUES = {
    "continuous": RANDOM.normal(0, 3, 500),
    "ids, few of them frequent": RANDOM.zipf(1.2, 500).clip(max=1e6),
    "few values": RANDOM.integers(0, 9, 500),
    "as many values as edges": np.arange(65),
    "one more": np.arange(66),
    "one value": np.full(50, 7.0),
}


def cuts(matrix: xgboost.DMatrix, feature: int = 0) -> np.ndarray:
    """Return the edges of a feature's bins; the first and the last lie beyond all values."""
    starts, edges = matrix.get_quantile_cut()
    return np.asarray(edges[starts[feature] : starts[feature + 1]])


def fitted(table: DayTable, runtime: Runtime, **changes: Any) -> XGBoostRanker:
    ranker = XGBoostRanker(SECTION.model_copy(update=changes))
    ranker.fit(table, runtime)
    return ranker


def bytes_of(ranker: XGBoostRanker) -> bytes:
    return bytes(ranker._booster.save_raw("ubj"))


def edges_of(frames: dict[str, pl.DataFrame], features: tuple[TableFeature, ...], rows: int, seed: int) -> np.ndarray:
    heights = {Path(name): frame.height for name, frame in frames.items()}
    return sampled_edges(lambda path: frames[path.name], heights, features, rows, 64, seed)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_edges_of_a_sample_are_those_of_xgboost(values: np.ndarray) -> None:
    values = values.astype(np.float32)
    whole = cuts(xgboost.QuantileDMatrix(values[:, None], max_bin=64))
    edges = quantile_edges(values, 64)
    assert len(edges) <= 65
    np.testing.assert_array_equal(cuts(xgboost.QuantileDMatrix(edges[:, None], max_bin=64)), whole)


def test_every_file_gives_its_share_and_edges_are_near_the_exact_quantiles() -> None:
    # Each file's values lie elsewhere: a sample of some files, or with equal shares, would be far off.
    values = {
        name: RANDOM.normal(10 * number, 1, 1_000 + 9_000 * number).astype(np.float32)
        for number, name in enumerate("abc")
    }
    frames = {name: pl.DataFrame({"age": of_file}) for name, of_file in values.items()}
    ordered = np.sort(np.concatenate(list(values.values())))
    for seed in range(5):
        edges = edges_of(frames, (AGE,), 3_000, seed)[:, 0]
        assert edges[0] == ordered[0] and edges[-1] == ordered[-1]
        ranks = np.searchsorted(ordered, edges) / len(ordered)
        # A bin is 1/64 of the rows; a sample of 3 000 is off by 0.009 in the middle, one time in three.
        assert np.abs(ranks - np.arange(65) / 64).max() < 0.03


def test_nulls_are_no_edges_and_a_feature_without_values_has_none() -> None:
    text = pl.Series([[1, np.nan], [3, np.nan], [2, np.nan], None], dtype=pl.Array(pl.Float32, 2))
    frame = pl.DataFrame({"age": pl.Series([None, 5, None, 4], dtype=pl.Float32), "text": text})
    edges = edges_of({"a": frame, "b": frame.clear()}, (AGE, TEXT), 4, 0)
    assert [list(column[~np.isnan(column)]) for column in edges.T] == [[4, 5], [1, 2, 3], []]


def test_an_infinite_value_outside_the_sample_is_refused() -> None:
    frame = pl.DataFrame({"age": pl.Series([float("inf"), *range(5_000)], dtype=pl.Float32)})
    with pytest.raises(DataError, match="feature 'age' holds infinite values"):
        edges_of({"a": frame}, (AGE,), 1, 0)


def test_a_row_beyond_the_sample_scores_as_it_was_learnt() -> None:
    values = RANDOM.random(5_000).astype(np.float32)
    values[:2_500], values[2_500] = np.nan, 1_000
    labels = np.isnan(values).astype(np.float32)  # the label depends on missing values alone
    params = {"objective": "binary:logistic", "max_bin": 64}

    def wrong(edges: np.ndarray) -> float:
        like = xgboost.QuantileDMatrix(edges[:, None], max_bin=64)
        rows = xgboost.QuantileDMatrix(values[:, None], labels, max_bin=64, ref=like)
        booster = xgboost.train(params, rows, 5)
        return float(np.abs(booster.inplace_predict(values[:, None]) - labels).max())

    sample = values[2_501:]
    assert wrong(quantile_edges(sample, 64)) > 0.8  # it is binned with missing values
    frame = {"a": pl.DataFrame({"age": values}).fill_nan(None)}
    assert wrong(edges_of(frame, (AGE,), 100, 0)[:, 0]) < 0.2


@pytest.mark.parametrize("budget", [2_048, 0])
def test_the_same_seed_gives_the_same_model(table: DayTable, budget: int) -> None:
    runtimes = [Runtime(engine="cpu", seed=seed).model_copy(update={"memory_budget_mib": budget}) for seed in (3, 3, 4)]
    first, repeated, reseeded = (bytes_of(fitted(table, runtime, **SAMPLED)) for runtime in runtimes)
    assert first == repeated
    assert first != reseeded  # the sample is the only random part of these trees


def test_out_of_core_cuts_the_bins_of_in_memory(table: DayTable, runtime: Runtime, test_rows: pl.DataFrame) -> None:
    small = runtime.model_copy(update={"memory_budget_mib": 0})
    inside, outside = (fitted(table, budget, **SAMPLED, refit=True) for budget in (runtime, small))
    assert inside.record.rounds == outside.record.rounds
    np.testing.assert_allclose(outside.predict(test_rows), inside.predict(test_rows), atol=1e-5)


def test_trees_of_a_sample_rank_as_well(table: DayTable, runtime: Runtime) -> None:
    sampled, exact = (
        fitted(table, runtime, bin_sample_rows=rows, max_bin=32).record.history[-1]["validation_log_loss"]
        for rows in (1_000, None)
    )
    assert sampled == pytest.approx(exact, abs=5e-3)


@pytest.mark.parametrize("budget", [2_048, 0])
def test_a_table_of_no_more_rows_is_sketched_whole(table: DayTable, runtime: Runtime, budget: int) -> None:
    runtime = runtime.model_copy(update={"memory_budget_mib": budget})
    whole, as_many, sampled = (bytes_of(fitted(table, runtime, bin_sample_rows=rows)) for rows in (None, 3_000, 2_999))
    assert as_many == whole
    assert sampled != whole


@pytest.mark.parametrize("place", ["several processes", "a GPU"])
def test_xgboost_sketches_all_rows_of_several_processes_and_on_a_gpu(
    place: str, table: DayTable, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that cut their own samples would add up histograms of different bins."""
    if place == "a GPU":
        monkeypatch.setattr("models.xgboost.matrices.xgboost_device", lambda engine: "cuda")
        monkeypatch.setattr("models.xgboost.matrices.reads_on_device", lambda engine, device: False)
    else:
        monkeypatch.setattr("models.xgboost.matrices.current_group", lambda: ProcessGroup(0, 2, frozenset(), 1))
    learning = LearningTable(table, features_matching(table, ("age",)))
    edges = []
    for rows in (None, 1_000):
        with binned_matrices(learning, runtime, 64, rows) as matrix:
            edges.append(cuts(matrix(("train",), None)))
    np.testing.assert_array_equal(edges[1], edges[0])
