"""Two lists of scores of the same rows: how far apart, and in the same order?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shortlist.evaluation.export_validation import LargestDifference, ScoreParity

Floats = npt.NDArray[np.floating[Any]]

MARGIN: Final = 1e-6
"""Rows whose reference scores are closer may come in any order."""


def agreement(impressions: npt.NDArray[np.int64], reference: Floats, got: Floats) -> ScoreParity:
    """Return how scores agree with the reference, row by row.

    Args:
        impressions: Number of each row's impression, shape (rows,).
        reference: Training's scores, same shape.
        got: The others, same shape.
    """
    assert impressions.shape == reference.shape == got.shape
    finite = np.isfinite(got)
    rows, broken = int(finite.sum()), int((~finite).sum())
    if not rows:
        return ScoreParity(rows=reference.size, not_finite=broken, problem="" if broken else "there are no scores")
    impressions, reference, got = impressions[finite], reference[finite].astype(float), got[finite].astype(float)
    differences = np.abs(reference - got)
    worst = int(differences.argmax())
    return ScoreParity(
        rows=rows + broken,
        max_difference=float(differences[worst]),
        rank_differences=rank_differences(reference, got),
        not_finite=broken,
        worst=LargestDifference(
            impression=int(impressions[worst]), reference=float(reference[worst]), got=float(got[worst])
        ),
    )


def worst_of(columns: Sequence[ScoreParity]) -> ScoreParity:
    """Return how the scores of several labels agree: as those that agree the least; exchanged pairs are added up."""
    broken = next((column for column in columns if column.max_difference is None), None)
    worst = broken or max(columns, key=lambda column: column.max_difference or 0.0)
    return worst.model_copy(
        update={
            "not_finite": sum(column.not_finite for column in columns),
            "rank_differences": sum(column.rank_differences or 0 for column in columns),
        }
    )


def rank_differences(reference: Floats, got: Floats, margin: float = MARGIN) -> int:
    """Return how many pairs are in the other order, or tied, although the reference tells them apart.

    Counted exactly, in O(n log^2 n): sorted by reference, every row asks how many of the rows that lie more than the
    margin above it score no higher, block by block of a merge-sort tree.

    Args:
        reference: Shape (rows,), finite.
        got: Shape (rows,), finite.
        margin: Pairs whose references differ by no more are not counted.

    >>> rank_differences(np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.1, 0.3, 0.2, 0.3]))
    2
    """
    if reference.size < 2:
        return 0
    order = np.argsort(reference, kind="stable")
    above = np.searchsorted(reference[order], reference[order] + margin, side="right")
    ranks = np.unique(got[order], return_inverse=True)[1].astype(np.int64)
    rows = ranks.size
    beyond = rows  # rank of the padding: above every query
    padded = np.full(1 << (rows - 1).bit_length(), beyond, np.int64)
    padded[:rows] = ranks
    total, width = 0, 1
    while width <= padded.size:
        blocks = np.sort(padded.reshape(-1, width), axis=1)
        keys = (blocks + np.arange(len(blocks))[:, None] * (beyond + 1)).ravel()
        block = above // width
        # A range that begins with the right one of two blocks takes it whole; what is left begins at the next pair.
        asks = (block % 2 == 1) & (above < padded.size)
        block, asking = block[asks], ranks[asks]
        total += int((np.searchsorted(keys, block * (beyond + 1) + asking, side="right") - block * width).sum())
        above[asks] += width
        width *= 2
    return total
