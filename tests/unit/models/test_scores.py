from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from models.popularity.ranker import PopularityRanker
from models.popularity.section import PopularityModel
from models.xgboost.section import XGBoostModel
from shortlist.contracts import DataError
from shortlist.ranking.saved_models import load_ranker
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable
from shortlist.training.scores import score
from shortlist.training.train import train


def test_scores_hold_every_validation_and_test_row_once(table: DayTable, runtime: Runtime, tmp_path: Path) -> None:
    ranker = PopularityRanker(PopularityModel())
    ranker.fit(table, runtime)
    path = score(ranker, table, tmp_path / "scores")
    scores = pl.read_parquet(path)
    assert path == tmp_path / "scores" / "scores.parquet"
    assert scores["impression_id"].to_list() == list(
        range(3 * 1_500, 5 * 1_500)
    )  # warm-up and two training days before
    assert scores["split"].to_list() == ["validation"] * 1_500 + ["test"] * 1_500
    assert scores.schema["score"] == pl.Float32
    days = table.scan({table.days[3].day, table.days[4].day}).collect()
    assert np.array_equal(scores["score"].to_numpy(), ranker.predict(days))
    copied = [
        "label",
        "day",
        "impression_id",
        "user",
        "item",
        "cold_user",
        "cold_item",
        "slice_tab",
        "true_probability",
    ]
    assert scores.columns == [*copied, "split", "learnt", "score"]
    assert not scores["learnt"].any()
    assert scores.select(copied).equals(days.select(copied))


TREES = {"features": ("user_id", "age"), "rounds": 5, "early_stopping_rounds": 5}


def test_validation_rows_of_a_refitted_model_keep_their_unrefitted_scores(
    table: DayTable, runtime: Runtime, tmp_path: Path
) -> None:
    sections = {refit: XGBoostModel(**TREES, refit=bool(refit)) for refit in (0, 1)}
    scores_of = {}
    for refit, section in sections.items():
        train("xgboost", section, table, runtime, tmp_path / f"model{refit}", tmp_path / f"scores{refit}")
        scores_of[refit] = pl.read_parquet(tmp_path / f"scores{refit}/scores.parquet")
    parts = [scores.partition_by("split", maintain_order=True) for scores in scores_of.values()]
    (validation, test), (held_out, learnt) = parts
    assert np.allclose(validation["score"], held_out["score"], atol=1e-6)
    assert not np.allclose(test["score"], learnt["score"], atol=1e-3)
    assert not scores_of[1]["learnt"].any()
    loaded = load_ranker(tmp_path / "model1")  # it has no held-out scores: it has learnt its validation rows
    rescored = pl.read_parquet(score(loaded, table, tmp_path / "again"))
    assert rescored.group_by("split").agg(pl.col("learnt").all()).sort("split")["learnt"].to_list() == [False, True]


class FailsOnTheTestDay(PopularityRanker):
    def _predict(self, frame: pl.DataFrame) -> np.ndarray:
        if frame["day"].max() == date(2026, 1, 9):
            raise OSError("no space left on device")
        return super()._predict(frame)


def test_a_scoring_that_fails_half_way_leaves_no_files(table: DayTable, runtime: Runtime, tmp_path: Path) -> None:
    ranker = FailsOnTheTestDay(PopularityModel())
    ranker.fit(table, runtime)
    with pytest.raises(OSError, match="no space left on device"):
        score(ranker, table, tmp_path / "scores")
    assert not list(tmp_path.iterdir())


def test_a_table_without_later_days_has_nothing_to_score(table: DayTable, runtime: Runtime, tmp_path: Path) -> None:
    ranker = PopularityRanker(PopularityModel())
    ranker.fit(table, runtime)
    with pytest.raises(DataError, match="no rows on the validation and test days"):
        score(ranker, table.model_copy(update={"days": table.days[:3]}), tmp_path / "scores")


def test_train_writes_the_model_and_its_scores_and_records_every_epoch(
    table: DayTable, runtime: Runtime, tmp_path: Path
) -> None:
    section = XGBoostModel(features=("age", "text"), rounds=3)
    record = train("xgboost", section, table, runtime, tmp_path / "model", tmp_path / "scores")
    assert [line["round"] for line in record.history] == [1, 2, 3]
    assert load_ranker(tmp_path / "model").record == record
    assert pl.read_parquet(tmp_path / "scores" / "scores.parquet").height == 3_000


def test_train_needs_no_section_for_popularity(table: DayTable, runtime: Runtime, tmp_path: Path) -> None:
    record = train("popularity", None, table, runtime, tmp_path / "model", tmp_path / "scores")
    declared = {"kind": "popularity", "role": "baseline", "calibration": "none", "labels": [], "weights": None}
    assert (record.params, record.features) == (declared, ())
