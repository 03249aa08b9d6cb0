"""Scores in their order, in a few bytes per row: the AUC under any weights of users."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shortlist.evaluation.metrics import pointwise
from shortlist.evaluation.metrics.pointwise import Floats, row_pieces
from shortlist.evaluation.metrics.scores import ScoredRows

_HALF: Final = np.uint64(32)
"""Bits of half a machine word."""
_LOW_BITS: Final = np.uint64(2**32 - 1)


class SortedScores:
    """Scores that are sorted once, so that the AUC under any weights of the users takes one pass without sorting."""

    def __init__(self, rows: ScoredRows) -> None:
        from shortlist.evaluation.metrics.bootstrap_kernels import CLUSTER_SHIFT, NEW_SCORE, PLACE_SHIFT, POSITIVE

        # A machine word per row, sorted in place, and then replaced piece by piece: of many rows another array would
        # be the largest of a step. Sorting words takes a ninth of the time of sorting row numbers by score.
        row_keys, scores, weights = np.empty(rows.rows, np.uint64), _order_numbers(rows.stored_scores), rows.weights
        for piece in row_pieces(rows.rows):
            numbers = np.arange(piece.start, piece.stop, dtype=np.uint64)
            row_keys[piece] = (scores[piece].astype(np.uint64) << _HALF) | numbers
        del scores
        row_keys.sort()
        self._row_weights = np.empty(0 if weights is None else rows.rows)
        self._piece_rows, last_score = pointwise.PIECE_ROWS, -1
        for piece in row_pieces(rows.rows):
            numbers, piece_scores = row_keys[piece] & _LOW_BITS, (row_keys[piece] >> _HALF).astype(np.int64)
            bits = (rows.stored_labels[numbers] == 1) * np.uint64(POSITIVE)
            bits |= (np.diff(piece_scores, prepend=last_score) > 0) * np.uint64(NEW_SCORE)
            bits |= np.arange(numbers.size, dtype=np.uint64) << np.uint64(PLACE_SHIFT)
            row_keys[piece] = np.sort((rows.clusters[numbers].astype(np.uint64) << np.uint64(CLUSTER_SHIFT)) | bits)
            last_score = piece_scores[-1]
            if weights is not None:
                self._row_weights[piece] = weights[numbers]
        self._rows = row_keys

    def auc(self, weights: npt.NDArray[np.uint8]) -> float:
        """Return the AUC with a weight per user; see `auc_and_rate`."""
        return self.auc_and_rate(weights)[0]

    def auc_and_rate(self, weights: npt.NDArray[np.uint8]) -> tuple[float, float]:
        """Return the AUC and the label rate in which a row's weight is that of its user times its own.

        Args:
            weights: Weight per user, shape (users,).

        Returns:
            The AUC, in which ties count half; NaN when all weight lies on one class. The label rate; NaN without
            weight.
        """
        from shortlist.evaluation.metrics.bootstrap_kernels import sum_pairs

        assert weights.dtype == np.uint8
        correct_pairs, positives, negatives = sum_pairs(self._rows, self._piece_rows, weights, self._row_weights)
        pairs, weight = positives * negatives, positives + negatives
        return (correct_pairs / pairs if pairs else float("nan"), positives / weight if weight else float("nan"))


def _order_numbers(scores: npt.NDArray[np.floating[Any]]) -> npt.NDArray[Any]:
    """Return a number below 2^32 per row, in the order of the scores; equal scores have equal numbers."""
    if scores.dtype == np.float32:
        # The bits of positive floats have the order of the floats; adding 0 turns -0 into 0.
        return (scores + np.float32(0)).view(np.uint32)
    ranks: npt.NDArray[Any] = np.unique(scores, return_inverse=True)[1]
    return ranks


def weighted_sum(values: npt.NDArray[Any], weights: Floats) -> float:
    """Return the sum of values times weights."""
    # Not `@`: its threads wait for each other longer than so short a sum takes (10 ms against 0.4 when cores are busy).
    return float((values * weights).sum())
