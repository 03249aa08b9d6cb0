"""Occupancy of the buckets of hashed features, and their estimated collision rate."""

from __future__ import annotations

import math
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field

_FULL: Final = 0.95


class HashCollisions(BaseModel):
    """Occupancy of the buckets of a hashed feature on the training days, without the bucket of null."""

    model_config = ConfigDict(frozen=True)

    buckets: int = Field(ge=1)
    """Number of buckets."""
    occupied: int = Field(ge=0)
    """Buckets with at least one value."""
    admitted: int = Field(ge=0)
    """Occupied buckets whose embedding learnt; see `admit_after` of a hashed feature."""
    values: float | None = Field(ge=0)
    """Estimated distinct values; null when every bucket is occupied, where no estimate exists."""
    collision_rate: float | None = Field(ge=0, le=1)
    """Estimated share of values without a bucket of their own: 1 - occupied / values."""

    @classmethod
    def from_counts(cls, buckets: int, occupied: int, admitted: int) -> Self:
        """Return the occupancy and the estimates, by counted buckets."""
        values = distinct_values(buckets, occupied)
        rate = None if values is None else max(0.0, 1 - occupied / values) if occupied else 0.0
        return cls(buckets=buckets, occupied=occupied, admitted=admitted, values=values, collision_rate=rate)

    def warning(self, feature: str) -> str | None:
        """Return a warning when at least 95 % of the buckets are occupied; else None."""
        if self.occupied < _FULL * self.buckets:
            return None
        shared = "" if self.collision_rate is None else f", about {self.collision_rate:.0%} of its values share one"
        return (
            f"{feature}: its table is full: {self.occupied:,} of {self.buckets:,} buckets are occupied{shared}."
            " Declare more buckets, or a vocabulary with min_rows."
        )


def distinct_values(buckets: int, occupied: int) -> float | None:
    """Return the estimated number of distinct values by occupied buckets; None when all are occupied.

    Linear counting (Whang, Vander-Zanden and Taylor, 1990): of n values, each in one of m buckets at random, a bucket
    stays empty with probability (1 - 1/m)^n.

    >>> round(distinct_values(buckets=1_000, occupied=632), 1)  # 1 - 1/e of them: as many values as buckets
    999.2
    """
    if occupied == buckets:
        return None
    return math.log1p(-occupied / buckets) / math.log1p(-1 / buckets) if occupied else 0.0
