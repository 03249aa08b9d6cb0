"""Mean and deviation of numbers, merged day by day."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl


@dataclass(frozen=True)
class NumberMoments:
    """Rows, mean, and sum of squared distances from it."""

    rows: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def from_values(cls, values: pl.Series) -> NumberMoments:
        """Return the moments of Float64 values; nulls do not count."""
        numbers = values.drop_nulls().to_numpy()
        if not numbers.size:
            return cls()
        mean = float(numbers.mean())
        return cls(int(numbers.size), mean, float(np.square(numbers - mean).sum()))

    def __add__(self, addend: NumberMoments) -> NumberMoments:
        """Return the moments of both together (Chan, Golub and LeVeque, 1979)."""
        rows = self.rows + addend.rows
        if not rows:
            return self
        mean_difference = addend.mean - self.mean
        mean = self.mean + mean_difference * addend.rows / rows
        return NumberMoments(
            rows,
            mean,
            self.squares + addend.squares + mean_difference * mean_difference * self.rows * addend.rows / rows,
        )

    @property
    def deviation(self) -> float:
        """Standard deviation; 1 for a constant, so that dividing by it changes nothing."""
        return math.sqrt(self.squares / self.rows) if self.squares > 0 else 1.0


def sum_moments(parts: Iterable[NumberMoments]) -> NumberMoments:
    """Return the moments of all parts together, added in the order given."""
    return sum(parts, NumberMoments())
