"""Compiled passes of averaged stochastic gradient descent over sparse rows."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from models.logistic.averaged_sgd import INTERCEPT, INTERCEPT_SUM, SCALE, SCALE_SUM, STEPS, SolverState, SparseRows
from shortlist.system.compiled import compiled

_SMALLEST_SCALE = 1e-9
_INTERCEPT_SPEED = 0.01
"""Share of a coefficient's learning rate that the intercept has: every row moves it, but few move a coefficient."""
_RATE = 0.05
"""Learning rate of the first step; it falls with the fourth root of the number of steps."""


@compiled
def train_pass(rows: SparseRows, order: npt.NDArray[np.int64], state: SolverState, l2: float) -> None:
    """Take one step per row, in the given order of rows, with an L2 penalty."""
    starts, columns, values, labels, weights = rows  # unsigned, which need no test for negative indices
    scaled, corrections, sums = state
    scale, scale_sum, steps = sums[SCALE], sums[SCALE_SUM], sums[STEPS]
    intercept, intercept_sum = sums[INTERCEPT], sums[INTERCEPT_SUM]
    for row in order:
        steps += 1
        start, end = np.uint64(starts[row]), np.uint64(starts[row + 1])
        log_odds = 0.0
        for cell in range(start, end):
            log_odds += scaled[columns[cell]] * values[cell]
        log_odds = scale * log_odds + intercept
        eta = _RATE / math.sqrt(math.sqrt(steps))
        step = eta * weights[row] * (labels[row] - 1.0 / (1.0 + math.exp(-log_odds)))
        scale *= max(0.0, 1.0 - eta * l2)
        if scale < _SMALLEST_SCALE:
            for column in range(scaled.shape[0]):
                corrections[column] -= scale_sum * scaled[column]
                scaled[column] *= scale
            scale, scale_sum = 1.0, 0.0
        change = step / scale
        correction = change * scale_sum
        for cell in range(start, end):
            scaled[columns[cell]] += change * values[cell]
            corrections[columns[cell]] += correction * values[cell]
        intercept += step * _INTERCEPT_SPEED
        scale_sum += scale
        intercept_sum += intercept
    sums[SCALE], sums[SCALE_SUM], sums[STEPS] = scale, scale_sum, steps
    sums[INTERCEPT], sums[INTERCEPT_SUM] = intercept, intercept_sum
