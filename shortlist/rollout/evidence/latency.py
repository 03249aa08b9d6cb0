"""Latency histograms: bounded memory, mergeable, and any limit can be evaluated afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

GROWTH: Final = 1.01
"""Ratio of the widths of two neighbouring buckets: quantiles are exact to 1 %."""
BUCKETS: Final = 2_100
"""Number of buckets; they reach up to 1200 s."""


def bucket_numbers(microseconds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the bucket number of every latency: bucket i is [1.01^i, 1.01^(i + 1)) microseconds."""
    numbers: npt.NDArray[np.int64] = np.floor(np.log(np.clip(microseconds, 1, None)) / np.log(GROWTH)).astype(np.int64)
    numbers[numbers >= BUCKETS] = BUCKETS - 1
    return numbers


def _empty_counts() -> npt.NDArray[np.int64]:
    return np.zeros(BUCKETS, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Latencies:
    """Histogram of latencies: counts per bucket, shape (BUCKETS,)."""

    counts: npt.NDArray[np.int64] = field(default_factory=_empty_counts)

    @classmethod
    def from_milliseconds(cls, milliseconds: npt.NDArray[np.float64]) -> Latencies:
        """Return the histogram of some latencies."""
        numbers = bucket_numbers((milliseconds * 1000).astype(np.int64))
        return cls(np.bincount(numbers, minlength=BUCKETS))

    def __add__(self, addend: Latencies) -> Latencies:
        return Latencies(self.counts + addend.counts)

    @property
    def total(self) -> int:
        """Number of latencies."""
        return int(self.counts.sum())

    def quantile_ms(self, share: float) -> float | None:
        """Return a quantile of the latencies, up to 1 % too high; None when there are none.

        >>> Latencies.from_milliseconds(np.array([1.0, 2.0, 3.0, 100.0])).quantile_ms(0.75)
        3.01...
        """
        if not self.total:
            return None
        number = int(np.searchsorted(self.counts.cumsum(), share * self.total))
        return float(GROWTH ** (number + 1) / 1000)

    def count_slower(self, limit_ms: float) -> int:
        """Return how many latencies certainly exceed a limit: those in the limit's own bucket do not count.

        >>> Latencies.from_milliseconds(np.array([1.0, 2.0, 3.0, 100.0])).count_slower(2.5)
        2
        """
        limit = np.array([int(limit_ms * 1000)])
        return int(self.counts[int(bucket_numbers(limit)[0]) + 1 :].sum())
