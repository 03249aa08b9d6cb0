"""Rows weighted by how they were shown, with weights that are checked by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from shortlist.contracts import Columns, DataError, Files
from shortlist.ranking.inputs import LearningTable, features_matching, weights_of
from shortlist.ranking.registry import kind_of
from shortlist.ranking.row_weighting import RowWeighting
from shortlist.spec.data import Data
from shortlist.spec.models import RowWeights
from shortlist.spec.runtime import Runtime
from shortlist.storage.tables import DayTable, DayTableWriter
from shortlist.training.distributed.job import DistributedJob

SHOWN_SHARE = 0.2
"""Probability with which the old policy shows an item of the upper half."""
SETTINGS: dict[str, dict[str, Any]] = {
    "xgboost": {"rounds": 30, "max_depth": 3},
    "lightgbm": {"rounds": 30},
    "catboost": {"rounds": 30, "depth": 3},
    "logistic": {"epochs": 10},
    "dlrm": {"epochs": 3, "embedding_dim": 4, "batch_size": 256, "bottom": [8], "top": [8]},
}
Change = Callable[[pl.DataFrame], pl.DataFrame]


def rewrite(table: DayTable, folder: Path, change: Change) -> DayTable:
    writer = DayTableWriter(folder, Files.TABLE, 1_000)
    for _, frame in table.frames():
        writer.append(change(frame))
    return writer.close(table.notes)


def with_placement(propensities: list[float | None], places: list[int | None]) -> Change:
    """Return a change that repeats the values over the rows of a file."""

    def change(frame: pl.DataFrame) -> pl.DataFrame:
        repeats = frame.height // len(propensities) + 1
        return frame.with_columns(
            pl.Series(Columns.PROPENSITY, (propensities * repeats)[: frame.height], pl.Float32),
            pl.Series(Columns.POSITION, (places * repeats)[: frame.height], pl.Int32),
        )

    return change


def learn(table: DayTable, **weights: Any) -> tuple[LearningTable, RowWeighting]:
    learning = LearningTable(table, features_matching(table, ("age",))).weighted(RowWeights(**weights))
    assert learning.weighting is not None
    return learning, learning.weighting


@pytest.fixture
def placed(table: DayTable, tmp_path: Path) -> DayTable:
    return rewrite(table, tmp_path / "placed", with_placement([0.5, 0.5, 0.125, None], [1, 1, 2, None]))


def test_rows_are_divided_by_their_propensity(placed: DayTable) -> None:
    learning, weighting = learn(placed, propensity=True)
    frame = next(learning.frames("train"))
    assert Columns.PROPENSITY not in frame.columns
    # 1 / propensity is 2, 2 and 8, on average 4; a row without one weighs as much as that average.
    np.testing.assert_allclose(weights_of(frame)[:4], [0.5, 0.5, 2.0, 1.0], rtol=1e-6)  # type: ignore[index]
    assert (weighting.largest, weighting.effective_rows) == (
        pytest.approx(2.0),
        pytest.approx(learning.rows("train") * 4**2 / (4 * (0.5**2 + 0.5**2 + 2**2 + 1))),
    )


def test_rows_are_divided_by_the_share_of_their_place(placed: DayTable) -> None:
    by_place, weighting = learn(placed, position=True)
    # Two of three rows are at place 1: 1.5, 1.5 and 3, on average 2.
    assert weighting.place_shares == {1: pytest.approx(2 / 3), 2: pytest.approx(1 / 3)}
    np.testing.assert_allclose(weights_of(next(by_place.frames("train")))[:4], [0.75, 0.75, 1.5, 1.0], rtol=1e-6)  # type: ignore[index]
    both, _ = learn(placed, propensity=True, position=True)
    # 3, 3 and 24, on average 10.
    np.testing.assert_allclose(weights_of(next(both.frames("train")))[:4], [0.3, 0.3, 2.4, 1.0], rtol=1e-6)  # type: ignore[index]


def test_large_weights_are_cut(placed: DayTable) -> None:
    learning, weighting = learn(placed, propensity=True, max_weight=1.5)
    # 0.5, 0.5, 2 -> 1.5 and 1: the mean is then 3.5 / 4.
    np.testing.assert_allclose(weights_of(next(learning.frames("train")))[:4], np.array([0.5, 0.5, 1.5, 1]) * 4 / 3.5)  # type: ignore[index]
    assert weighting.largest == pytest.approx(1.5 * 4 / 3.5)


def test_weights_multiply_those_of_a_sampled_log(placed: DayTable, tmp_path: Path) -> None:
    sampled = rewrite(
        placed,
        tmp_path / "sampled",
        lambda frame: frame.with_columns(
            pl.Series(Columns.WEIGHT, np.resize([1, 3, 1, 3], frame.height).astype(np.float32))
        ),
    )
    learning, _ = learn(sampled, propensity=True)
    # 0.5, 1.5, 2 and 3: on average 7 / 4.
    np.testing.assert_allclose(weights_of(next(learning.frames("train")))[:4], np.array([0.5, 1.5, 2, 3]) * 4 / 7)  # type: ignore[index]


def test_rows_that_do_not_say_how_they_were_shown_are_refused(
    table: DayTable, placed: DayTable, tmp_path: Path
) -> None:
    silent = rewrite(table, tmp_path / "silent", with_placement([None], [None]))
    with pytest.raises(DataError, match=r"no row of the training days has shown_propensity.*Leave weights out"):
        learn(silent, propensity=True)
    with pytest.raises(DataError, match=r"has no column 'shown_position'; write the feature table again"):
        learn(table, position=True)


def test_every_process_has_the_weighting_by_all_rows(placed: DayTable, runtime: Runtime) -> None:
    section = kind_of("dlrm").section.model_validate(
        {"kind": "dlrm", "features": ["age"], "weights": {"propensity": True}}
    )
    job = DistributedJob.plan("dlrm", section, placed, runtime, None, 2)
    assert section.weights is not None
    by_worker = LearningTable(job.day_table, features_matching(placed, ("age",))).weighted(section.weights)
    assert by_worker.weighting == learn(placed, propensity=True)[1]


@pytest.mark.parametrize("kind", SETTINGS)
def test_weights_by_propensity_undo_what_a_policy_shows(
    kind: str, table: DayTable, test_rows: pl.DataFrame, runtime: Runtime, tmp_path: Path
) -> None:
    """The old policy seldom showed users who click much: without weights, a model expects too little."""
    rates = pl.concat([frame for _, frame in table.frames()]).group_by(Columns.USER).agg(pl.col(Columns.LABEL).mean())
    often = rates.sort(Columns.LABEL)[Columns.USER].tail(20)
    random = np.random.default_rng(5)

    def show(frame: pl.DataFrame) -> pl.DataFrame:
        share = np.where(frame[Columns.USER].is_in(often.implode()).to_numpy(), SHOWN_SHARE, 1.0)
        shown = frame.with_columns(pl.Series(Columns.PROPENSITY, share, pl.Float32))
        return shown.filter(random.random(frame.height) < share)

    shown = rewrite(table, tmp_path / "shown", show)

    def mean_score(of: DayTable, weights: dict[str, Any] | None) -> float:
        model_kind = kind_of(kind)
        fields = {name: value for name, value in SETTINGS[kind].items() if name in model_kind.section.model_fields}
        section = model_kind.section.model_validate({"kind": kind, "features": ["age"], "weights": weights, **fields})
        ranker = model_kind.load("ranker")(section)
        record = ranker.fit(of, runtime)
        assert (record.weighting is not None) == (weights is not None)
        return float(ranker.predict(test_rows).mean())

    whole, plain, weighted = mean_score(table, None), mean_score(shown, None), mean_score(shown, {"propensity": True})
    # The logistic regression has not converged after so few rows.
    assert whole - plain > (0.01 if kind == "logistic" else 0.08)
    assert abs(whole - weighted) < (whole - plain) / 2


LOG: dict[str, Any] = {
    "source": {"kind": "files", "path": "log.parquet"}, "label": "click", "user": "user_id", "item": "item_id",
    "clock": {"kind": "column", "column": "time", "format": "%Y-%m-%d"},
    "columns": [{"name": "user_id", "type": "integer"}, {"name": "item_id", "type": "integer"},
                {"name": "click", "type": "integer", "known": "after"},
                {"name": "place", "type": "integer", "known": "after"}],
    "position": "place",
}  # fmt: skip


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"kind": "xgboost", "features": ["*"], "weights": {"propensity": True}},
            r"models\.m\.weights\.propensity: .*declare data\.",
        ),
        (
            {
                "kind": "xgboost",
                "features": ["*"],
                "weights": {"position": True},
                "objective": "pairwise",
                "calibration": "platt",
            },
            r"models\.m\.weights: pairwise compares the rows of a list",
        ),
        ({"kind": "blend", "models": ["a", "b"], "weights": {"position": True}}, "declare them for its members"),
        ({"kind": "xgboost", "features": ["*"], "weights": {"position": True}}, None),
    ],
)
def test_weights_that_a_model_cannot_have_are_refused(section: dict[str, Any], message: str | None) -> None:
    declared = kind_of(section["kind"]).section.model_validate(section)
    if message is None:
        declared.check_data("m", Data.model_validate(LOG))
        return
    with pytest.raises(ValueError, match=message):
        declared.check_data("m", Data.model_validate(LOG))


def test_weights_by_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="neither propensity nor position is true; declare one of them"):
        RowWeights(max_weight=5)
