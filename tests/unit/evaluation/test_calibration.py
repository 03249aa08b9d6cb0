from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from shortlist.evaluation.metrics.calibration import (
    calibration_bins,
    calibration_error,
    calibration_noise,
    rate_error,
    wilson_interval,
)
from shortlist.evaluation.metrics.pointwise import UnmeasurableError


def test_two_bins_by_hand() -> None:
    labels = np.array([0.0, 1.0, 1.0, 1.0])
    bins = calibration_bins(labels, np.array([0.1, 0.3, 0.6, 0.8]), confidence=0.95, bins=2)
    assert [(score_bin.rows, score_bin.label_rate) for score_bin in bins] == [(2, 0.5), (2, 1.0)]
    assert [score_bin.mean_score for score_bin in bins] == pytest.approx([0.2, 0.7])
    assert calibration_error(bins) == pytest.approx((2 * 0.3 + 2 * 0.3) / 4)


def test_bins_hold_equally_many_rows() -> None:
    scores = np.random.default_rng(0).permutation(1_000) / 1_000
    bins = calibration_bins((scores > 0.5).astype(float), scores, confidence=0.95)
    assert [score_bin.rows for score_bin in bins] == [50] * 20


def test_equal_scores_share_a_bin() -> None:
    labels = np.array([0.0, 0.0, 0.0, 1.0] * 25)
    bins = calibration_bins(labels, np.full(100, 0.4), confidence=0.95)
    assert [score_bin.rows for score_bin in bins] == [100]
    assert calibration_error(bins) == pytest.approx(abs(0.25 - 0.4))


@pytest.mark.parametrize("rows", [2_000, 50_000])
def test_calibration_error_of_a_perfect_model_equals_the_expected_noise(rows: int) -> None:
    generator = np.random.default_rng(3)
    planted = generator.beta(1, 3, rows)
    bins = calibration_bins((generator.random(rows) < planted).astype(float), planted, confidence=0.95)
    assert calibration_error(bins) == pytest.approx(calibration_noise(bins), rel=0.35)


def test_calibration_noise_falls_with_the_square_root_of_the_rows() -> None:
    labels, scores = np.tile([0.0, 1.0], 50), np.full(100, 0.5)
    small = calibration_noise(calibration_bins(labels, scores, 0.95))
    large = calibration_noise(calibration_bins(np.tile(labels, 4), np.tile(scores, 4), 0.95))
    assert small == pytest.approx(2 * large)


def test_rate_error_is_relative_and_needs_positives() -> None:
    assert rate_error(0.3, 0.25) == pytest.approx(0.2)
    assert rate_error(0.2, 0.25) == pytest.approx(0.2)
    assert rate_error(0.2, 0.0) is None


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
@pytest.mark.parametrize(("positives", "rows"), [(0, 1), (1, 1), (5, 10), (3, 1_000), (999_999, 1_000_000)])
def test_wilson_interval_is_scipys(positives: int, rows: int, confidence: float) -> None:
    scipy_interval = binomtest(positives, rows).proportion_ci(confidence, method="wilson")
    assert wilson_interval(positives, rows, confidence) == pytest.approx(
        (scipy_interval.low, scipy_interval.high), abs=1e-12
    )


def test_wilson_bounds_hold_the_rate_despite_rounding() -> None:
    for rows in range(1, 3_000):
        for positives in (0, rows):
            low, high = wilson_interval(positives, rows, 0.95)
            assert low <= positives / rows <= high, (positives, rows)


def test_wilson_bounds_are_between_0_and_1() -> None:
    assert wilson_interval(0, 20, 0.95) == pytest.approx((0, 1.959964**2 / (20 + 1.959964**2)), abs=1e-6)


def test_no_rows_have_no_calibration() -> None:
    with pytest.raises(UnmeasurableError, match="no rows"):
        calibration_bins(np.array([]), np.array([]), confidence=0.95)
