"""Networks with `refit` learn the validation days too, for the best number of epochs."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from models.dlrm.section import DLRMModel
from models.embedding.training.train import Training
from shortlist.ranking.ranker import Ranker
from shortlist.ranking.registry import kind_of
from shortlist.ranking.saved_models import load_ranker
from shortlist.spec.load import SpecError, parse_spec
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable
from shortlist.training.scores import score

ROOT = Path(__file__).parents[4]
SMALL: dict[str, Any] = {"features": ("user_id", "item_id", "age"), "embedding_dim": 4, "batch_size": 128, "epochs": 1}


def fitted(kind: str, table: DayTable, **changes: Any) -> Ranker[Any]:
    section = kind_of(kind).section.model_validate({"kind": kind, **SMALL, **changes})
    ranker: Ranker[Any] = kind_of(kind).load("ranker")(section)
    ranker.fit(table, Runtime(engine="cpu", seed=3))
    return ranker


@pytest.fixture(scope="module")
def every_day(table: DayTable) -> DayTable:
    """Return the table with the validation day among the training days."""
    split = table.notes["split"]
    learnt = {**split, "train": [*split["train"], *split["validation"]], "validation": split["test"], "test": []}
    return table.model_copy(update={"notes": {**table.notes, "split": learnt}})


@pytest.mark.parametrize("kind", ["dlrm", "wide_deep"])
def test_the_weights_are_those_of_a_training_on_all_days(
    kind: str, table: DayTable, every_day: DayTable, test_rows: pl.DataFrame
) -> None:
    refitted, at_once = fitted(kind, table, refit=True), fitted(kind, every_day)
    np.testing.assert_array_equal(refitted.predict(test_rows), at_once.predict(test_rows))


def test_the_validation_days_are_scored_by_the_model_without_their_rows(table: DayTable, tmp_path: Path) -> None:
    refitted, alone = (fitted("dlrm", table, refit=refit, calibration="platt") for refit in (True, False))
    assert refitted.record.history[0]["validation_log_loss"] == alone.record.history[0]["validation_log_loss"]
    assert refitted.record.has_learnt(date(2026, 1, 8)) and not alone.record.has_learnt(date(2026, 1, 8))
    refitted.save(tmp_path / "model")
    score(alone, table, tmp_path / "alone")
    score(refitted, table, tmp_path / "refitted")
    scores_alone, scores_refitted = (
        pl.read_parquet(tmp_path / name / "scores.parquet") for name in ("alone", "refitted")
    )
    days = pl.col("split") == "validation"
    assert scores_alone.filter(days)["score"].equals(scores_refitted.filter(days)["score"])
    assert not scores_refitted["learnt"].any()
    assert load_ranker(tmp_path / "model")._calibration is not None  # of the scores from before, too


def test_as_many_epochs_as_were_best(table: DayTable, monkeypatch: pytest.MonkeyPatch) -> None:
    repeated: list[int] = []
    monkeypatch.setattr(Training, "train_epochs", lambda self, train, epochs: repeated.append(epochs))
    record = fitted("dlrm", table, refit=True, epochs=6, learning_rate=0.02, embedding_learning_rate=0.3).record
    assert repeated == [record.best_epoch]
    assert repeated[0] < len(record.history)  # it overfits, and was stopped later


def test_refit_and_warm_start_are_refused_together() -> None:
    warm = {"retrain": "warm", "retrain_epochs": 1, "retrain_days": 1}
    with pytest.raises(ValueError, match="refit: true trains from fresh weights, which retrain: warm does not"):
        DLRMModel.model_validate({**SMALL, "refit": True, **warm})


def test_several_workers_refuse_a_refit() -> None:
    text = (ROOT / "tests/specs/valid/minimal.yaml").read_text().replace("kind: xgboost", "kind: dlrm, refit: true")
    with pytest.raises(
        SpecError, match=r"runtime\.cluster\.workers\.xgboost: models\.xgboost declares refit, which one"
    ):
        parse_spec(text, changes=["runtime.cluster.workers={xgboost: {nodes: 2}}"])


def test_a_search_measures_without_a_refit() -> None:
    assert DLRMModel.model_validate({**SMALL, "refit": True}).without_refit == DLRMModel.model_validate(SMALL)
