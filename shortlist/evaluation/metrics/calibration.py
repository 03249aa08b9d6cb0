"""Calibration of scores: a score of 0.2 should mean one click in five."""

from __future__ import annotations

import math

import numpy as np

from shortlist.evaluation.metrics.pointwise import Labels, Probabilities, check_scores, row_pieces
from shortlist.evaluation.metrics.records import Bin

BINS = 20


def calibration_bins(labels: Labels, scores: Probabilities, confidence: float, bins: int = BINS) -> tuple[Bin, ...]:
    """Return the rows in bins of (nearly) equal count, by score; equal scores share a bin.

    Args:
        labels: 0 or 1, shape (rows,).
        scores: Predicted probabilities, same shape.
        confidence: Level of each bin's interval (Wilson, 1927).
        bins: Most bins; fewer when many scores are equal.

    Raises:
        UnmeasurableError: See `check_scores`.
    """
    check_scores(labels, scores)
    # Edges are scores themselves: an interpolated edge could separate scores that differ by rounding alone.
    edges = np.unique(np.quantile(scores, np.linspace(0, 1, bins + 1)[1:-1], method="higher"))
    rows, positives, score_sums = (np.zeros(edges.size + 1) for _ in range(3))
    for piece in row_pieces(scores.size):
        bin_numbers = np.searchsorted(edges, scores[piece], side="right")
        rows += np.bincount(bin_numbers, minlength=rows.size)
        positives += np.bincount(bin_numbers, labels[piece], rows.size)
        score_sums += np.bincount(bin_numbers, scores[piece], rows.size)
    is_occupied = rows > 0
    positives, mean_scores = positives[is_occupied], score_sums[is_occupied] / rows[is_occupied]
    return tuple(
        _make_bin(int(count), int(positive_count), float(mean), confidence)
        for count, positive_count, mean in zip(rows[is_occupied], positives, mean_scores, strict=True)
    )


def calibration_error(bins: tuple[Bin, ...]) -> float:
    """Return the expected calibration error: the mean distance of label rate and mean score, weighted by rows.

    (Naeini, Cooper, Hauskrecht, 2015.)
    """
    total_rows = sum(score_bin.rows for score_bin in bins)
    return sum(score_bin.rows * abs(score_bin.label_rate - score_bin.mean_score) for score_bin in bins) / total_rows


def calibration_noise(bins: tuple[Bin, ...]) -> float:
    """Return the calibration error of a perfectly calibrated model that is expected by chance on as many rows.

    A rate of n rows is off by sqrt(2 p (1 - p) / (pi n)) on average (normal approximation); absolute values never
    cancel, so small tests look badly calibrated: 20 bins of 100 rows at p = 0.3 show 0.037.

    >>> bins = 20 * (Bin(rows=100, mean_score=0.3, label_rate=0.3, low=0.2, high=0.4),)
    >>> round(calibration_noise(bins), 3)
    0.037
    """
    total_rows = sum(score_bin.rows for score_bin in bins)
    deviations = (
        math.sqrt(2 * score_bin.mean_score * (1 - score_bin.mean_score) / (math.pi * score_bin.rows))
        for score_bin in bins
    )
    return sum(score_bin.rows * deviation for score_bin, deviation in zip(bins, deviations, strict=True)) / total_rows


def rate_error(mean_score: float, label_rate: float) -> float | None:
    """Return the mean score's distance from the label rate, relative to the label rate; None without positives.

    >>> round(rate_error(0.22, 0.20), 3)
    0.1
    """
    return abs(mean_score - label_rate) / label_rate if label_rate > 0 else None


def wilson_interval(positives: int, rows: int, confidence: float) -> tuple[float, float]:
    """Return the bounds of a rate (Wilson, 1927).

    >>> [round(bound, 3) for bound in wilson_interval(5, 10, 0.95)]
    [0.237, 0.763]
    """
    from scipy.special import ndtri  # scipy.stats has the interval, and takes a second to load

    rate, square = positives / rows, float(ndtri((1 + confidence) / 2)) ** 2 / rows
    middle, half = rate + square / 2, (square * (rate * (1 - rate) + square / 4)) ** 0.5
    # Without positives the lower bound is 0, without negatives the upper is 1; rounding may miss both, on either side.
    low, high = (middle - half) / (1 + square), (middle + half) / (1 + square)
    return max(0.0, min(rate, low)), min(1.0, max(rate, high))


def _make_bin(rows: int, positives: int, mean_score: float, confidence: float) -> Bin:
    low, high = wilson_interval(positives, rows, confidence)
    return Bin(rows=rows, mean_score=mean_score, label_rate=positives / rows, low=low, high=high)
