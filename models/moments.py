"""Mean and scale of float features over chunks of rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np


class Moments(NamedTuple):
    """Count, mean and squared deviations of float columns; each of shape (floats,), float64.

    Attributes:
        values: Number of values that are not NaN.
        mean: Mean of these values.
        squares: Sum of their squared distances from the mean.
    """

    values: np.ndarray
    mean: np.ndarray
    squares: np.ndarray


def standardisation(chunks: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return means and scales that give every column mean 0 and variance 1.

    Args:
        chunks: Matrices of shape (rows, floats), float32; NaN is ignored.

    Returns:
        Means, and reciprocals of the standard deviations (1 where a column never varies); both (floats,), float32.

    >>> mean, scale = standardisation([np.array([[1.0], [np.nan]]), np.array([[3.0], [5.0]])])
    >>> mean.tolist(), round(float(scale[0]) ** -2, 4)
    ([3.0], 2.6667)
    """
    return mean_and_scale(merge_moments(map(compute_moments, chunks)))


def compute_moments(chunk: np.ndarray) -> Moments:
    """Return the moments of a matrix of shape (rows, floats)."""
    missing = np.isnan(chunk)
    count = (len(chunk) - missing.sum(axis=0)).astype(np.float64)
    values = np.where(missing, 0.0, chunk.astype(np.float64))
    mean = values.sum(axis=0) / np.maximum(count, 1)
    return Moments(count, mean, (np.where(missing, 0.0, values - mean) ** 2).sum(axis=0))


def merge_moments(parts: Iterable[Moments]) -> Moments:
    """Return the moments of all rows, merged in the order given (Chan, Golub and LeVeque, 1983).

    They do not depend on threads; they do, in the last bits, on how the rows were split.
    """
    count, mean, squares = np.zeros(1), np.zeros(1), np.zeros(1)
    for part in parts:
        distance, total = part.mean - mean, np.maximum(count + part.values, 1)
        squares = squares + part.squares + distance**2 * count * part.values / total
        mean = mean + distance * part.values / total
        count = count + part.values
    return Moments(count, mean, squares)


def mean_and_scale(moments: Moments) -> tuple[np.ndarray, np.ndarray]:
    """Return means and reciprocals of the standard deviations, (floats,), float32; see `standardisation`."""
    deviation = np.sqrt(moments.squares / np.maximum(moments.values, 1))
    # A column that hardly varies around a large mean is constant up to float32; scaling it up would amplify noise.
    varies = deviation > 1e-6 * np.maximum(1e-6, np.abs(moments.mean))
    return moments.mean.astype(np.float32), np.where(varies, 1 / np.where(varies, deviation, 1), 1).astype(np.float32)
