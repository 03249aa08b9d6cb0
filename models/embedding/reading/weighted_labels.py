"""Labels combined with the weights of their rows in one number per row, so that batches need no further tensor.

A row without a weight has the label 0 or 1. A row of weight w has w for a positive and -w for a negative.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def with_weights(labels: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return labels combined with weights; the labels themselves where there are no weights.

    >>> with_weights(np.array([1, 0]), np.array([2.0, 4.0], np.float32)).tolist()
    [2.0, -4.0]
    """
    return labels if weights is None else np.where(labels > 0, weights, -weights)


def without_weights(weighted_labels: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return labels, 0 or 1, and their weights; None where no row has one.

    >>> labels, weights = without_weights(np.array([2.0, -4.0, -1.0]))
    >>> labels.tolist(), weights.tolist()
    ([1.0, 0.0, 0.0], [2.0, 4.0, 1.0])
    """
    labels = (weighted_labels > 0).astype(weighted_labels.dtype)
    if np.array_equal(labels, weighted_labels):
        return labels, None
    return labels, np.where(weighted_labels == 0, 1, np.abs(weighted_labels))


def split_weights(weighted_labels_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return labels, 0 or 1, and their weights, 1 where a row has none."""
    return (weighted_labels_B > 0).to(weighted_labels_B.dtype), torch.where(
        weighted_labels_B == 0, 1.0, weighted_labels_B.abs()
    )
