"""Diversity of a slate: maximal marginal relevance, and determinantal point processes."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import numpy as np
from pydantic import Field

from shortlist.ordering.base import Diversity, Likeness
from shortlist.system.registry import Registry

Weight = Annotated[float, Field(gt=0, lt=1)]


class MaximalMarginalRelevance(Diversity):
    """Value against the likeness to the most alike candidate above (Carbonell and Goldstein, 1998)."""

    kind: Literal["mmr"]
    """Maximal marginal relevance."""
    weight: Weight = 0.3
    """Of likeness: `(1 - weight) * value - weight * likeness`, values scaled to 0..1 within the request."""

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
    def now(self) -> np.ndarray:
        return self._relevance - self._weight * self._nearest

    def add(self, row: int) -> None:
        np.maximum(self._nearest, self._likeness.to(row), out=self._nearest)


class DeterminantalPointProcess(Diversity):
    """The most probable set under `L = diag(q) S diag(q)`, found greedily (Chen, Zhang and Zhou, 2018)."""

    kind: Literal["dpp"]
    """Determinantal point process."""
    weight: Weight = 0.3
    """Of diversity: `q = exp((1 - weight) / (2 * weight) * value)`, values scaled to 0..1 within the request."""

    def utilities(self, likeness: Likeness, values: np.ndarray) -> _LogDeterminant:
        """Return the logarithms by which the determinant grows."""
        quality = (1.0 - self.weight) / (2.0 * self.weight) * _scaled(values)
        return _LogDeterminant(likeness, quality)


class _LogDeterminant:
    """Growth of log det of the placed candidates' kernel, by an incremental Cholesky factor: O(n k) for each place."""

    def __init__(self, likeness: Likeness, log_quality: np.ndarray) -> None:
        self._likeness = likeness
        self._log_quality = log_quality
        # Of the likeness alone: quality multiplies a determinant, and so adds to its logarithm.
        self._left = np.ones_like(log_quality)
        self._factors = np.empty((0, len(log_quality)))

    @property
    def now(self) -> np.ndarray:
        grown: np.ndarray = 2.0 * self._log_quality + np.log(np.maximum(self._left, _NOTHING_NEW))
        return grown

    def add(self, row: int) -> None:
        left = np.sqrt(max(self._left[row], _NOTHING_NEW))
        factor = (self._likeness.to(row) - self._factors[:, row] @ self._factors) / left
        self._factors = np.vstack([self._factors, factor])
        self._left = np.maximum(self._left - factor**2, 0.0)


_NOTHING_NEW: Final = 1e-10
"""What a candidate that is like those above adds; keeps its logarithm finite."""


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
"""By kind; a new kind is a class and a line here."""
