from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import sparse

import models.logistic.ranker as logistic_ranker
from models.logistic.averaged_sgd import AveragedSGD
from models.logistic.ranker import LogisticRanker
from models.logistic.section import LogisticModel
from models.one_hot import EMPTY_LIST, OneHot, bin_edges, hash_ids
from models.popularity.ranker import PopularityRanker
from models.popularity.section import PopularityModel
from shortlist.contracts import DataError, Files
from shortlist.ranking.inputs import TableFeature
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable, DayTableWriter


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


def test_popularity_of_items_refuses_rows_without_an_item(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame
) -> None:
    ranker = PopularityRanker(PopularityModel())
    ranker.fit(table, runtime)
    with pytest.raises(DataError, match="the rows have no column 'item'; the popularity model needs it"):
        ranker.predict(test_rows.drop("item"))


def test_a_row_is_its_standard_floats_and_its_hashed_ids() -> None:
    features = (
        TableFeature(name="tags", kind="ids", size=9),
        TableFeature(name="age", kind="dense"),
        TableFeature(name="item", kind="id", size=9),
    )
    frame = pl.DataFrame(
        {
            "age": pl.Series([40, None], dtype=pl.Float32),
            "item": pl.Series([7, 8], dtype=pl.UInt32),
            "tags": pl.Series([[1, 2], []], dtype=pl.List(pl.UInt32)),
        }
    )
    one_hot = OneHot(features, np.array([30], np.float32), np.array([0.1], np.float32), buckets=1_000)
    dense = one_hot.encode(frame).toarray()
    item_7, item_8 = hash_ids(np.array([7, 8]), np.array([0]), 1_000) + 1
    tag_1, tag_2 = hash_ids(np.array([1, 2]), np.array([-1]), 1_000) + 1
    no_tag = hash_ids(np.array([EMPTY_LIST]), np.array([-1]), 1_000).item() + 1
    expected = np.zeros((2, 1_001), np.float32)
    expected[0, [0, item_7, tag_1, tag_2]] = [(40 - 30) * 0.1, 1, 0.5, 0.5]
    expected[1, [0, item_8, no_tag]] = [0, 1, 1]  # null is the mean
    np.testing.assert_allclose(dense, expected, rtol=1e-6)


def test_the_same_id_in_two_columns_gets_two_buckets() -> None:
    ids = np.arange(1_000)
    same = hash_ids(ids, np.array([0]), 2**18) == hash_ids(ids, np.array([1]), 2**18)
    assert same.sum() <= 1  # by chance 1 000 / 262 144


SMALL = {"features": ("*",), "bins": (0, 8), "epochs": 4}


def test_logistic_regression_chooses_penalty_bins_and_passes_by_the_validation_days(
    table: DayTable, runtime: Runtime
) -> None:
    searched = LogisticRanker(LogisticModel(**SMALL, l2=(1e-5, 1.0), refit=False))
    record = searched.fit(table, runtime)
    assert {line["l2"] for line in record.history} == {1e-5}  # a penalty of 1 leaves hardly a weight
    losses = [float(line["validation_log_loss"] or 0) for line in record.history]
    assert record.best_epoch == 1 + losses.index(min(losses))
    strict = LogisticRanker(LogisticModel(**SMALL, l2=(1.0,), refit=False)).fit(table, runtime)
    assert min(float(line["validation_log_loss"] or 0) for line in strict.history) > min(losses) + 0.01


def test_bins_and_penalty_are_chosen_on_sampled_rows_and_saved(
    table: DayTable, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([0.6, 0.5, 0.4, 0.45, 0.55, 0.52, 0.53])  # four settings, then three passes over all rows
    steps = []

    def validate(_: LogisticRanker, __: Any, encoded_rows: Any) -> dict[str, float | None]:
        steps.append(encoded_rows.step)
        return {"validation_log_loss": next(losses), "validation_auc": 0.6}

    monkeypatch.setattr(LogisticRanker, "_validate", validate)
    monkeypatch.setattr(logistic_ranker, "_CHOICE_ROWS", 500)
    section = LogisticModel(features=("age", "user_id"), bins=(0, 8), l2=(1e-5, 1e-4))
    record = LogisticRanker(section).fit(table, runtime)
    assert [(line["bins"], line["l2"]) for line in record.history] == [(8, 1e-5)] * 3
    assert record.best_epoch == 2
    assert min(steps[:4]) > 1 and steps[4:] == [1, 1, 1]


@pytest.mark.parametrize("l2", [1e-6, 3.0])  # the scale of the coefficients is reset again and again
def test_a_solver_has_the_mean_of_the_coefficients_after_all_steps(l2: float) -> None:
    random = np.random.default_rng(1)
    rows = sparse.random(400, 30, 0.2, "csr", np.float32, rng=random)
    labels, weights = random.integers(0, 2, 400), random.uniform(0.5, 2, 400).astype(np.float32)
    solver = AveragedSGD(30, 0.4, l2, seed=5)
    solver.learn(labels, rows, weights)
    solver.learn(labels, rows, None)
    orders = np.random.default_rng(5)
    steps = [(row, weights[row]) for row in orders.permutation(400)] + [(row, 1.0) for row in orders.permutation(400)]
    coefficients, intercept, sums = np.zeros(30), np.log(0.4 / 0.6), np.zeros(31)
    for number, (row, weight) in enumerate(steps, start=1):
        values = rows[[row]].toarray()[0]
        rate = 0.05 / number**0.25
        error = labels[row] - 1 / (1 + np.exp(-(values @ coefficients + intercept)))
        coefficients = coefficients * (1 - rate * l2) + rate * weight * error * values
        intercept += 0.01 * rate * weight * error
        sums += np.append(coefficients, intercept)
    mean_coefficients, mean_intercept = solver.mean_coefficients()
    np.testing.assert_allclose(np.append(mean_coefficients, mean_intercept), sums / 800, rtol=1e-4, atol=1e-7)


def test_logistic_regression_is_refitted_on_all_days_and_read_back(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, tmp_path: Path
) -> None:
    once, refitted = (LogisticRanker(LogisticModel(**SMALL, l2=(1e-5,), refit=refit)) for refit in (False, True))
    for ranker in (once, refitted):
        ranker.fit(table, runtime)
    validation = pl.concat([frame for _, frame in table.frames({table.days[-2].day})])
    assert once.held_out is None and refitted.held_out is not None
    assert np.allclose(refitted.held_out, once.predict(validation), atol=1e-6)  # before the refit
    assert not np.allclose(refitted.predict(test_rows), once.predict(test_rows), atol=1e-3)
    refitted.save(tmp_path / "model")
    assert np.array_equal(LogisticRanker.load(tmp_path / "model").predict(test_rows), refitted.predict(test_rows))


def with_an_unseen_id(table: DayTable, folder: Path) -> DayTable:
    """Return the table with ids from 1: id 0, of unknown and missing values, has no rows."""
    writer = DayTableWriter(folder, Files.TABLE, chunk_rows=1_000)
    for _, frame in table.frames():
        writer.append(frame.with_columns(pl.col("user_id", "item_id") + 1))
    columns = [
        {**column, "size": column["size"] + 1} if column["kind"] == "id" else column
        for column in table.notes["columns"]
    ]
    return writer.close({**table.notes, "columns": columns})


def test_ids_that_training_never_saw_score_like_the_average(table: DayTable, runtime: Runtime, tmp_path: Path) -> None:
    shifted = with_an_unseen_id(table, tmp_path / "shifted")
    ranker = LogisticRanker(LogisticModel(features=("*",), l2=(1e-5,)))
    ranker.fit(shifted, runtime)
    rows = pl.concat([frame for day, frame in shifted.frames() if day == shifted.days[-1].day])
    usual = _log_odds(ranker, rows)
    for column in ("user_id", "item_id"):
        shift = _log_odds(ranker, rows.with_columns(pl.lit(0, pl.UInt32).alias(column))) - usual
        assert abs(shift.mean()) < 0.05
        assert shift.std() > 0.3  # the column matters


def _log_odds(ranker: LogisticRanker, rows: pl.DataFrame) -> np.ndarray:
    scores = ranker.predict(rows)
    return np.asarray(np.log(scores / (1 - scores)))


def test_rows_that_do_not_fit_the_cache_are_encoded_in_every_epoch(
    table: DayTable, runtime: Runtime, test_rows: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = LogisticModel(**SMALL, l2=(1e-5,))
    scores = []
    for cache_bytes in (2**28, 0):
        monkeypatch.setattr("models.logistic.ranker._MAX_CACHED_BYTES", cache_bytes)
        ranker = LogisticRanker(section)
        ranker.fit(table, runtime)
        scores.append(ranker.predict(test_rows))
    assert np.array_equal(*scores)


def test_numbers_have_a_weight_per_bin_and_nulls_a_separate_bin() -> None:
    features = (TableFeature(name="age", kind="dense"),)
    ages = pl.DataFrame({"age": pl.Series([10, 20, 30, None], dtype=pl.Float32)})
    edges = bin_edges(ages["age"].to_numpy()[:, None], 3)
    rows = (
        OneHot(features, np.zeros(1, np.float32), np.zeros(1, np.float32), 1_000, edges).encode(ages).toarray()[:, 1:]
    )
    assert (rows.sum(axis=1) == 1).all()
    assert len({int(row.argmax()) for row in rows}) == 4


@pytest.mark.parametrize(
    ("declared", "message"),
    [({"l2": (0.0,)}, "penalties must be above 0"), ({"bins": (1,)}, r"0 \(none\) or 2 to 256 \(got 1\)")],
)
def test_penalties_and_bins_that_make_no_sense_are_refused(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LogisticModel(features=("*",), **declared)
