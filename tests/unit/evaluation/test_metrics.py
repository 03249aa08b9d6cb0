from __future__ import annotations

import math

import numpy as np
import pytest
import sklearn.metrics

from shortlist.evaluation.metrics.pointwise import (
    UnmeasurableError,
    auc,
    log_loss,
    roc_points,
    score_histogram,
)

LABELS = np.array([0.0, 1.0, 1.0, 0.0, 0.0])
SCORES = np.array([0.1, 0.9, 0.4, 0.4, 0.2])


def test_auc_counts_pairs_and_half_of_ties() -> None:
    assert auc(LABELS, SCORES) == pytest.approx(
        (3 + 2.5) / 6
    )  # 0.9 beats three negatives; 0.4 beats two and ties with one


@pytest.mark.parametrize("values", [3, 50, 100_000])
def test_auc_and_roc_are_sklearns(values: int) -> None:
    generator = np.random.default_rng(values)
    scores = generator.integers(0, values, 5_000) / values
    labels = (generator.random(5_000) < 0.1 + 0.3 * scores).astype(float)
    assert auc(labels, scores) == pytest.approx(sklearn.metrics.roc_auc_score(labels, scores), abs=1e-12)
    false_positive, true_positive, _ = sklearn.metrics.roc_curve(labels, scores)
    for x, y in roc_points(labels, scores):
        # A curve has steps: a point lies on it when it lies between what comes before and after it.
        low = np.interp(x - 1e-5, false_positive, true_positive)
        assert low - 1e-5 <= y <= np.interp(x + 1e-5, false_positive, true_positive) + 1e-5


def test_log_loss_is_sklearns() -> None:
    assert log_loss(LABELS, SCORES) == pytest.approx(sklearn.metrics.log_loss(LABELS, SCORES))


def test_log_loss_of_score_0_or_1_is_finite() -> None:
    assert log_loss(np.array([1.0]), np.array([0.0])) == pytest.approx(-math.log(1e-7))


@pytest.mark.parametrize("metric", [auc, log_loss, roc_points])
@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [
        ([], [], "no rows"),
        ([0, 2], [0.1, 0.2], "labels other than 0 and 1"),
        ([0, 1], [0.1, math.nan], "1 of 2 scores are missing"),
        ([0, 1], [0.1, 1.2], "not between 0 and 1"),
    ],
)
def test_unmeasurable_rows_are_an_error(metric: object, labels: list[int], scores: list[float], message: str) -> None:
    assert callable(metric)
    with pytest.raises(UnmeasurableError, match=message):
        metric(np.array(labels, float), np.array(scores, float))


@pytest.mark.parametrize("metric", [auc, roc_points])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_has_no_auc(metric: object, label: float) -> None:
    assert callable(metric)
    with pytest.raises(UnmeasurableError, match="only one class"):
        metric(np.full(3, label), np.array([0.1, 0.2, 0.3]))


def test_roc_curve_is_thinned_without_changing_its_area() -> None:
    generator = np.random.default_rng(0)
    scores = generator.random(20_000)
    labels = (generator.random(20_000) < scores).astype(float)
    points = roc_points(labels, scores, points=100)
    x, y = np.array(points).T
    assert len(points) <= 100
    assert points[0] == (0, 0)
    assert points[-1] == (1, 1)
    assert np.all(np.diff(x) >= 0)
    assert np.all(np.diff(y) >= 0)
    assert np.trapezoid(y, x) == pytest.approx(auc(labels, scores), abs=1e-3)


def test_histogram_holds_every_row_even_of_a_constant_score() -> None:
    edges, shares = score_histogram(np.full(10, 0.3), bins=5)
    assert len(edges) == 6
    assert sum(shares) == pytest.approx(1)


@pytest.mark.parametrize(
    "scores", [[0.0] * 50, [1.0] * 50, [0.3, 0.3 + 1e-9] * 25, [0.0, 1.0] * 25, [1e-7] * 999 + [1.0]]
)
def test_the_bins_of_a_histogram_have_a_width(scores: list[float]) -> None:
    edges, shares = score_histogram(np.array(scores))
    assert min(np.diff(edges)) > 1e-5
    assert 0 <= edges[0] < edges[-1] <= 1
    assert sum(shares) == pytest.approx(1)
