"""Compiled passes of averaged stochastic gradient descent over sparse rows."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shortlist.system.compiled import compiled

_SMALLEST_SCALE = 1e-9
_INTERCEPT_SPEED = 0.01
"""Share of a coefficient's learning rate that the intercept has: every row moves it, but few move a coefficient."""
_RATE = 0.05
"""Learning rate of the first step; it falls with the fourth root of the number of steps."""

_SCALE, _SCALE_SUM, _STEPS, _INTERCEPT, _INTERCEPT_SUM = range(5)
"""Places of `SolverState.sums`."""


class SparseRows(NamedTuple):
    """Rows to learn from, as arrays."""

    starts: npt.NDArray[np.uint32]
    """First cell of each row, shape (rows + 1,)."""
    columns: npt.NDArray[np.uint32]
    """Column of each cell."""
    values: npt.NDArray[np.float32]
    """Value of each cell."""
    labels: npt.NDArray[np.float64]
    """Label of each row, 0 or 1."""
    weights: npt.NDArray[np.float64]
    """Weight of each row."""


class SolverState(NamedTuple):
    """What a solver has learnt, as arrays that a pass changes."""

    scaled: npt.NDArray[np.float64]
    """Coefficients before their common scale, shape (columns,)."""
    corrections: npt.NDArray[np.float64]
    """What the sum of the scales counts too much of each coefficient, shape (columns,)."""
    sums: npt.NDArray[np.float64]
    """Scale, sum of the scales, number of steps, intercept, sum of the intercepts."""


def new_state(width: int, intercept: float) -> SolverState:
    """Return the state of a solver with coefficients of 0."""
    sums = np.zeros(5)
    sums[_SCALE], sums[_INTERCEPT] = 1.0, intercept
    return SolverState(np.zeros(width), np.zeros(width), sums)


def mean_of_steps(state: SolverState) -> tuple[npt.NDArray[np.float64], float]:
    """Return the mean of the coefficients after each step, shape (columns,), and of the intercept."""
    steps = state.sums[_STEPS]
    coefficients = (state.sums[_SCALE_SUM] * state.scaled - state.corrections) / steps
    return coefficients, float(state.sums[_INTERCEPT_SUM] / steps)


@compiled
def train_pass(rows: SparseRows, order: npt.NDArray[np.int64], state: SolverState, l2: float) -> None:
    """Take one step per row, in the given order of rows, with an L2 penalty."""
    starts, columns, values, labels, weights = rows  # unsigned, which need no test for negative indices
    scaled, corrections, sums = state
    scale, scale_sum, steps = sums[_SCALE], sums[_SCALE_SUM], sums[_STEPS]
    intercept, intercept_sum = sums[_INTERCEPT], sums[_INTERCEPT_SUM]
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
    sums[_SCALE], sums[_SCALE_SUM], sums[_STEPS] = scale, scale_sum, steps
    sums[_INTERCEPT], sums[_INTERCEPT_SUM] = intercept, intercept_sum
