"""A position that only training knows: models learn its effect, and are served, scored and judged without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.stats import spearmanr

from shortlist.contracts import Columns, DataError, Files
from shortlist.data.world.generate import generate_log
from shortlist.evaluation.metrics.measure import measure
from shortlist.ranking.ranker import Ranker
from shortlist.ranking.registry import kind_of
from shortlist.spec.data import Data, GeneratedSource
from shortlist.spec.features import Features
from shortlist.spec.gates import Gates
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable, DayTableWriter
from shortlist.training.scores import score

ITEMS = 120
SOURCE = {
    "kind": "generated", "rows": 30_000, "users": 300, "items": ITEMS, "days": 5, "taste": 0.1,
    "position_bias": {"strength": 6.0},
}  # fmt: skip
POSITION = {"name": "position_training", "kind": "dense", "size": None, "width": None, "served": 1.0}
COLUMNS = [{"name": "item_id", "kind": "id", "size": ITEMS, "width": None}, POSITION]
SECTIONS: dict[str, dict[str, Any]] = {
    "logistic": {"kind": "logistic", "epochs": 4, "bins": (10,), "l2": (1e-5,)},
    "dlrm": {"kind": "dlrm", "epochs": 2, "embedding_dim": 8, "batch_size": 256, "calibration": "platt"},
}


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> DayTable:
    """A feature table of a world whose items were shown in the order of what an earlier ranker preferred."""
    folder, source = tmp_path_factory.mktemp("biased"), GeneratedSource.model_validate(SOURCE)
    generate_log(source, folder / "log")
    rows = pl.read_parquet(folder / "log" / "impressions" / "*.parquet").select(
        pl.col("is_click").cast(pl.Int8).alias(Columns.LABEL),
        pl.col("event_time").dt.date().alias(Columns.DAY),
        pl.col("impression_id").alias(Columns.IMPRESSION),
        pl.col("user_id").alias(Columns.USER),
        (pl.col("item_id") - pl.col("item_id").min()).cast(pl.UInt32),
        pl.col("position").cast(pl.Float32).alias("position_training"),
        "first_position_probability",
    )
    writer = DayTableWriter(folder / "table", Files.TABLE, chunk_rows=10_000)
    days = rows[Columns.DAY].unique().sort()
    for day in days:
        writer.append(rows.filter(pl.col(Columns.DAY) == day))
    named = [str(day) for day in days]
    split = {"warmup": [], "train": named[:3], "validation": named[3:4], "test": named[4:]}
    return writer.close({"columns": COLUMNS, "split": split})


def fitted(name: str, table: DayTable, *features: str) -> Ranker[Any]:
    section = SECTIONS[name] | {"features": features}
    kind = kind_of(section["kind"])
    ranker: Ranker[Any] = kind.load("ranker")(kind.section.model_validate(section))
    ranker.fit(table, Runtime(engine="cpu", seed=3))
    return ranker


def rows_to_test(table: DayTable) -> pl.DataFrame:
    return pl.concat([frame for day, frame in table.frames() if day == table.days[-1].day])


@pytest.mark.parametrize("name", SECTIONS)
def test_a_model_that_learns_positions_orders_items_better(biased: DayTable, name: str, tmp_path: Path) -> None:
    rows = rows_to_test(biased)
    truth = rows.group_by("item_id").agg(pl.col("first_position_probability").mean()).sort("item_id")
    orders = {}
    for features in (("item_id",), ("item_id", "position_training")):
        ranker = fitted(name, biased, *features)
        scored = rows.with_columns(pl.Series("score", ranker.predict(rows)))
        of_items = scored.group_by("item_id").agg(pl.col("score").mean()).sort("item_id")
        orders[len(features)] = float(spearmanr(of_items["score"], truth["first_position_probability"]).statistic)
    assert orders[2] > orders[1] + 0.05, orders


def test_the_page_learns_what_the_position_does_to_scores(biased: DayTable, tmp_path: Path) -> None:
    ranker = fitted("logistic", biased, "item_id", "position_training")
    scores = score(ranker, biased, tmp_path / "scores")
    measures = measure("logistic", "candidate", tmp_path / "scores", Gates(bootstrap_rounds=100), 1).measures
    (effect,) = measures.training_only
    mean_scores = dict(effect.mean_scores)
    assert (effect.feature, effect.served, sorted(mean_scores)) == (
        "position_training",
        1.0,
        [float(n) for n in range(1, 11)],
    )
    assert mean_scores[1.0] > mean_scores[5.0] > mean_scores[10.0]
    assert mean_scores[1.0] == pytest.approx(
        pl.read_parquet(scores).filter(split="test")["score"].to_numpy().mean(), abs=1e-6
    )
    assert measures.auc is not None and effect.auc_as_served == pytest.approx(measures.auc.value, abs=1e-6)
    assert effect.auc_as_shown is not None and effect.auc_as_shown > measures.auc.value + 0.01
    assert json.loads((tmp_path / "scores" / Files.TRAINING_ONLY).read_text())["effects"]


def test_scores_and_calibration_never_depend_on_the_real_position(biased: DayTable, tmp_path: Path) -> None:
    ranker = fitted("dlrm", biased, "item_id", "position_training")
    rows = rows_to_test(biased)
    elsewhere = rows.with_columns(pl.lit(7.0, pl.Float32).alias("position_training"))
    np.testing.assert_array_equal(ranker.predict(rows), ranker.predict(elsewhere))
    np.testing.assert_array_equal(ranker.log_odds(rows), ranker.log_odds(elsewhere))
    assert np.abs(ranker.predict_with_logged_values(rows) - ranker.predict(rows)).max() > 0.05
    # Calibrated on what is served: the mean score is the rate of the label, at whatever positions items were shown.
    validation = pl.concat([frame for day, frame in biased.frames() if day == biased.days[-2].day])
    assert ranker.predict(validation).mean() == pytest.approx(validation[Columns.LABEL].to_numpy().mean(), abs=1e-3)
    assert ranker.predict_with_logged_values(validation).mean() < ranker.predict(validation).mean() - 0.05


def declared(**position: Any) -> Data:
    columns = [
        {"name": "item_id", "type": "integer"}, {"name": "click", "type": "integer"},
        {"name": "where", "type": "string", "known": "after"},
        {"name": "position", "type": "integer", "known": "after", **position},
    ]  # fmt: skip
    clock = {"kind": "column", "column": "time", "unit": "s"}
    return Data.model_validate({"source": {"kind": "files"}, "columns": columns, "label": "click", "clock": clock})


@pytest.mark.parametrize(
    ("feature", "position", "message"),
    [
        (
            {"each": "position", "serve": 1},
            {"known": "before"},
            r"'position' is known before the row",
        ),
        ({"each": "where", "serve": 1}, {}, r"'where' is of type string; wanted integer or number"),
        ({"each": "click", "serve": 1}, {}, r"'click' is the label or no column of the log"),
        ({"each": "position", "serve": 1e300}, {}, r"less than or equal to 1000000000"),
        ({"each": "positions", "serve": 1}, {}, r"'positions' is not a declared column; did you mean 'position'\?"),
    ],
)
def test_a_column_that_cannot_be_fixed_is_refused(
    feature: dict[str, Any], position: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, DataError), match=message):
        features = Features.model_validate({"columns": [{"kind": "training_only", **feature}]})
        for column in features.columns:
            column.check(declared(**position))
