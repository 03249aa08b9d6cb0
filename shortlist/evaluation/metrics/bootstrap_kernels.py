"""Compiled loops of a bootstrap: draws counted by user, and the pairs of rows in the right order."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from shortlist.system.compiled import compiled

POSITIVE: Final = 1
"""Bit of a row: its label is 1."""
NEW_SCORE: Final = 2
"""Bit of a row: its score is above that of the row before."""
PLACE_SHIFT: Final = 2
"""A row's place in its piece is in the bits above these."""
CLUSTER_SHIFT: Final = 32
"""A row's cluster is in the bits above those of its place."""


@compiled
def count_draws(drawn_clusters: npt.NDArray[np.uint32], counts: npt.NDArray[np.uint8]) -> None:
    """Add to `counts`, by cluster, how often each was drawn."""
    for cluster in drawn_clusters:
        counts[cluster] += 1


@compiled
def sum_pairs(
    rows: npt.NDArray[np.uint64],
    piece_rows: int,
    weights: npt.NDArray[np.uint8],
    row_weights: npt.NDArray[np.float64],
) -> tuple[float, float, float]:
    """Return the weights of the pairs in the right order, of the positives and of the negatives; ties count half.

    The rows of a piece are read by ascending cluster, so that weights too many for a near cache are read in order, and
    are put in their places there; in any other order most of the time would go to waiting for memory.

    Args:
        rows: Cluster, place and bits of each row; pieces by ascending score, the rows of a piece by ascending cluster.
        piece_rows: Rows of a piece.
        weights: Weight of each cluster, below 2^14.
        row_weights: Further weight of each row by ascending score; empty: equal weights.
    """
    correct_pairs = positives = negatives = tied_positives = tied_negatives = 0.0
    is_weighted = row_weights.size > 0
    piece = np.empty(min(piece_rows, rows.size), np.uint16)
    for first in range(0, rows.size, piece_rows):
        size = min(piece_rows, rows.size - first)
        for number in range(first, first + size):
            place_and_bits = np.uint32(rows[number])
            bits = place_and_bits & np.uint32(POSITIVE | NEW_SCORE)
            weight = np.uint32(weights[rows[number] >> np.uint64(CLUSTER_SHIFT)])
            piece[place_and_bits >> np.uint32(PLACE_SHIFT)] = (weight << np.uint32(PLACE_SHIFT)) | bits
        for place in range(size):
            weight_and_bits = piece[place]
            row_weight = float(weight_and_bits >> PLACE_SHIFT)
            if is_weighted:
                row_weight *= row_weights[first + place]
            if weight_and_bits & NEW_SCORE:
                correct_pairs += tied_positives * (negatives + tied_negatives / 2)
                positives, negatives = positives + tied_positives, negatives + tied_negatives
                tied_positives = tied_negatives = 0.0
            positive_weight = row_weight * (weight_and_bits & POSITIVE)
            tied_positives, tied_negatives = (
                tied_positives + positive_weight,
                tied_negatives + row_weight - positive_weight,
            )
    correct_pairs += tied_positives * (negatives + tied_negatives / 2)
    return correct_pairs, positives + tied_positives, negatives + tied_negatives
