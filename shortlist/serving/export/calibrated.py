"""Calibrated log-odds, in numpy alone: training, the scorers and a model repository share this file.

It imports nothing, because a repository holds a copy that runs in Triton's own environment.
"""

from __future__ import annotations

import numpy as np

CALIBRATION = "calibration.npz"
"""File with the arrays `offsets` to `base`, parameters of `calibrated`; beside a model that is not one graph."""
ARRAYS = ("offsets", "lows", "highs", "slopes", "base")


def calibrated(
    log_odds: np.ndarray, offsets: np.ndarray, lows: np.ndarray, highs: np.ndarray, slopes: np.ndarray, base: np.ndarray
) -> np.ndarray:
    """Return base + sum_k slope_k * clip(log_odds - offset_k, low_k, high_k): straight lines, one after another.

    No two pieces overlap and every slope is positive, so nothing cancels and the order of rows stays.

    Args:
        log_odds: Of a model, FP32, any shape; NaN stays NaN.
        offsets: Where each piece begins, FP32, shape (K,).
        lows: Smallest distance that a piece counts, FP32, shape (K,).
        highs: Largest distance, FP32, shape (K,).
        slopes: Of the pieces, FP32, shape (K,).
        base: What is added, FP32, shape (1,).

    Returns:
        FP32, the shape of `log_odds`.

    >>> line = [np.array([value], np.float32) for value in (0, -1e30, 1e30, 2, 0.5)]
    >>> calibrated(np.array([-1, 3], np.float32), *line).tolist()
    [-1.5, 6.5]
    """
    pieces = np.clip(log_odds[..., None] - offsets, lows, highs)
    return np.asarray((pieces * slopes).sum(axis=-1, dtype=np.float32) + base[0], np.float32)
