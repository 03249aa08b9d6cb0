"""Scores in their order, in a few bytes per row: the AUC under any weights of users."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shortlist.evaluation.metrics.pointwise import Floats, Weights, row_pieces
from shortlist.evaluation.metrics.scores import Clusters, ScoredRows


class _Piece(NamedTuple):
    """Consecutive rows in the order of their scores, those of equal scores together."""

    positive_clusters: Clusters
    negative_clusters: Clusters
    negatives_below: npt.NDArray[np.int32]
    """Number of the piece's negatives that are scored below each positive."""
    negatives_not_above: npt.NDArray[np.int32]
    positive_row_weights: Weights | float
    negative_row_weights: Weights | float


class _Tie(NamedTuple):
    """More rows of one score than a piece should have, as those of a model that scores all rows the same."""

    positive_clusters: Clusters
    negative_clusters: Clusters
    positive_row_weights: Weights | float
    negative_row_weights: Weights | float


class SortedScores:
    """Scores that are sorted once, so that the AUC under any weights of the users takes one pass without sorting."""

    def __init__(self, rows: ScoredRows) -> None:
        # Each array of all rows is freed as soon as it can be: of many rows they are the largest of a step.
        scores = np.sort(rows.stored_scores)
        starts = scores[[piece.start for piece in row_pieces(scores.size)]]
        firsts, ends = (np.searchsorted(scores, starts, side=side) for side in ("left", "right"))
        long_ties = ends - firsts > row_pieces(scores.size)[0].stop
        cuts = sorted({*firsts.tolist(), *ends[long_ties].tolist(), scores.size})
        del scores
        order = np.argsort(rows.stored_scores, kind="stable")
        weights = rows.weights
        self._pieces = [_make_piece(rows, weights, order[first:last]) for first, last in pairwise(cuts)]

    def auc(self, weights: npt.NDArray[Any]) -> float:
        """Return the AUC with a weight per user; see `auc_and_rate`."""
        return self.auc_and_rate(weights)[0]

    def auc_and_rate(self, weights: npt.NDArray[Any]) -> tuple[float, float]:
        """Return the AUC and the label rate in which a row's weight is that of its user times its own.

        Args:
            weights: Weight per user, shape (users,).

        Returns:
            The AUC, in which ties count half; NaN when all weight lies on one class. The label rate; NaN without
            weight.
        """
        correct_pairs = positives = negatives = 0.0
        for piece in self._pieces:
            if isinstance(piece, _Tie):
                positive_sum = _sum_weights(weights, piece.positive_clusters, piece.positive_row_weights)
                negative_sum = _sum_weights(weights, piece.negative_clusters, piece.negative_row_weights)
                correct_pairs += positive_sum * (negatives + negative_sum / 2)
                positives, negatives = positives + positive_sum, negatives + negative_sum
                continue
            positive = weights.take(piece.positive_clusters) * piece.positive_row_weights
            negative = weights.take(piece.negative_clusters) * piece.negative_row_weights
            negatives_up_to = np.concatenate(([0.0], np.cumsum(negative)))
            negatives_beaten = (
                negatives_up_to.take(piece.negatives_below) + negatives_up_to.take(piece.negatives_not_above)
            ) / 2
            positive_sum = float(positive.sum())
            correct_pairs += weighted_sum(positive, negatives_beaten) + positive_sum * negatives
            positives, negatives = positives + positive_sum, negatives + float(negatives_up_to[-1])
        pairs, weight = positives * negatives, positives + negatives
        return (correct_pairs / pairs if pairs else float("nan"), positives / weight if weight else float("nan"))


def _sum_weights(weights: npt.NDArray[Any], clusters: Clusters, row_weights: Weights | float) -> float:
    """Return the sum of the weights of rows, each that of its cluster times its own."""
    total = 0.0
    for piece in row_pieces(clusters.size):
        total += float((weights.take(clusters[piece]) * np.broadcast_to(row_weights, clusters.shape)[piece]).sum())
    return total


def _make_piece(rows: ScoredRows, weights: Weights | None, order: npt.NDArray[np.intp]) -> _Piece | _Tie:
    is_positive, scores = rows.stored_labels[order] == 1, rows.stored_scores[order]
    positive_rows, negative_rows = order[is_positive], order[~is_positive]
    row_weights = (1.0, 1.0) if weights is None else (weights[positive_rows], weights[negative_rows])
    if len(row_pieces(scores.size)) > 1 and scores[0] == scores[-1]:
        return _Tie(rows.clusters[positive_rows], rows.clusters[negative_rows], *row_weights)
    negatives = scores[~is_positive]
    below, not_above = (
        np.searchsorted(negatives, scores[is_positive], side=side).astype(np.int32) for side in ("left", "right")
    )
    return _Piece(rows.clusters[positive_rows], rows.clusters[negative_rows], below, not_above, *row_weights)


def weighted_sum(values: npt.NDArray[Any], weights: Floats) -> float:
    """Return the sum of values times weights."""
    # Not `@`: its threads wait for each other longer than so short a sum takes (10 ms against 0.4 when cores are busy).
    return float((values * weights).sum())
