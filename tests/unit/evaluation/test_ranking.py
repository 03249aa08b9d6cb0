"""AUC within users and nDCG within lists, against scikit-learn and by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import ndcg_score, roc_auc_score

from shortlist.evaluation.metrics.intervals import bootstrap, bootstrap_differences, resample
from shortlist.evaluation.metrics.measure import measure
from shortlist.evaluation.metrics.ranking import auc_per_group, gauc, mean_ndcg, ndcg_per_group
from shortlist.evaluation.metrics.scores import ScoredRows, read_scores
from shortlist.spec.gates import Gates

Frame = Callable[..., pl.DataFrame]
Write = Callable[[str, pl.DataFrame], Path]
OPTIONS = {"confidence": 0.95, "rounds": 100, "seed": 5}


def test_grouped_auc_and_ndcg_equal_scikit_learn_with_ties() -> None:
    random = np.random.default_rng(0)
    labels, scores = (random.random(2_000) < 0.3).astype(float), random.integers(0, 6, 2_000) / 6
    groups = random.integers(-1, 120, 2_000)  # -1: rows of no group
    mixed = [group for group in range(120) if 0 < labels[groups == group].sum() < (groups == group).sum()]
    aucs = [roc_auc_score(labels[groups == group], scores[groups == group]) for group in mixed]
    gains = [ndcg_score([labels[groups == group]], [scores[groups == group]], k=10) for group in mixed]
    by_auc, by_gain = (measured(labels, scores, groups) for measured in (auc_per_group, ndcg_per_group))
    assert by_auc.groups.tolist() == by_gain.groups.tolist() == mixed
    assert by_auc.values == pytest.approx(aucs)
    assert by_gain.values == pytest.approx(gains)
    assert by_auc.one_class == len(set(groups[groups >= 0])) - len(mixed)


def test_gauc_weights_users_by_rows_and_leaves_out_one_class_users() -> None:
    labels, scores = np.array([1.0, 0, 1, 0, 0, 0, 1]), np.array([0.9, 0.1, 0.1, 0.5, 0.6, 0.2, 0.3])
    users = np.array([0, 0, 1, 1, 1, 2, 2])
    # User 0: 1 of 1 pairs, 2 rows. User 1: 0 of 2, 3 rows. User 2: 1 of 1, 2 rows.
    assert gauc(labels, scores, users) == pytest.approx((2 * 1 + 3 * 0 + 2 * 1) / 7)
    assert gauc(np.ones(7), scores, users) is None
    assert mean_ndcg(np.zeros(7), scores, users) is None


def test_ranking_metrics_of_a_constant_score_do_not_depend_on_row_order() -> None:
    labels, users = np.array([1.0, 0, 0, 0, 0, 1]), np.array([0, 0, 0, 1, 1, 1])
    assert gauc(labels, np.full(6, 0.3), users) == 0.5
    assert mean_ndcg(labels, np.full(6, 0.3), users) == mean_ndcg(labels[::-1].copy(), np.full(6, 0.3), users)


def test_a_score_constant_per_user_has_auc_above_and_gauc_of_one_half(frame: Frame, write: Write) -> None:
    """The user's own click rate as the score."""
    random = np.random.default_rng(2)
    rate = random.beta(1, 3, 300)
    rows = frame().with_columns(rate=pl.Series(rate).gather(frame()["user"]))
    rows = rows.with_columns(
        label=(pl.Series(random.random(3_000)) < pl.col("rate")).cast(pl.Int8), score=pl.col("rate")
    )
    measures = measure("users", "candidate", write("m", rows), Gates(bootstrap_rounds=60), 1).measures
    assert measures.auc is not None and measures.auc.low > 0.65
    assert measures.gauc is not None and measures.gauc.value == 0.5
    assert (measures.ranked_users or 0) + (measures.one_class_users or 0) == rows["user"].n_unique()


def test_rows_without_a_user_and_logs_without_users_have_no_gauc(frame: Frame, write: Write) -> None:
    limits = Gates(bootstrap_rounds=60)
    userless_measures = measure("m", "candidate", write("without", frame().drop("user")), limits, 1).measures
    assert (userless_measures.gauc, userless_measures.ndcg_at_10, userless_measures.ranked_users) == (None, None, None)
    frame_of_few_users = frame().with_columns(user=pl.when(pl.col("user") < 20).then("user"))
    rows = read_scores(write("nobody", frame_of_few_users) / "scores.parquet", "test")
    assert rows.users is not None and rows.users.max() < 21
    named = frame_of_few_users.drop_nulls("user")
    expected = gauc(*(named[name].cast(pl.Float64).to_numpy() for name in ("label", "score")), named["user"].to_numpy())
    assert resample(rows, 50, 1)["gauc"].value == pytest.approx(expected)


def test_each_day_of_a_user_is_a_list(frame: Frame, write: Write) -> None:
    days = frame().with_columns(day=pl.col("impression_id") % 2)
    whole, split = (read_scores(write(name, rows) / "scores.parquet", "test") for name, rows in
                    (("whole", frame()), ("split", days)))  # fmt: skip
    assert whole.lists is not None and split.lists is not None
    assert np.unique(split.lists).size > 1.8 * np.unique(whole.lists).size
    requests = days.with_columns(request_id=pl.col("impression_id") // 7)
    by_request = read_scores(write("requests", requests) / "scores.parquet", "test")
    assert by_request.lists is not None and np.unique(by_request.lists).size == -(-3_000 // 7)


def test_declared_slates_are_the_lists(frame: Frame, write: Write) -> None:
    rows = frame().with_columns(day=pl.col("impression_id") % 2, slate_number=pl.col("impression_id") // 6)
    scored_rows = read_scores(write("slates", rows) / "scores.parquet", "test")
    assert scored_rows.lists is not None
    assert np.unique(scored_rows.lists).size == 2 * 3_000 // 6  # numbers are unique within a day
    nameless = read_scores(write("nameless", rows.drop("user")) / "scores.parquet", "test")
    assert nameless.users is None
    assert np.array_equal(nameless.lists, scored_rows.lists)


def test_too_few_users_of_both_classes_give_no_interval() -> None:
    labels = np.tile([1.0, 0.0], 50)
    users = np.where(np.arange(100) < 16, np.arange(100) // 2, 100 + np.arange(100))  # 8 users of both classes
    rows = ScoredRows(
        pl.DataFrame({"impression_id": np.arange(100), "user": users}), labels, np.linspace(0, 1, 100),
        np.unique(users, return_inverse=True)[1],
    )  # fmt: skip
    assert set(bootstrap(rows, **OPTIONS)) == {"auc", "log_loss"}


def test_paired_gauc_difference_detects_a_better_order_within_users(frame: Frame, write: Write) -> None:
    noise = np.random.default_rng(4).normal(0, 0.07, 3_000)
    worse = frame().with_columns(score=(pl.col("score") + noise).clip(0, 1))
    good, bad = (read_scores(write(name, model_frame) / "scores.parquet", "test") for name, model_frame in
                 (("good", frame()), ("bad", worse)))  # fmt: skip
    gaps = bootstrap_differences(good, bad, **OPTIONS)
    alone = {name: bootstrap(rows, **OPTIONS)["gauc"] for name, rows in (("good", good), ("bad", bad))}
    assert gaps["gauc"].low > 0
    assert gaps["gauc"].value == pytest.approx(alone["good"].value - alone["bad"].value)
    assert alone["good"].low < alone["bad"].value  # a bound against a point would have told nothing
