from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from monitoring.drift.domain_classifier import clustered_auc
from monitoring.windows.sampling import ClusteredCounts, NullDistribution, assign_clusters


def counted(table: np.ndarray) -> ClusteredCounts:
    """Return clustered counts from a table of shape (clusters, bins)."""
    clusters, bins = np.nonzero(table)
    counts = table[clusters, bins]
    return ClusteredCounts.of(np.repeat(clusters, counts), np.repeat(bins, counts), table.shape[1])


def test_rows_are_clustered_by_user_or_else_by_request() -> None:
    rows = pl.DataFrame({"user": ["a", "a", None, None, None], "request_id": ["1", "2", "3", "3", None]})
    assert [int(assign_clusters(rows)[row]) == int(assign_clusters(rows)[0]) for row in range(5)] == [
        True,
        True,
    ] + 3 * [False]
    assert assign_clusters(rows)[2] == assign_clusters(rows)[3]
    assert np.unique(assign_clusters(rows)).tolist() == [0, 1, 2]
    assert np.unique(assign_clusters(pl.DataFrame({"price": [1.0, 1.0]}))).size == 2


@pytest.mark.parametrize("alike", [1, 2, 20])
def test_equal_rows_count_as_one_independent_row(alike: int) -> None:
    bins = np.random.default_rng(0).integers(0, 4, 5_000)
    counts = ClusteredCounts.of(np.repeat(np.arange(5_000), alike), np.repeat(bins, alike), 4)
    spread = counts.null_distribution(np.full(4, 0.25))
    assert spread.effect == pytest.approx(alike, rel=0.01)
    assert spread.df == pytest.approx(3, rel=0.01)


def test_weights_are_the_eigenvalues_of_the_covariance_between_users() -> None:
    table = np.random.default_rng(1).integers(0, 5, (40, 6))
    table[:, 4] = 0
    table[:20, :2] *= 4
    expected = np.array([0.2, 0.1, 0.3, 0.15, 0.0, 0.25])
    residuals = table - table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
    scaled = np.delete(residuals, 4, axis=1) / np.sqrt(np.delete(expected, 4))
    weights = np.linalg.eigvalsh(scaled.T @ scaled) * 40 / 39 / table.sum()
    spread = counted(table).null_distribution(expected)
    assert spread.effect == pytest.approx(weights.sum() / 4)
    assert spread.scale == pytest.approx((weights**2).sum() / weights.sum())
    assert spread.df == pytest.approx(weights.sum() ** 2 / (weights**2).sum())


def test_evenly_spread_rows_have_design_effect_1() -> None:
    slates = np.full((100, 5), 2)  # every user sees every position twice
    assert counted(slates).null_distribution(np.full(5, 0.2)) == NullDistribution(
        scale=1.0, df=4.0, effect=1.0, clusters=100
    )


def test_one_user_is_never_significant() -> None:
    alone = counted(np.array([[0, 900, 100]])).null_distribution(np.full(3, 1 / 3))
    assert alone.effect == 1_000
    assert (alone.p_value(1e9), alone.bound(0.001)) == (1.0, 0.0)


def test_the_bound_has_p_value_alpha() -> None:
    spread = NullDistribution(scale=3.0, df=12.5, effect=2.0, clusters=200)
    assert spread.p_value(spread.bound(0.01)) == pytest.approx(0.01)
    many_clusters = NullDistribution(scale=1.0, df=1.0, effect=1.0, clusters=10**6)
    assert many_clusters.bound(0.05) == pytest.approx(1.96**2, rel=1e-3)  # chi-square with many users
    few_clusters = NullDistribution(scale=1.0, df=1.0, effect=1.0, clusters=3)
    assert few_clusters.bound(0.05) == pytest.approx(
        4.303**2, rel=1e-3
    )  # Student's t with two degrees of freedom, squared


def test_merged_bins_hold_the_sums() -> None:
    counts = counted(np.array([[1, 2, 3], [4, 5, 6]]))
    assert counts.totals.tolist() == [5, 7, 9]
    assert counts.merge_bins(np.array([0, 1, 0])).totals.tolist() == [14, 7]


def test_auc_is_the_share_of_pairs_in_order() -> None:
    labels, scores = np.array([1, 1, 0, 0]), np.array([3.0, 1.0, 2.0, 1.0])
    auc, _ = clustered_auc(labels, scores, np.arange(4))
    assert auc == pytest.approx((1 + 1 + 0 + 0.5) / 4)


def test_copied_rows_do_not_lower_the_p_value_of_the_auc() -> None:
    random = np.random.default_rng(2)
    labels, users = np.repeat([0, 1], 50), np.arange(100)
    scores = random.normal(size=100) + 0.4 * labels
    once = clustered_auc(labels, scores, users)
    copies = clustered_auc(*(np.repeat(part, 20) for part in (labels, scores, users)))
    as_rows = clustered_auc(np.repeat(labels, 20), np.repeat(scores, 20), np.arange(2_000))
    assert copies == pytest.approx(once)
    assert as_rows[1] < once[1] / 100


def test_the_p_value_of_the_auc_is_calibrated() -> None:
    random, labels, users = np.random.default_rng(3), np.tile([0, 1], 100), np.repeat(np.arange(100), 2)
    chances = []
    for _ in range(400):
        of_user = np.repeat(random.normal(size=100), 2)
        chances.append(clustered_auc(labels, of_user + random.normal(size=200), users)[1])
    assert 0.02 < np.mean(np.array(chances) < 0.05) < 0.09  # 0.05 give or take three standard errors


def test_perfect_separation_is_significant_unless_of_one_user() -> None:
    labels = np.repeat([0, 1], 100)
    assert clustered_auc(labels, labels.astype(float), np.arange(200))[1] < 1e-30
    assert clustered_auc(labels, labels.astype(float), np.zeros(200, dtype=int)) == (1.0, 1.0)
