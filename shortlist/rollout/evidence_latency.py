"""Latencies as a histogram: bounded memory, sums of histograms, and any limit can be asked for afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

GROWTH: Final = 1.01
"""Every bucket is this much wider than the one before: quantiles are exact to 1 %."""
BUCKETS: Final = 2_100
"""Up to 1200 s."""


def buckets_of(microseconds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the bucket of every latency: number i holds [1.01^i, 1.01^(i + 1)) microseconds."""
    numbers: npt.NDArray[np.int64] = np.floor(np.log(np.clip(microseconds, 1, None)) / np.log(GROWTH)).astype(np.int64)
    numbers[numbers >= BUCKETS] = BUCKETS - 1
    return numbers


def _none() -> npt.NDArray[np.int64]:
    return np.zeros(BUCKETS, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Latencies:
    """Counts per bucket, shape (BUCKETS,)."""

    counts: npt.NDArray[np.int64] = field(default_factory=_none)

    @classmethod
    def of(cls, milliseconds: npt.NDArray[np.float64]) -> Latencies:
        """Return the histogram of some latencies."""
        numbers = buckets_of((milliseconds * 1000).astype(np.int64))
        return cls(np.bincount(numbers, minlength=BUCKETS))

    def __add__(self, other: Latencies) -> Latencies:
        return Latencies(self.counts + other.counts)

    @property
    def total(self) -> int:
        """How many there are."""
        return int(self.counts.sum())

    def quantile_ms(self, share: float) -> float | None:
        """Return the latency that this share of them does not pass, up to 1 % too high; None when there is none.

        >>> Latencies.of(np.array([1.0, 2.0, 3.0, 100.0])).quantile_ms(0.75)
        3.01...
        """
        if not self.total:
            return None
        number = int(np.searchsorted(self.counts.cumsum(), share * self.total))
        return float(GROWTH ** (number + 1) / 1000)

    def slower_than(self, limit_ms: float) -> int:
        """Return how many passed a limit for certain: those of the limit's own bucket do not count.

        >>> Latencies.of(np.array([1.0, 2.0, 3.0, 100.0])).slower_than(2.5)
        2
        """
        limit = np.array([int(limit_ms * 1000)])
        return int(self.counts[int(buckets_of(limit)[0]) + 1 :].sum())
