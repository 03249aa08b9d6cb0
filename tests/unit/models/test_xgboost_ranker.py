from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import xgboost

from models.xgboost.ranker import XGBoostRanker
from models.xgboost.section import XGBoostModel
from shortlist.contracts import DataError, ShortlistError
from shortlist.ranking.ranker import IncompatibleModelError
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable
from shortlist.system.query_engine import EngineError

SECTION = XGBoostModel(
    features=("user_id", "item_id", "age", "text"), rounds=30, max_depth=3, early_stopping_rounds=5, refit=False
)
# Overfits within a few trees.
FAST: dict[str, Any] = {"learning_rate": 0.5, "rounds": 200, "min_child_weight": 0.0, "max_depth": 6}


def fitted(table: DayTable, runtime: Runtime, champion: Path | None = None, **changes: Any) -> XGBoostRanker:
    ranker = XGBoostRanker(SECTION.model_copy(update=changes))
    ranker.fit(table, runtime, champion=champion)
    return ranker


def tree_count(folder: Path) -> int:
    return len(xgboost.Booster(model_file=folder / "model.ubj").get_dump())


def test_out_of_core_gives_the_model_of_in_memory(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_memory = fitted(table, runtime, refit=True)
    monkeypatch.delattr(xgboost, "QuantileDMatrix")  # the in-memory path is closed
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    out_of_core = fitted(table, runtime.model_copy(update={"memory_budget_mib": 0}), refit=True)
    assert out_of_core.record.rounds == in_memory.record.rounds
    np.testing.assert_allclose(out_of_core.predict(test_rows), in_memory.predict(test_rows), atol=1e-5)
    assert not list(tmp_path.iterdir())  # the cache is gone


def test_trees_of_columns_are_those_of_a_matrix(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = ("user_id", "item_id", "age")  # with nulls among the ages
    by_columns = fitted(table, runtime, features=narrow)
    monkeypatch.setattr("models.xgboost.matrices.float_columns", lambda frame, features: None)
    by_rows = fitted(table, runtime, features=narrow)
    assert by_columns.record.rounds == by_rows.record.rounds
    np.testing.assert_array_equal(by_columns.predict(test_rows), by_rows.predict(test_rows))


def test_a_table_within_the_budget_stays_in_memory(
    table: DayTable, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(xgboost, "ExtMemQuantileDMatrix")
    assert fitted(table, runtime, rounds=2).record.rounds == 2


def test_early_stopping_keeps_the_trees_up_to_the_best(table: DayTable, runtime: Runtime, tmp_path: Path) -> None:
    ranker = fitted(table, runtime, **FAST)
    losses = np.array([line["validation_log_loss"] for line in ranker.record.history], float)
    best = int(np.argmin(losses)) + 1
    assert len(losses) == best + 5 < 200
    assert ranker.record.rounds == ranker.record.best_epoch == best
    ranker.save(tmp_path / "model")
    assert tree_count(tmp_path / "model") == best
    assert (ranker.record.history[best - 1]["validation_auc"] or 0) > 0.6  # measured on the trees that were kept


def test_every_tree_is_reported_with_its_losses(table: DayTable, runtime: Runtime) -> None:
    lines: list[dict[str, Any]] = []
    XGBoostRanker(SECTION.model_copy(update={"rounds": 3})).fit(table, runtime, on_epoch=lines.append)
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert lines[2]["train_log_loss"] < lines[0]["train_log_loss"]


def test_refit_learns_from_the_validation_days(table: DayTable, runtime: Runtime, test_rows: pl.DataFrame) -> None:
    once, twice = (fitted(table, runtime, refit=refit) for refit in (False, True))
    assert twice.record.rounds == once.record.rounds
    validation = table.scan({table.days[3].day}).collect()

    def log_loss(ranker: XGBoostRanker) -> float:
        scores, labels = ranker.predict(validation), validation["label"].to_numpy()
        return float(-np.log(np.where(labels == 1, scores, 1 - scores)).mean())

    assert log_loss(twice) < log_loss(once)


def test_importance_is_the_share_of_gain_and_finds_what_was_planted(table: DayTable, runtime: Runtime) -> None:
    importance = fitted(table, runtime).record.importance
    assert sum(importance.values()) == pytest.approx(1)
    assert set(importance) == {"user_id", "item_id", "age", "text"}  # a vector is one feature
    assert list(importance.values()) == sorted(importance.values(), reverse=True)
    assert next(iter(importance)) in ("user_id", "item_id")  # their planted effects vary most
    assert importance["age"] > 0


def test_a_champion_is_the_start_of_its_successor(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, tmp_path: Path
) -> None:
    champion = fitted(table, runtime, rounds=10)
    champion.save(tmp_path / "champion")
    successor = fitted(table, runtime, champion=tmp_path / "champion", rounds=4, refit=True)
    assert successor.record.champion == "champion"
    assert successor.record.rounds == 10 + 4
    assert [line["round"] for line in successor.record.history] == [11, 12, 13, 14]
    successor.save(tmp_path / "successor")
    champion_trees, successor_trees = (json.loads(dumped(tmp_path / name)) for name in ("champion", "successor"))
    assert successor_trees[:10] == champion_trees


def dumped(folder: Path) -> str:
    return f"[{','.join(xgboost.Booster(model_file=folder / 'model.ubj').get_dump(dump_format='json'))}]"


def test_a_champion_with_other_features_is_refused(table: DayTable, runtime: Runtime, tmp_path: Path) -> None:
    fitted(table, runtime, rounds=2, features=("age", "user_id")).save(tmp_path / "champion")
    with pytest.raises(
        ShortlistError, match=r"the champion reads user_id, age; the spec now says user_id, item_id, age"
    ):
        fitted(table, runtime, champion=tmp_path / "champion")


def test_trees_go_on_from_the_scores_that_they_serve(table: DayTable, runtime: Runtime, tmp_path: Path) -> None:
    champion = fitted(table, runtime, rounds=40, max_bin=4)
    champion.save(tmp_path / "champion")
    # A tree that may not split, with no shrinkage to speak of, leaves all scores as they were.
    idle = {"retrain": "continue", "retrain_rounds": 1, "retrain_days": 0, "learning_rate": 1e-9, "max_bin": 3}
    successor = fitted(table, runtime, champion=tmp_path / "champion", **idle)
    validation = table.scan({table.days[3].day}).collect()
    scores, labels = champion.predict(validation), validation["label"].to_numpy()
    served = -np.log(np.where(labels == 1, scores, 1 - scores)).mean()
    assert successor.record.history[0]["validation_log_loss"] == pytest.approx(served, abs=1e-5)


def test_trees_go_on_by_as_many_as_declared(table: DayTable, runtime: Runtime, tmp_path: Path) -> None:
    fitted(table, runtime, rounds=10).save(tmp_path / "champion")
    two_rounds = {"retrain": "continue", "retrain_rounds": 2, "retrain_days": 0}
    assert fitted(table, runtime, champion=tmp_path / "champion", **two_rounds).record.rounds == 10 + 2


def test_rows_beyond_memory_cannot_be_gone_on_from(table: DayTable, runtime: Runtime, tmp_path: Path) -> None:
    fitted(table, runtime, rounds=2).save(tmp_path / "champion")
    small = runtime.model_copy(update={"memory_budget_mib": 0})
    with pytest.raises(
        IncompatibleModelError, match=r"4,500 rows of 6 floats are more than runtime\.memory_budget_mib \(0\) holds"
    ):
        fitted(table, small, champion=tmp_path / "champion")


def test_as_many_trees_are_grown_anew(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, tmp_path: Path
) -> None:
    searched = fitted(table, runtime, refit=True, **FAST)
    searched.save(tmp_path / "champion")
    refitted = fitted(table, runtime, champion=tmp_path / "champion", refit=True, retrain="refit", **FAST)
    assert refitted.record.rounds == searched.record.rounds
    np.testing.assert_array_equal(
        refitted.predict(test_rows), searched.predict(test_rows)
    )  # the same days, the same trees


def test_trees_grown_anew_record_how_well_the_champion_did_on_days_it_never_saw(
    table: DayTable, runtime: Runtime, tmp_path: Path
) -> None:
    """Without it a candidate with `retrain: refit` has no validation log loss, by which candidates are chosen."""
    split = table.notes["split"]
    days = [day.day.isoformat() for day in table.days]
    champion_split = {
        **split,
        "train": split["train"][:-1],
        "validation": split["train"][-1:],
        "test": split["validation"],
    }
    champion_table = table.model_copy(update={"notes": {**table.notes, "split": champion_split}})
    searched = fitted(champion_table, runtime, refit=True, **FAST)
    searched.save(tmp_path / "champion")
    refitted = fitted(table, runtime, champion=tmp_path / "champion", refit=True, retrain="refit", **FAST)
    validation = table.scan({table.days[days.index(split["validation"][0])].day}).collect()
    scores, labels = searched.predict(validation), validation["label"].to_numpy()
    expected = -np.log(np.where(labels == 1, scores, 1 - scores)).mean()
    assert [line["validation_log_loss"] for line in refitted.record.history] == pytest.approx([expected], abs=1e-5)
    same = fitted(table, runtime, champion=tmp_path / "champion", refit=True, retrain="refit", **FAST)
    same.save(tmp_path / "same")
    unjudged = fitted(table, runtime, champion=tmp_path / "same", refit=True, retrain="refit", **FAST)
    assert unjudged.record.history == ()  # the days were learnt by the champion too


def test_lists_of_ids_are_refused(table: DayTable, runtime: Runtime) -> None:
    with pytest.raises(ShortlistError, match=r"models\.xgboost\.features: tags_id: trees cannot read lists of ids"):
        fitted(table, runtime, features=("*_id",))


def test_infinite_values_are_refused_by_name(table: DayTable, runtime: Runtime, tmp_path: Path) -> None:
    copy = table.model_copy(update={"folder": tmp_path})
    for name in table.days[1].files + table.days[2].files + table.days[3].files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        rows = pl.read_parquet(table.folder / name, hive_partitioning=False)
        rows.with_columns(pl.lit(float("inf"), pl.Float32).alias("age")).write_parquet(tmp_path / name)
    with pytest.raises(DataError, match="feature 'age' holds infinite values"):
        fitted(copy, runtime)


@pytest.mark.parametrize("kind", ["xgboost", "dlrm"])
def test_a_declared_gpu_that_is_not_there_is_refused(kind: str, table: DayTable) -> None:
    import torch

    from models.xgboost.device import xgboost_device
    from shortlist.ranking.devices import torch_device

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    device = xgboost_device if kind == "xgboost" else torch_device
    assert device("auto") == device("cpu") == "cpu"
    with pytest.raises(EngineError, match=r"runtime\.engine is gpu, but .*CUDA.*or declare engine: auto or cpu"):
        device("gpu")
