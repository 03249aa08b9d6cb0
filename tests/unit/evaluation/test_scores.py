from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from shortlist.evaluation.metrics.pointwise import UnmeasurableError
from shortlist.evaluation.metrics.scores import check_same_rows, read_scores

SIX = pl.DataFrame(
    {
        "impression_id": [5, 3, 1, 2, 4, 9],
        "label": [1, 0, 0, 1, 1, 1],
        "user": ["b", "a", "b", None, None, "a"],
        "split": ["test"] * 5 + ["validation"],
        "score": [0.5, 0.3, 0.1, 0.2, 0.4, 0.9],
    }
)
Write = Callable[[str, pl.DataFrame], Path]


def test_rows_of_the_split_come_in_order_of_impressions(write: Write) -> None:
    rows = read_scores(write("m", SIX) / "scores.parquet", "test")
    assert rows.frame["impression_id"].to_list() == [1, 2, 3, 4, 5]
    assert rows.scores.tolist() == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert rows.labels.tolist() == [0, 1, 0, 1, 1]


def test_rows_of_a_user_and_rows_without_user_each_form_a_cluster(write: Write) -> None:
    b1, none2, a3, none4, b5 = read_scores(write("m", SIX) / "scores.parquet", "test").clusters
    assert b1 == b5
    assert none2 == none4
    assert len({b1, none2, a3}) == 3


def test_without_users_every_row_is_its_own_cluster(write: Write) -> None:
    rows = read_scores(write("m", SIX.drop("user")) / "scores.parquet", "test")
    assert sorted(rows.clusters) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (SIX.drop("score"), "no column 'score'"),
        (SIX.filter(pl.col("split") == "validation"), "no test rows"),
        (SIX.head(0), "no test rows"),
        (pl.concat([SIX, SIX]), "scores an impression twice"),
        (SIX.with_columns(score=pl.lit(None, pl.Float64)), "5 of 5 scores are missing"),
        (
            SIX.with_columns(score=pl.when(pl.col("impression_id") == 3).then(float("nan")).otherwise("score")),
            "1 of 5",
        ),
        (SIX.with_columns(score=pl.col("score") * 10), "not between 0 and 1"),
        (SIX.with_columns(label=pl.lit(None, pl.Int8)), "without a label"),
        (SIX.with_columns(label=pl.lit(3)), "labels other than 0 and 1"),
    ],
)
def test_scores_that_mean_nothing_are_refused(write: Write, broken: pl.DataFrame, message: str) -> None:
    with pytest.raises(UnmeasurableError, match=message):
        read_scores(write("m", broken) / "scores.parquet", "test")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnmeasurableError, match=r"scores\.parquet is missing; the model was not scored"):
        read_scores(tmp_path / "scores.parquet", "test")


def test_models_scored_on_other_rows_are_not_compared(write: Write) -> None:
    scored_rows = read_scores(write("a", SIX) / "scores.parquet", "test")
    shorter_rows = read_scores(write("b", SIX.filter(pl.col("impression_id") != 4)) / "scores.parquet", "test")
    relabelled = read_scores(write("c", SIX.with_columns(label=1 - pl.col("label"))) / "scores.parquet", "test")
    with pytest.raises(UnmeasurableError, match="5 and 4 impressions, 4 in common"):
        check_same_rows(scored_rows, shorter_rows)
    with pytest.raises(UnmeasurableError, match="different labels"):
        check_same_rows(scored_rows, relabelled)


def test_filtered_rows_renumber_their_users(write: Write) -> None:
    part = read_scores(write("m", SIX) / "scores.parquet", "test").filter_rows(
        np.array([True, False, False, False, True])
    )
    assert part.frame["user"].to_list() == ["b", "b"]
    assert part.clusters.tolist() == [0, 0]
