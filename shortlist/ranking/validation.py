"""Metrics of the validation days, and early stopping."""

from __future__ import annotations

import numpy as np

from shortlist.evaluation.metrics.pointwise import auc, log_loss


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities of log-odds as float32.

    >>> probabilities(np.array([0.0, 1000.0])).tolist()
    [0.5, 1.0]
    """
    from scipy.special import expit

    return np.asarray(expit(logits), np.float32)


def validation_metrics(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None
) -> dict[str, float | None]:
    """Return log loss (nats) and AUC of the validation rows.

    Args:
        labels: 0 or 1, shape (rows,).
        scores: Probabilities, shape (rows,).
        weights: Weight of each row, same shape; None: all equal.

    Returns:
        `validation_log_loss` and `validation_auc`; the AUC is None with a single class, where it is undefined.

    Raises:
        UnmeasurableError: See `shortlist.evaluation.metrics.pointwise.check_scores`.
    """
    varies = labels.min() != labels.max()
    return {
        "validation_log_loss": log_loss(labels, scores, weights),
        "validation_auc": auc(labels, scores, weights) if varies else None,
    }


class EarlyStopping:
    """Tracks the best validation loss and whether patience has ended.

    >>> stopping = EarlyStopping(patience=2)
    >>> [stopping.improved(epoch, loss) for epoch, loss in enumerate([0.5, 0.4, 0.6, 0.45], start=1)]
    [True, True, False, False]
    >>> stopping.best_epoch, stopping.patience_ended
    (2, True)
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._epoch = 0
        self._best = float("inf")
        self.best_epoch = 0

    def improved(self, epoch: int, loss: float) -> bool:
        """Record the loss of an epoch; return whether it is the best so far."""
        self._epoch = epoch
        if loss >= self._best:
            return False
        self._best, self.best_epoch = loss, epoch
        return True

    @property
    def patience_ended(self) -> bool:
        """Whether as many epochs as patience allows have passed without a better one."""
        return self._epoch - self.best_epoch >= self._patience
