"""Two processes grow the trees that one process grows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from models.xgboost.ranker import XGBoostRanker
from models.xgboost.section import XGBoostModel
from shortlist.ranking.saved_models import load_ranker, ranker_class
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable
from shortlist.training.distributed.job import DistributedJob
from shortlist.training.distributed.local_workers import train_locally

# Processes that wait for each other must not hold up all other tests.
pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

RUNTIME = Runtime(engine="cpu", seed=3)


def trees(ranker: XGBoostRanker) -> pl.DataFrame:
    return pl.from_pandas(ranker._booster.trees_to_dataframe())


def test_trees_are_those_of_one_process(table: DayTable, tmp_path: Path) -> None:
    # Ids have few values, so every sketch is exact and both ways cut the same bins; only the additions' order differs.
    section = XGBoostModel(features=("user_id", "item_id"), rounds=15, max_depth=4, refit=True)
    train_locally(DistributedJob.plan("xgboost", section, table, RUNTIME, None, 2), tmp_path / "model")
    together, alone = load_ranker(tmp_path / "model"), ranker_class("xgboost")(section)
    alone.fit(table, RUNTIME)
    assert isinstance(together, XGBoostRanker) and isinstance(alone, XGBoostRanker)
    distributed_trees, local_trees = trees(together), trees(alone)
    shape = ["Tree", "Node", "Feature", "Split", "Yes", "No", "Missing"]
    assert distributed_trees.select(shape).equals(local_trees.select(shape))
    for column in ("Gain", "Cover"):
        np.testing.assert_allclose(distributed_trees[column], local_trees[column], rtol=1e-3, atol=1e-4)
    assert together.record.rounds == alone.record.rounds
    last = [ranker.record.history[-1] for ranker in (together, alone)]
    assert last[0] == pytest.approx(last[1], abs=1e-5)


def test_quantiles_of_many_values_cut_nearly_the_same_bins(table: DayTable, tmp_path: Path) -> None:
    section = XGBoostModel(features=("user_id", "age", "text"), rounds=30, max_bin=64, refit=False)
    train_locally(DistributedJob.plan("xgboost", section, table, RUNTIME, None, 2), tmp_path / "model")
    together, alone = load_ranker(tmp_path / "model"), ranker_class("xgboost")(section)
    one_bin_fewer = ranker_class("xgboost")(section.model_copy(update={"max_bin": section.max_bin - 1}))
    for ranker in (alone, one_bin_fewer):
        ranker.fit(table, RUNTIME)
    rows = pl.concat([frame for day, frame in table.frames() if day == table.days[-1].day])
    scores = alone.predict(rows)
    differences = [np.abs(ranker.predict(rows) - scores) for ranker in (together, one_bin_fewer)]
    # A model without one of its three features is 2.7 times as far away.
    assert np.median(differences[0]) < 1.25 * np.median(differences[1])
    assert np.max(differences[0]) < 1.25 * np.max(differences[1])
    losses = [[line["validation_log_loss"] for line in ranker.record.history] for ranker in (together, alone)]
    assert min(losses[0]) == pytest.approx(min(losses[1]), abs=1e-2)  # 3 000 rows: a bin's border moves a few of them
