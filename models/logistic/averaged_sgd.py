"""Averaged stochastic gradient descent on the log loss of sparse rows."""

from __future__ import annotations

import numpy as np
from scipy import sparse


class AveragedSGD:
    """Logistic regression whose coefficients are the mean of those of all steps (Polyak and Juditsky, 1992).

    A step shrinks all coefficients by the L2 penalty and changes those of its row. Shrinking is a scale of them all,
    and what a step adds would have been counted too often by the sum of the scales so far: both cost only the row's
    cells (Bottou 2012, Stochastic gradient descent tricks, section 5.1; Xu 2011, arXiv 1107.2490).
    """

    def __init__(self, width: int, base_rate: float, l2: float, seed: int) -> None:
        """Create a solver with coefficients of 0.

        Args:
            width: Number of columns.
            base_rate: Share of positives, whose log-odds are the first intercept. The coefficients of ids then only
                learn how their rows differ from the others, so that an id without rows, as of an unknown or missing
                value, scores like the average.
            l2: L2 penalty.
            seed: Seed of the rows' order.
        """
        from models.logistic.sgd_kernels import new_state

        self._l2 = l2
        self._random = np.random.default_rng(seed)
        self._state = new_state(width, float(np.log(base_rate / (1 - base_rate))))

    def learn(self, labels: np.ndarray, rows: sparse.csr_matrix, weights: np.ndarray | None) -> None:
        """Take a step for every row, in random order."""
        from models.logistic.sgd_kernels import SparseRows, train_pass

        starts, columns = (
            places.astype(np.int32, copy=False).view(np.uint32) for places in (rows.indptr, rows.indices)
        )
        weights_of_rows = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
        sparse_rows = SparseRows(starts, columns, rows.data, labels.astype(np.float64), weights_of_rows)
        train_pass(sparse_rows, self._random.permutation(len(labels)), self._state, self._l2)

    def mean_coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean coefficients, shape (columns,), and the mean intercept, shape (1,), float32."""
        from models.logistic.sgd_kernels import mean_of_steps

        coefficients, intercept = mean_of_steps(self._state)
        return coefficients.astype(np.float32), np.array([intercept], np.float32)
