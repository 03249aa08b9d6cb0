"""Scores in their order, in a few bytes per row: the AUC under any weights of users."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from shortlist.evaluation.metrics.pointwise import Floats, row_pieces
from shortlist.evaluation.metrics.scores import ScoredRows


class SortedScores:
    """Scores that are sorted once, so that the AUC under any weights of the users takes one pass without sorting."""

    def __init__(self, rows: ScoredRows) -> None:
        order = np.argsort(rows.stored_scores, kind="stable")
        scores = rows.stored_scores[order]
        self._starts_score = np.append(True, scores[1:] != scores[:-1])[: scores.size]
        self._is_positive = rows.stored_labels[order] == 1
        self._clusters = rows.clusters[order]
        self._row_weights = None if rows.weights is None else rows.weights[order]
        # Pieces of rows, whose numbers fit into the cache; rows of equal scores stay together.
        firsts = (piece.start + int(np.argmax(self._starts_score[piece.start :])) for piece in row_pieces(scores.size))
        cuts = sorted({0, *(first for first in firsts if self._starts_score[first]), scores.size})
        self._pieces = [slice(first, last) for first, last in pairwise(cuts)]

    def auc(self, weights: npt.NDArray[Any]) -> float:
        """Return the AUC in which a row's weight is that of its user times its own; ties count half.

        Args:
            weights: Weight per user, shape (users,).

        Returns:
            The AUC; NaN when all weight lies on one class.
        """
        correct_pairs = positives = negatives = 0.0
        for piece in self._pieces:
            weight = weights.take(self._clusters[piece]).astype(np.float64)
            weight *= 1.0 if self._row_weights is None else self._row_weights[piece]
            positive_weight = np.where(self._is_positive[piece], weight, 0.0)
            starts = np.flatnonzero(self._starts_score[piece])
            positive, negative = (np.add.reduceat(part, starts) for part in (positive_weight, weight - positive_weight))
            negative_up_to = negatives + np.cumsum(negative)
            correct_pairs += weighted_sum(positive, negative_up_to - negative / 2)
            positives, negatives = positives + float(positive.sum()), float(negative_up_to[-1])
        pairs = positives * negatives
        return correct_pairs / pairs if pairs else float("nan")


def weighted_sum(values: npt.NDArray[Any], weights: Floats) -> float:
    """Return the sum of values times weights."""
    # Not `@`: its threads wait for each other longer than so short a sum takes (10 ms against 0.4 when cores are busy).
    return float((values * weights).sum())
