"""Calibration of log-odds in plain numpy; used by training, by the scorers, and in a model repository.

It imports numpy only, because a repository contains a copy that runs in Triton's own environment.
"""

from __future__ import annotations

import numpy as np

CALIBRATION = "calibration.npz"
"""File with the arrays `offsets` to `base`, parameters of `calibrate`, for a model that is split into parts."""
ARRAYS = ("offsets", "lows", "highs", "slopes", "base")


def calibrate(
    log_odds: np.ndarray, offsets: np.ndarray, lows: np.ndarray, highs: np.ndarray, slopes: np.ndarray, base: np.ndarray
) -> np.ndarray:
    """Return base + sum_k slope_k * clip(log_odds - offset_k, low_k, high_k), a piecewise linear function.

    The pieces do not overlap and every slope is positive, so the order of rows is kept.

    Args:
        log_odds: Log-odds of a model, FP32, any shape; NaN stays NaN.
        offsets: Start of each piece, FP32, shape (K,).
        lows: Smallest distance from the start in each piece, FP32, shape (K,).
        highs: Largest distance, FP32, shape (K,).
        slopes: Slope of each piece, FP32, shape (K,).
        base: Added constant, FP32, shape (1,).

    Returns:
        Calibrated log-odds, FP32, in the shape of `log_odds`.

    >>> line = [np.array([value], np.float32) for value in (0, -1e30, 1e30, 2, 0.5)]
    >>> calibrate(np.array([-1, 3], np.float32), *line).tolist()
    [-1.5, 6.5]
    """
    pieces = np.clip(log_odds[..., None] - offsets, lows, highs)
    return np.asarray((pieces * slopes).sum(axis=-1, dtype=np.float32) + base[0], np.float32)
