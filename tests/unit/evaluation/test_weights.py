"""A weighted sample of a log gives the metrics of the whole log."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import log_loss as log_loss_of_sklearn
from sklearn.metrics import roc_auc_score

from shortlist.contracts import Columns
from shortlist.evaluation.metrics.intervals import SortedScores, bootstrap
from shortlist.evaluation.metrics.measure import measure_rows
from shortlist.evaluation.metrics.pointwise import auc, log_loss
from shortlist.evaluation.metrics.ranking import auc_per_group
from shortlist.evaluation.metrics.scores import ScoredRows
from shortlist.spec.gates import Gates

USERS, ROWS = 300, 60


def log() -> tuple[pl.DataFrame, np.ndarray, np.ndarray]:
    """Users with odd numbers click more, and their scores are less informative."""
    random = np.random.default_rng(7)
    user = np.repeat(np.arange(USERS), ROWS)
    odd = user % 2 == 1
    chance = np.where(odd, 0.5, random.beta(0.5, 2.0, user.size))
    labels = (random.random(user.size) < chance).astype(float)
    scores = np.clip(np.where(odd, random.random(user.size), chance), 0.01, 0.99)
    frame = pl.DataFrame({Columns.IMPRESSION: np.arange(user.size), Columns.USER: user, "request_id": user})
    return frame, labels, scores


def rows(frame: pl.DataFrame, labels: np.ndarray, scores: np.ndarray) -> ScoredRows:
    users = np.unique(frame[Columns.USER].to_numpy(), return_inverse=True)[1]
    return ScoredRows(frame.with_columns(pl.Series(Columns.LABEL, labels)), labels, scores, users)


def sampled(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows are sampled, and the weights of all rows: half of the rows of odd users."""
    odd = log()[0][Columns.USER].to_numpy() % 2 == 1
    share = np.where(odd, 0.5, 1.0)
    return np.random.default_rng(seed).random(share.size) < share, 1 / share


def test_a_weighted_sample_has_the_metrics_of_the_whole_log() -> None:
    frame, labels, scores = log()
    is_sampled, weights = sampled(1)
    whole = bootstrap(rows(frame, labels, scores), 0.95, 200, seed=1)
    sample = frame.with_columns(pl.Series(Columns.WEIGHT, weights)).filter(is_sampled)
    weighted = bootstrap(rows(sample, labels[is_sampled], scores[is_sampled]), 0.95, 200, seed=1)
    plain = bootstrap(rows(frame.filter(is_sampled), labels[is_sampled], scores[is_sampled]), 0.95, 200, seed=1)
    assert set(whole) == {"auc", "log_loss", "gauc", "ndcg_at_10"}
    for metric in ("auc", "log_loss", "gauc"):
        interval = whole[metric]  # type: ignore[index]
        assert interval.low < weighted[metric].value < interval.high, metric  # type: ignore[index]
        assert not interval.low < plain[metric].value < interval.high, metric  # type: ignore[index]
    measures = [
        measure_rows("m", "candidate", scored_rows, Gates(), 1).measures.label_rate
        for scored_rows in (rows(frame, labels, scores), rows(sample, labels[is_sampled], scores[is_sampled]))
    ]
    assert measures[1] == pytest.approx(measures[0], abs=0.01)
    assert labels[is_sampled].mean() < measures[0] - 0.03


def test_weights_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(3)
    labels, scores = random.integers(0, 2, 500).astype(float), random.integers(1, 9, 500) / 10  # ties
    weights = random.integers(1, 5, 500).astype(float)
    assert auc(labels, scores, weights) == pytest.approx(roc_auc_score(labels, scores, sample_weight=weights))
    sklearn_loss = log_loss_of_sklearn(labels, scores, sample_weight=weights)
    assert log_loss(labels, scores, weights) == pytest.approx(sklearn_loss)
    users = random.integers(-1, 4, 500)
    auc_by_user = auc_per_group(labels, scores, users, weights)
    for user, rows_, value in zip(auc_by_user.groups, auc_by_user.rows, auc_by_user.values, strict=True):
        is_user_row = users == user
        assert value == pytest.approx(
            roc_auc_score(labels[is_user_row], scores[is_user_row], sample_weight=weights[is_user_row])
        )
        assert rows_ == weights[is_user_row].sum()
    frame = pl.DataFrame({Columns.USER: users, Columns.WEIGHT: weights})
    whole = SortedScores(ScoredRows(frame, labels, scores, np.zeros(500, np.intp)))
    assert whole.auc(np.ones(1, np.uint8)) == pytest.approx(auc(labels, scores, weights))


def test_a_row_of_weight_two_counts_as_two_rows() -> None:
    random = np.random.default_rng(4)
    labels, scores, users = random.integers(0, 2, 200).astype(float), random.random(200), random.integers(0, 9, 200)
    weights = random.integers(1, 4, 200)
    twice = np.repeat(np.arange(200), weights)
    assert auc(labels, scores, weights.astype(float)) == pytest.approx(auc(labels[twice], scores[twice]))
    weighted = auc_per_group(labels, scores, users, weights.astype(float))
    repeated = auc_per_group(labels[twice], scores[twice], users[twice])
    assert weighted.values == pytest.approx(repeated.values) and weighted.rows.tolist() == repeated.rows.tolist()


def test_equal_weights_are_none() -> None:
    frame, labels, scores = log()
    assert rows(frame.with_columns(pl.lit(4.0).alias(Columns.WEIGHT)), labels, scores).weights is None
