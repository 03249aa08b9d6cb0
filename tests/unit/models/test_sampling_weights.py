"""Rows of a logged sample have the weight of the rows they represent, in every kind of model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from shortlist.contracts import Columns, Files
from shortlist.ranking.inputs import LearningTable, features_matching, weights_of
from shortlist.ranking.registry import kind_of
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable, DayTableWriter
from shortlist.training.scores import score

SAMPLED_SHARE = 0.2
"""Share of the rows of users who click much that is logged."""
SETTINGS: dict[str, dict[str, Any]] = {
    "xgboost": {"rounds": 30, "max_depth": 3},
    "lightgbm": {"rounds": 30},
    "logistic": {"epochs": 10},
    "dlrm": {"epochs": 3, "embedding_dim": 4, "batch_size": 256, "bottom": [8], "top": [8]},
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, table: DayTable) -> dict[str, DayTable]:
    """The whole table; a sample in which users who click much are rare; and the same sample with its weights."""
    folder = tmp_path_factory.mktemp("sampled")
    rates = pl.concat([frame for _, frame in table.frames()]).group_by(Columns.USER).agg(pl.col(Columns.LABEL).mean())
    often = rates.sort(Columns.LABEL)[Columns.USER].tail(20)
    random = np.random.default_rng(5)
    writers = {name: DayTableWriter(folder / name, Files.TABLE, 1_000) for name in ("unweighted", "weighted")}
    for _, frame in table.frames():
        share = np.where(frame[Columns.USER].is_in(often.implode()).to_numpy(), SAMPLED_SHARE, 1.0)
        is_sampled = random.random(frame.height) < share
        weights = pl.Series(Columns.WEIGHT, (1 / share).astype(np.float32))
        writers["unweighted"].append(frame.filter(is_sampled))
        writers["weighted"].append(frame.with_columns(weights).filter(is_sampled))
    return {"whole": table, **{name: writer.close(table.notes) for name, writer in writers.items()}}


def mean_score(kind: str, table: DayTable, rows: pl.DataFrame, runtime: Runtime) -> float:
    """Train on features that say nothing of the user; return the mean score of some rows."""
    model_kind = kind_of(kind)
    fields = {name: value for name, value in SETTINGS[kind].items() if name in model_kind.section.model_fields}
    section = model_kind.section.model_validate({"kind": kind, "features": ["age"], **fields})
    ranker = model_kind.load("ranker")(section)
    ranker.fit(table, runtime)
    return float(ranker.predict(rows).mean())


@pytest.mark.long
@pytest.mark.parametrize("kind", SETTINGS)
def test_a_weighted_sample_trains_the_model_of_the_whole_log(
    kind: str, tables: dict[str, DayTable], test_rows: pl.DataFrame, runtime: Runtime
) -> None:
    whole, plain, weighted = (
        mean_score(kind, tables[name], test_rows, runtime) for name in ("whole", "unweighted", "weighted")
    )
    # Users who click much are missing; the logistic regression has not converged after so few rows.
    assert whole - plain > (0.01 if kind == "logistic" else 0.08)
    assert abs(whole - weighted) < (whole - plain) / 2


def test_popularity_counts_weights(tables: dict[str, DayTable], test_rows: pl.DataFrame, runtime: Runtime) -> None:
    def rates(name: str) -> float:
        model_kind = kind_of("popularity")
        ranker = model_kind.load("ranker")(model_kind.section(kind="popularity"))
        ranker.fit(tables[name], runtime)
        return float(ranker.predict(test_rows).mean())

    assert abs(rates("whole") - rates("weighted")) < 0.06 < rates("whole") - rates("unweighted")


def test_equal_weights_leave_the_table_unweighted(tables: dict[str, DayTable], tmp_path: Path) -> None:
    whole = tables["whole"]
    writer = DayTableWriter(tmp_path / "equal", Files.TABLE, 1_000)
    for _, frame in whole.frames():
        writer.append(frame.with_columns(pl.lit(4.0, pl.Float32).alias(Columns.WEIGHT)))
    equal = LearningTable(writer.close(whole.notes), features_matching(whole, ("age",)))
    assert not equal.is_weighted and weights_of(next(equal.frames("train"))) is None
    weighted = LearningTable(tables["weighted"], features_matching(whole, ("age",)))
    weights = np.concatenate([weights_of(frame) for frame in weighted.frames("train")])  # type: ignore[misc]
    assert weights.mean() == pytest.approx(1) and weights.max() / weights.min() == pytest.approx(1 / SAMPLED_SHARE)


def test_scores_carry_the_weights(tables: dict[str, DayTable], runtime: Runtime, tmp_path: Path) -> None:
    model_kind = kind_of("popularity")
    ranker = model_kind.load("ranker")(model_kind.section(kind="popularity"))
    ranker.fit(tables["weighted"], runtime)
    weights = pl.read_parquet(score(ranker, tables["weighted"], tmp_path / "scores"))[Columns.WEIGHT]
    assert set(weights.to_list()) == {1.0, 5.0}
