"""Events ordered by the value of a key column and by time, to be searched by both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.features.hashing import codes_of

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class OrderedEvents:
    """Where events of a log stand; those whose key is null are left out."""

    codes: Ints
    """Different values of the key column, ascending."""
    _places: Ints
    """Of each event, one number that is ordered by value, then by time."""
    _first: int
    _span: int

    @classmethod
    def of(cls, values: pl.Series, times: Ints) -> tuple[Self, Ints]:
        """Return events in order, and which one of those given each is.

        Args:
            values: The key of every event.
            times: Microseconds since 1970-01-01 UTC; events of one moment and value keep their order.
        """
        known = np.flatnonzero(values.is_not_null().to_numpy())
        first = int(times.min()) if len(times) else 0
        span = int(times.max()) - first + 2 if len(times) else 2
        codes = codes_of(values).fill_null(0).to_numpy()[known]
        different, numbers = np.unique(codes, return_inverse=True)
        places = _places(numbers.astype(np.int64), times[known], first, span)
        order = np.argsort(places, kind="stable")
        return cls(different, places[order], first, span), known[order]

    def numbers(self, values: pl.Series) -> Ints:
        """Return the numbers of values, -1 for those that are null or of no event."""
        if not len(self.codes):
            return np.full(len(values), -1, np.int64)
        codes = codes_of(values).fill_null(0).to_numpy()
        numbers = np.minimum(self.codes.searchsorted(codes), len(self.codes) - 1)
        known = (self.codes[numbers] == codes) & values.is_not_null().to_numpy()
        return np.where(known, numbers, -1)

    def before(self, numbers: Ints, moments: Ints) -> Ints:
        """Return how many events are ordered before the given values at the given times."""
        return self._places.searchsorted(_places(numbers, moments, self._first, self._span))


def _places(numbers: Ints, times: Ints, first: int, span: int) -> Ints:
    return cast(Ints, numbers * span + (times - first).clip(0, span - 1))
