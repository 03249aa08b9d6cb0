"""Labels that carry the weights of their rows: one number a row, so that batches hold nothing more.

A row without a weight has the label 0 or 1. A row of weight w has w for a positive and -w for a negative.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


def with_weights(labels: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return labels that carry weights; the labels themselves where there are none.

    >>> with_weights(np.array([1, 0]), np.array([2.0, 4.0], np.float32)).tolist()
    [2.0, -4.0]
    """
    return labels if weights is None else np.where(labels > 0, weights, -weights)


def without_weights(carried: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return labels, 0 or 1, and the weights that they carried; None where no row had one.

    >>> labels, weights = without_weights(np.array([2.0, -4.0, -1.0]))
    >>> labels.tolist(), weights.tolist()
    ([1.0, 0.0, 0.0], [2.0, 4.0, 1.0])
    """
    labels = (carried > 0).astype(carried.dtype)
    if np.array_equal(labels, carried):
        return labels, None
    return labels, np.where(carried == 0, 1, np.abs(carried))


def split_weights(carried_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return labels, 0 or 1, and the weights that they carried, 1 where a row had none."""
    return (carried_B > 0).to(carried_B.dtype), torch.where(carried_B == 0, 1.0, carried_B.abs())


def weighted_log_loss(logits_B: Tensor, carried_B: Tensor, reduction: Literal["none", "mean", "sum"]) -> Tensor:
    """Return the log loss of rows, each times its weight; the mean is over rows.

    Args:
        logits_B: Log-odds.
        carried_B: Labels, perhaps with weights.
        reduction: As of `torch.nn.functional.binary_cross_entropy_with_logits`.
    """
    labels_B, weights_B = split_weights(carried_B)
    return functional.binary_cross_entropy_with_logits(logits_B, labels_B, weights_B, reduction=reduction)
