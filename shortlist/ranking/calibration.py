"""Calibration: fits a monotone map from log-odds to label rates on the validation days."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

from shortlist.contracts import DataError
from shortlist.serving.export.calibration import Calibration

CalibrationMethod = Literal["platt", "isotonic"]

_BINS: Final = 50
_BIN_ROWS: Final = 50
"""Least rows of a bin: fewer measure a rate too inexactly, and bins closer than score differences give steep steps."""


def fit_calibration(method: CalibrationMethod, log_odds: np.ndarray, labels: np.ndarray, model_key: str) -> Calibration:
    """Return the calibration that fits the rows best.

    `platt`: the logistic regression of the labels on the log-odds (Platt, 1999). `isotonic`: rates that rise with the
    score (Zadrozny and Elkan, 2002), of up to 50 bins of equally many rows, interpolated linearly between log-odds;
    a step function would give many rows the same score.

    Args:
        method: `platt` or `isotonic`.
        log_odds: Log-odds or ranking scores of the model, shape (rows,).
        labels: 0 or 1, same shape.
        model_key: Key of the model in the spec, for messages.

    Raises:
        DataError: The labels never vary, or higher scores do not mean more positives.
    """
    positive_rate = float(labels.mean()) if len(labels) else 0.0
    if positive_rate in (0.0, 1.0):
        raise DataError(
            f"{model_key}.calibration: {method}: the label is {int(positive_rate)} on all {len(labels):,} rows of the"
            " validation days; rates cannot be learnt from them. Give more validation days, or declare calibration:"
            " none"
        )
    calibration = _platt(log_odds, labels) if method == "platt" else _isotonic(log_odds, labels)
    if calibration is None:
        raise DataError(
            f"{model_key}.calibration: {method}: on the validation days, higher scores do not mean more positives; the"
            " model learnt nothing that holds there. Train it otherwise, or declare calibration: none"
        )
    return calibration


def _platt(log_odds: np.ndarray, labels: np.ndarray) -> Calibration | None:
    from sklearn.linear_model import LogisticRegression

    # Standardised: a ranking objective's scores may be of any size, and the solver's tolerance is absolute.
    centre, scale = float(log_odds.mean()), float(log_odds.std()) or 1.0
    standard = (log_odds.astype(np.float64) - centre) / scale
    fitted = LogisticRegression(C=np.inf, tol=1e-8, max_iter=1_000).fit(standard[:, None], labels)
    slope = float(fitted.coef_[0, 0]) / scale
    return Calibration(points=(centre,), values=(float(fitted.intercept_[0]),), slope=slope) if slope > 0 else None


def _isotonic(log_odds: np.ndarray, labels: np.ndarray) -> Calibration | None:
    from sklearn.isotonic import IsotonicRegression

    bins = max(1, min(_BINS, len(labels) // _BIN_ROWS))
    # Edges that are scores themselves: equal scores share a bin.
    edges = np.unique(np.quantile(log_odds, np.linspace(0, 1, bins + 1)[1:-1], method="higher"))
    bin_of = np.searchsorted(edges, log_odds, side="right")
    rows = np.bincount(bin_of)
    bin_of, rows = np.unique(bin_of, return_inverse=True)[1], rows[rows > 0]
    points = np.bincount(bin_of, log_odds.astype(np.float64)) / rows
    # One row of the mean rate more: no bin's rate is 0 or 1, whose log-odds are infinite.
    rates = (np.bincount(bin_of, labels) + labels.mean()) / (rows + 1)
    rising = IsotonicRegression().fit_transform(points, rates, sample_weight=rows)
    level = np.unique(rising, return_inverse=True)[1]
    merged = np.bincount(level, points * rows) / np.bincount(level, rows)
    rising = np.unique(rising)
    if len(rising) == 1 and len(rows) > 1:
        return None
    return Calibration(points=tuple(merged.tolist()), values=tuple(np.log(rising / (1 - rising)).tolist()))
