"""Metrics of scores: AUC, log loss, ROC points and the histogram of scores."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from shortlist.contracts import ShortlistError

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[Any]
"""0 or 1, of any type: tables hold them in a byte each."""
Probabilities = npt.NDArray[np.floating[Any]]
"""Scores, of any precision: tables hold them in four bytes each."""
SMALLEST_PROBABILITY = 1e-7
"""Scores are clipped to [1e-7, 1 - 1e-7] in a log loss: single precision cannot tell 1 from less than 1e-7 below it."""

PIECE_ROWS: Final = 2**17
"""Rows of a piece, whose numbers fit into a processor's cache."""
_MIN_HISTOGRAM_WIDTH = 0.01
"""Least range of a histogram of scores: its edges are rounded to six digits and must stay distinct."""


class UnmeasurableError(ShortlistError):
    """Nothing can be measured: no rows, one class, or scores that are not probabilities. Never a success."""


def row_pieces(rows: int) -> list[slice]:
    """Return consecutive pieces of rows: temporary numbers of all rows need not be in memory at once.

    >>> row_pieces(200_000)
    [slice(0, 131072, None), slice(131072, 200000, None)]
    """
    return [slice(first, min(first + PIECE_ROWS, rows)) for first in range(0, rows, PIECE_ROWS)]


def check_scores(labels: Labels, scores: Probabilities) -> None:
    """Raise for rows on which no metric is defined.

    Args:
        labels: 0 or 1, shape (rows,).
        scores: Predicted probabilities, same shape.

    Raises:
        UnmeasurableError: No rows, labels other than 0 and 1, NaN, or scores outside [0, 1].
    """
    assert labels.shape == scores.shape
    if not labels.size:
        raise UnmeasurableError("no rows to measure")
    pieces = row_pieces(labels.size)
    if not all(np.isin(labels[piece], (0, 1)).all() for piece in pieces):
        raise UnmeasurableError("labels other than 0 and 1")
    missing = sum(int(np.isnan(scores[piece]).sum()) for piece in pieces)
    if missing:
        raise UnmeasurableError(f"{missing} of {scores.size} scores are missing (NaN)")
    if scores.min() < 0 or scores.max() > 1:
        raise UnmeasurableError(f"scores lie between {scores.min():.4g} and {scores.max():.4g}, not between 0 and 1")


def check_classes(labels: Labels) -> None:
    """Raise for rows of one class.

    Raises:
        UnmeasurableError: All labels are equal.
    """
    check_class_counts(int(np.count_nonzero(labels)), labels.size)


def check_class_counts(positives: int, rows: int) -> None:
    """Raise for counts of rows of one class.

    Raises:
        UnmeasurableError: No row is positive, or all are.
    """
    # AUC is undefined with one class; a day of only negatives must hold the gate, not pass it.
    if positives in (0, rows):
        raise UnmeasurableError(f"only one class: {positives} positives in {rows} rows")


Weights = npt.NDArray[np.floating[Any]]
"""Number of impressions that each row stands for: the inverse sampling probability where a sample was logged."""


def auc(labels: Labels, scores: Probabilities, weights: Weights | None = None) -> float:
    """Return the probability that a random positive is scored above a random negative; ties count half.

    Args:
        labels: 0 or 1, shape (rows,).
        scores: Predicted probabilities, same shape.
        weights: Weights of the rows, same shape; None: equal weights.

    Raises:
        UnmeasurableError: See `check_scores`, `check_classes`.

    >>> auc(np.array([0.0, 1.0, 0.0, 1.0]), np.array([0.1, 0.3, 0.3, 0.8]))
    0.875
    """
    check_scores(labels, scores)
    check_classes(labels)
    if weights is not None:
        return _weighted_auc(labels, scores, weights)
    # scikit-learn's function gives the same (tests/unit/evaluation/test_metrics.py), but importing it takes 1 to 2 s in
    # each of six steps of a run that use nothing else of it.
    positives, negatives = scores[labels == 1], np.sort(scores[labels == 0])
    negatives_below, negatives_not_above = (
        np.searchsorted(negatives, positives, side).sum() for side in ("left", "right")
    )
    return float((negatives_below + negatives_not_above) / (2 * positives.size * negatives.size))


def _weighted_auc(labels: Labels, scores: Probabilities, weights: Weights) -> float:
    is_positive = labels == 1
    order = np.argsort(scores[~is_positive], kind="stable")
    negatives, weight = scores[~is_positive][order], weights[~is_positive][order].astype(np.float64)
    cumulative_weights = np.concatenate(([0.0], np.cumsum(weight)))
    positions = (np.searchsorted(negatives, scores[is_positive], side) for side in ("left", "right"))
    negatives_below, negatives_not_above = (cumulative_weights.take(position) for position in positions)
    positive_weights = weights[is_positive].astype(np.float64)
    return float(
        (positive_weights * (negatives_below + negatives_not_above)).sum()
        / (2 * positive_weights.sum() * cumulative_weights[-1])
    )


def log_losses(labels: Labels, scores: Probabilities) -> Floats:
    """Return every row's negative log likelihood in nats, shape (rows,)."""
    clipped = np.clip(scores.astype(np.float64), SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY)
    losses: Floats = -np.log(np.where(labels == 1, clipped, 1 - clipped))
    return losses


def log_loss(labels: Labels, scores: Probabilities, weights: Weights | None = None) -> float:
    """Return the mean negative log likelihood in nats, of weighted rows where there are weights.

    Raises:
        UnmeasurableError: See `check_scores`.

    >>> round(log_loss(np.array([1.0, 0.0]), np.array([0.8, 0.4])), 4)  # -(ln 0.8 + ln 0.6) / 2
    0.367
    """
    check_scores(labels, scores)
    total = 0.0
    for piece in row_pieces(labels.size):
        losses = log_losses(labels[piece], scores[piece])
        total += float((losses if weights is None else losses * weights[piece]).sum())
    return total / (labels.size if weights is None else float(weights.sum(dtype=np.float64)))


def roc_points(labels: Labels, scores: Probabilities, points: int = 200) -> list[tuple[float, float]]:
    """Return at most `points` points (false positive rate, true positive rate) of the ROC curve, ends included.

    Raises:
        UnmeasurableError: See `auc`.
    """
    check_scores(labels, scores)
    check_classes(labels)
    # Two sorted columns of scores; an order of the rows would be the largest array of a step that has many.
    ordered_scores, ordered_positives = np.sort(scores), np.sort(scores[labels == 1])
    rows, positives = ordered_scores.size, ordered_positives.size

    def predicted_positive(count: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Return so many rows, the highest scores first, and all that score the same as the last of them."""
        lowest = ordered_scores[rows - np.maximum(count, 1)]
        return np.where(count > 0, rows - np.searchsorted(ordered_scores, lowest, side="left"), 0)

    def rates(predicted: npt.NDArray[np.intp]) -> tuple[Floats, Floats]:
        """Return both rates where so many rows are predicted positive, with all that score the same."""
        lowest = ordered_scores[rows - np.maximum(predicted, 1)]
        true_rows = positives - np.searchsorted(ordered_positives, lowest, side="left")
        predicted_true = np.where(predicted > 0, true_rows, 0)
        return (predicted - predicted_true) / (rows - positives), predicted_true / positives

    # Points at equal steps along the curve, not along the scores: otherwise most would be on its steep start. They are
    # searched by halves, so that the curve is not in memory as a whole.
    steps, low, high = np.linspace(0, 2, points), np.zeros(points, np.intp), np.full(points, rows)
    while (low < high).any():
        middle = (low + high) // 2
        is_before = (sum(rates(predicted_positive(middle))) < steps) & (low < high)
        low, high = np.where(is_before, middle + 1, low), np.where(is_before, high, middle)
    predicted_rows = np.unique(predicted_positive(low))
    return [(round(float(x), 5), round(float(y), 5)) for x, y in zip(*rates(predicted_rows), strict=True)]


def score_histogram(scores: Probabilities, bins: int = 40) -> tuple[list[float], list[float]]:
    """Return the edges, shape (bins + 1,), and the share of rows per bin, shape (bins,), sum 1.

    The last bin ends at the 99.5th percentile and holds everything above it, so that a few extremes do not flatten the
    plot. Scores that are (nearly) all equal get bins around them that are wide enough to be drawn.
    """
    low, top = float(scores.min()), float(np.quantile(scores, 0.995))
    if top - low < _MIN_HISTOGRAM_WIDTH:
        low = max(0.0, min((low + top - _MIN_HISTOGRAM_WIDTH) / 2, 1 - _MIN_HISTOGRAM_WIDTH))
        top = low + _MIN_HISTOGRAM_WIDTH
    edges, counts = np.linspace(low, top, bins + 1), np.zeros(bins, np.intp)
    for piece in row_pieces(scores.size):
        counts += np.histogram(np.minimum(scores[piece], top, dtype=np.float64), bins=bins, range=(low, top))[0]
    return edges.round(6).tolist(), (counts / scores.size).round(6).tolist()
