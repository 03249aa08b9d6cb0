"""Diversity of a slate: maximal marginal relevance, and determinantal point processes."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import numpy as np
from pydantic import Field

from shortlist.slates.ordering.base import Diversity, Likeness
from shortlist.system.registry import Registry

Weight = Annotated[float, Field(gt=0, lt=1)]


class MaximalMarginalRelevance(Diversity):
    """Value minus likeness to the most similar candidate above (Carbonell and Goldstein, 1998)."""

    kind: Literal["mmr"]
    """Maximal marginal relevance."""
    weight: Weight = 0.3
    """Weight of likeness: `(1 - weight) * value - weight * likeness`, values scaled to 0..1 within the request."""

    def utilities(self, likeness: Likeness, values: np.ndarray) -> _MarginalRelevance:
        """Return the weighted values."""
        return _MarginalRelevance(likeness, _scaled(values), self.weight)


class _MarginalRelevance:
    def __init__(self, likeness: Likeness, values: np.ndarray, weight: float) -> None:
        self._likeness = likeness
        self._relevance = (1.0 - weight) * values
        self._weight = weight
        self._nearest = np.zeros_like(values)

    @property
    def marginal(self) -> np.ndarray:
        return self._relevance - self._weight * self._nearest

    def add(self, row: int) -> None:
        np.maximum(self._nearest, self._likeness.similarities(row), out=self._nearest)


class DeterminantalPointProcess(Diversity):
    """The most probable set under `L = diag(q) S diag(q)`, found greedily (Chen, Zhang and Zhou, 2018)."""

    kind: Literal["dpp"]
    """Determinantal point process."""
    weight: Weight = 0.3
    """Weight of diversity: `q = exp((1 - weight) / (2 * weight) * value)`, values scaled to 0..1 within the request."""

    def utilities(self, likeness: Likeness, values: np.ndarray) -> _LogDeterminant:
        """Return the growth of the logarithm of the determinant per candidate."""
        quality = (1.0 - self.weight) / (2.0 * self.weight) * _scaled(values)
        return _LogDeterminant(likeness, quality)


class _LogDeterminant:
    """Growth of log det of the placed candidates' kernel, by an incremental Cholesky factor: O(n k) for each place."""

    def __init__(self, likeness: Likeness, log_quality: np.ndarray) -> None:
        self._likeness = likeness
        self._log_quality = log_quality
        # Determinant of the likeness alone: quality is a factor of the determinant, so its logarithm is added.
        self._residuals = np.ones_like(log_quality)
        self._factors = np.empty((0, len(log_quality)))

    @property
    def marginal(self) -> np.ndarray:
        growth: np.ndarray = 2.0 * self._log_quality + np.log(np.maximum(self._residuals, _MIN_RESIDUAL))
        return growth

    def add(self, row: int) -> None:
        residual_root = np.sqrt(max(self._residuals[row], _MIN_RESIDUAL))
        factor = (self._likeness.similarities(row) - self._factors[:, row] @ self._factors) / residual_root
        self._factors = np.vstack([self._factors, factor])
        self._residuals = np.maximum(self._residuals - factor**2, 0.0)


_MIN_RESIDUAL: Final = 1e-10
"""Least residual of a candidate that equals one above; keeps its logarithm finite."""


def _scaled(values: np.ndarray) -> np.ndarray:
    low, high = values.min(), values.max()
    scaled: np.ndarray = (values - low) / (high - low) if high > low else np.zeros_like(values)
    return scaled


DIVERSITIES: Final = Registry[type[Diversity]](
    "diversities",
    {
        "mmr": MaximalMarginalRelevance,
        "dpp": DeterminantalPointProcess,
    },
)
"""Diversity classes by kind; a new kind is a class and a line here."""
