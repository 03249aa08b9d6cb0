"""Requirements on every kind of model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from models.catboost.section import CatBoostModel
from models.dlrm.section import DLRMModel
from models.logistic.section import LogisticModel
from models.popularity.section import PopularityModel
from models.xgboost.section import XGBoostModel
from shortlist.contracts import DataError, ShortlistError
from shortlist.ranking.ranker import Ranker
from shortlist.ranking.saved_models import load_ranker, ranker_class
from shortlist.spec.models import ModelSection
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import IntegrityError, folder_digest, read_json, sha256, write_manifest
from shortlist.storage.tables import DayTable

SECTIONS: dict[str, ModelSection] = {
    "xgboost": XGBoostModel(features=("user_id", "item_id", "age", "text"), rounds=30, subsample=0.8, max_depth=4),
    "catboost": CatBoostModel(features=("user_id", "item_id", "age", "text"), rounds=30, depth=4),
    "dlrm": DLRMModel(features=("*",), embedding_dim=4, bottom_mlp=(8,), top_mlp=(8,), batch_size=64, dropout=0.1),
    "logistic": LogisticModel(features=("*",), bins=(0,), l2=(1e-5,)),  # without its search over settings
    "popularity": PopularityModel(),
}
LEAST_AUC = {"xgboost": 0.7, "catboost": 0.75, "dlrm": 0.7, "logistic": 0.75, "popularity": 0.6}

MakeTable = Callable[..., DayTable]
every_kind = pytest.mark.parametrize("kind", list(SECTIONS))


def new(kind: str) -> Ranker[Any]:
    return ranker_class(kind)(SECTIONS[kind])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, DayTable], Path]:
    """Return a function that trains a kind of model once and gives its folder."""
    root = tmp_path_factory.mktemp("models")

    def folder_of(kind: str, table: DayTable) -> Path:
        if not (root / kind).exists():
            ranker = new(kind)
            ranker.fit(table, Runtime(engine="cpu", seed=3))
            ranker.save(root / kind)
        return root / kind

    return folder_of


Saved = Callable[[str, DayTable], Path]


@every_kind
def test_it_learns_the_planted_signal(kind: str, table: DayTable, test_rows: pl.DataFrame, saved: Saved) -> None:
    scores = load_ranker(saved(kind, table)).predict(test_rows)
    assert scores.dtype == np.float32
    assert scores.shape == (1_500,)
    assert scores.min() > 0
    assert scores.max() < 1
    assert roc_auc_score(test_rows["label"], scores) > LEAST_AUC[kind]


@every_kind
def test_a_second_run_gives_the_same_weights(
    kind: str, table: DayTable, runtime: Runtime, saved: Saved, tmp_path: Path
) -> None:
    second = new(kind)
    second.fit(table, runtime)
    second.save(tmp_path / "again")
    first = saved(kind, table)
    weights = [path.name for path in first.iterdir() if path.suffix != ".json"]
    assert len(weights) == 1
    assert sha256(first / weights[0]) == sha256(tmp_path / "again" / weights[0])


@every_kind
def test_another_seed_gives_another_model(kind: str, table: DayTable, test_rows: pl.DataFrame, saved: Saved) -> None:
    reseeded = new(kind)
    reseeded.fit(table, Runtime(engine="cpu", seed=4))
    same = np.array_equal(reseeded.predict(test_rows), load_ranker(saved(kind, table)).predict(test_rows))
    assert same == (kind == "popularity")  # counting has no seed


@every_kind
def test_test_and_warmup_days_are_never_opened(kind: str, make_table: MakeTable, runtime: Runtime) -> None:
    table = make_table()
    for day in (table.days[0], table.days[-1]):
        for name in day.files:
            (table.folder / name).write_bytes(b"not Parquet")
    assert new(kind).fit(table, runtime).train_rows == 3_000


@every_kind
def test_a_loaded_model_scores_as_before_it_was_saved(
    kind: str, table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, tmp_path: Path
) -> None:
    ranker = new(kind)
    record = ranker.fit(table, runtime)
    ranker.save(tmp_path / "model")
    loaded = load_ranker(tmp_path / "model")
    assert type(loaded) is type(ranker)
    assert loaded.record == record
    assert np.array_equal(loaded.predict(test_rows), ranker.predict(test_rows))


@every_kind
def test_a_row_alone_scores_as_in_company(kind: str, table: DayTable, test_rows: pl.DataFrame, saved: Saved) -> None:
    ranker = load_ranker(saved(kind, table))
    alone = np.concatenate([ranker.predict(test_rows[i]) for i in range(20)])
    np.testing.assert_allclose(alone, ranker.predict(test_rows)[:20], rtol=1e-5)
    assert ranker.predict(test_rows.clear()).shape == (0,)


@every_kind
def test_changed_weights_are_refused(kind: str, table: DayTable, saved: Saved, tmp_path: Path) -> None:
    folder = shutil.copytree(saved(kind, table), tmp_path / "model")
    weights = next(path for path in folder.iterdir() if path.suffix != ".json")
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    with pytest.raises(IntegrityError, match=f"{weights.name}: changed after it was written"):
        load_ranker(folder)


@every_kind
def test_the_record_says_how_it_was_trained(kind: str, table: DayTable, saved: Saved) -> None:
    folder = saved(kind, table)
    record = read_json(folder / "model.json")
    assert (record["kind"], record["name"], record["seed"]) == (kind, kind, 3)
    assert (record["train_rows"], record["validation_rows"]) == (3_000, 1_500)
    assert record["train_days"] == ["2026-01-06", "2026-01-07"]
    assert record["params"] == SECTIONS[kind].model_dump(mode="json")
    assert record["base_rate"] == pytest.approx(sum(day.positives for day in table.days[1:3]) / 3_000)
    assert record["train_rows_per_s"] > 0
    assert folder_digest(folder)


def test_a_model_of_another_kind_is_refused(table: DayTable, saved: Saved) -> None:
    with pytest.raises(IntegrityError, match="holds a model of kind 'popularity'; wanted 'xgboost'"):
        ranker_class("xgboost").load(saved("popularity", table))


def test_an_unknown_kind_is_refused(table: DayTable, saved: Saved, tmp_path: Path) -> None:
    with pytest.raises(
        ShortlistError, match=r"no kind of model 'xgbost'; did you mean 'xgboost'\?; there are xgboost, lightgbm"
    ):
        ranker_class("xgbost")
    folder = shutil.copytree(saved("popularity", table), tmp_path / "model")
    record = (folder / "model.json").read_text().replace('"kind": "popularity"', '"kind": "oracle"')
    (folder / "model.json").write_text(record)
    write_manifest(folder)
    with pytest.raises(
        IntegrityError, match=r"model: no kind of model 'oracle'; there are xgboost, lightgbm, catboost"
    ):
        load_ranker(folder)


def test_a_record_that_is_none_is_refused(table: DayTable, saved: Saved, tmp_path: Path) -> None:
    folder = shutil.copytree(saved("popularity", table), tmp_path / "model")
    (folder / "model.json").write_text("{}")
    write_manifest(folder)
    with pytest.raises(IntegrityError, match=r"model\.json: \('kind',\): Field required"):
        load_ranker(folder)


def test_a_model_that_is_not_fitted_neither_predicts_nor_saves(test_rows: pl.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(ShortlistError, match="the dlrm ranker is not fitted; call fit or load first"):
        new("dlrm").predict(test_rows)
    with pytest.raises(ShortlistError, match="not fitted"):
        new("popularity").save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_rows_without_a_feature_are_refused(table: DayTable, test_rows: pl.DataFrame, saved: Saved) -> None:
    with pytest.raises(DataError, match="1 of 5 features are missing from the rows: age"):
        load_ranker(saved("dlrm", table)).predict(test_rows.drop("age"))


def test_a_score_that_is_nan_is_refused(table: DayTable, test_rows: pl.DataFrame, saved: Saved) -> None:
    ranker = load_ranker(saved("dlrm", table))
    ranker._model.table.weight_RD.fill_(float("nan"))  # type: ignore[attr-defined]
    with pytest.raises(ShortlistError, match="the dlrm model gives NaN for 1500 of 1500 rows"):
        ranker.predict(test_rows)


def test_sure_scores_stay_strictly_inside_the_unit_interval(
    table: DayTable, test_rows: pl.DataFrame, saved: Saved
) -> None:
    ranker = load_ranker(saved("logistic", table))
    ranker.intercept = np.array([200.0], np.float32)  # type: ignore[attr-defined]
    assert ranker.predict(test_rows).max() < 1
    ranker.intercept = np.array([-200.0], np.float32)  # type: ignore[attr-defined]
    assert ranker.predict(test_rows).min() > 0
