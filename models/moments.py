"""Mean and scale of float features over chunks of rows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def standardisation(chunks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return what makes every column's values have mean 0 and variance 1.

    Chunks are merged in the order given (Chan, Golub and LeVeque, 1983), so the result does not depend on threads.

    Args:
        chunks: Matrices of shape (rows, floats), float32; NaN is left out.

    Returns:
        Means, and reciprocals of the standard deviations (1 where a column never varies); both (floats,), float32.

    >>> mean, scale = standardisation([np.array([[1.0], [np.nan]]), np.array([[3.0], [5.0]])])
    >>> mean.tolist(), round(float(scale[0]) ** -2, 4)
    ([3.0], 2.6667)
    """
    count, mean, squares = 0.0, 0.0, 0.0
    for chunk in chunks:
        missing = np.isnan(chunk)
        rows = (len(chunk) - missing.sum(axis=0)).astype(np.float64)
        values = np.where(missing, 0.0, chunk.astype(np.float64))
        own_mean = values.sum(axis=0) / np.maximum(rows, 1)
        own_squares = (np.where(missing, 0.0, values - own_mean) ** 2).sum(axis=0)
        distance, total = own_mean - mean, np.maximum(count + rows, 1)
        squares = squares + own_squares + distance**2 * count * rows / total
        mean = mean + distance * rows / total
        count = count + rows
    deviation = np.sqrt(np.asarray(squares) / np.maximum(count, 1))
    # A column that hardly varies around a large mean is constant up to float32; scaling it up would amplify noise.
    varies = deviation > 1e-6 * np.maximum(1e-6, np.abs(mean))
    return np.asarray(mean, np.float32), np.where(varies, 1 / np.where(varies, deviation, 1), 1).astype(np.float32)
