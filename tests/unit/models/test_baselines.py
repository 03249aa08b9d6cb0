from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from models.inputs import FeatureColumn
from models.logistic.ranker import LogisticRanker
from models.logistic.section import LogisticModel
from models.one_hot import OneHot, bucket_of
from models.popularity.ranker import PopularityRanker
from models.popularity.section import PopularityModel
from shortlist.contracts import DataError
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable


def without_items(table: DayTable, folder: Path) -> DayTable:
    for path in table.paths():
        target = folder / path.relative_to(table.folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        pl.read_parquet(path, hive_partitioning=False).drop("item").write_parquet(target)
    return table.model_copy(update={"folder": folder})


def test_popularity_is_the_smoothed_click_rate_of_the_training_days(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame
) -> None:
    ranker = PopularityRanker(PopularityModel())
    rate = ranker.fit(table, runtime).base_rate
    train = table.scan({table.days[1].day, table.days[2].day}).filter(pl.col("item") == "item-3").collect()
    expected = (int(train["label"].sum()) + 20 * rate) / (train.height + 20)
    rows = test_rows.head(2).with_columns(item=pl.Series(["item-3", "unseen"]))
    assert ranker.predict(rows).tolist() == pytest.approx([expected, rate])


def test_popularity_without_items_is_the_overall_rate(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, tmp_path: Path
) -> None:
    ranker = PopularityRanker(PopularityModel())
    rate = ranker.fit(without_items(table, tmp_path / "table"), runtime).base_rate
    ranker.save(tmp_path / "model")
    loaded = PopularityRanker.load(tmp_path / "model")
    assert loaded.predict(test_rows.drop("item").head(2)).tolist() == pytest.approx([rate, rate])


def test_popularity_of_items_refuses_rows_without(table: DayTable, runtime: Runtime, test_rows: pl.DataFrame) -> None:
    ranker = PopularityRanker(PopularityModel())
    ranker.fit(table, runtime)
    with pytest.raises(DataError, match="the rows have no column 'item'; the popularity model needs it"):
        ranker.predict(test_rows.drop("item"))


def test_a_row_is_its_standard_floats_and_its_hashed_ids() -> None:
    features = (
        FeatureColumn(name="tags", kind="ids", size=9),
        FeatureColumn(name="age", kind="dense"),
        FeatureColumn(name="item", kind="id", size=9),
    )
    frame = pl.DataFrame(
        {
            "age": pl.Series([40, None], dtype=pl.Float32),
            "item": pl.Series([7, 8], dtype=pl.UInt32),
            "tags": pl.Series([[1, 2], []], dtype=pl.List(pl.UInt32)),
        }
    )
    one_hot = OneHot(features, np.array([30], np.float32), np.array([0.1], np.float32), buckets=1_000)
    dense = one_hot.rows(frame).toarray()
    item_7, item_8 = bucket_of(np.array([7, 8]), np.array([0]), 1_000) + 1
    tag_1, tag_2 = bucket_of(np.array([1, 2]), np.array([-1]), 1_000) + 1
    expected = np.zeros((2, 1_001), np.float32)
    expected[0, [0, item_7, tag_1, tag_2]] = [(40 - 30) * 0.1, 1, 0.5, 0.5]
    expected[1, [0, item_8]] = [0, 1]  # null is the mean
    np.testing.assert_allclose(dense, expected, rtol=1e-6)


def test_the_same_id_in_two_columns_gets_two_buckets() -> None:
    ids = np.arange(1_000)
    same = bucket_of(ids, np.array([0]), 2**18) == bucket_of(ids, np.array([1]), 2**18)
    assert same.sum() <= 1  # by chance 1 000 / 262 144


def test_logistic_regression_keeps_the_best_epoch(
    table: DayTable, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([0.6, 0.5, 0.55])
    monkeypatch.setattr("models.logistic.ranker.quality", lambda *_: {"validation_log_loss": next(losses)})
    ranker = LogisticRanker(LogisticModel(features=("*",)))
    after_epoch: list[np.ndarray] = []
    record = ranker.fit(table, runtime, on_epoch=lambda line: after_epoch.append(ranker._coefficients))
    assert (record.best_epoch, record.epochs) == (2, 3)
    assert np.array_equal(ranker._coefficients, after_epoch[1])
    assert not np.array_equal(ranker._coefficients, after_epoch[2])
