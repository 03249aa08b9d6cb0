"""Events ordered by the value of a key column and by time, to be searched by both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.features.values.hashing import codes_of

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class OrderedEvents:
    """Events of a log in order of key value and time; events with a null key are left out."""

    codes: Ints
    """Distinct values of the key column, ascending."""
    _sort_keys: Ints
    """One number per event, ordered by key value, then by time."""
    _first: int
    _span: int

    @classmethod
    def order(cls, values: pl.Series, times: Ints) -> tuple[Self, Ints]:
        """Return events in order, and the index of each among the given ones.

        Args:
            values: Key of every event.
            times: Time of every event, microseconds since 1970-01-01 UTC; events of one time and key keep their order.
        """
        keyed_events = np.flatnonzero(values.is_not_null().to_numpy())
        first = int(times.min()) if len(times) else 0
        span = int(times.max()) - first + 2 if len(times) else 2
        codes = codes_of(values).fill_null(0).to_numpy()[keyed_events]
        distinct_codes, numbers = np.unique(codes, return_inverse=True)
        sort_keys = _make_sort_keys(numbers.astype(np.int64), times[keyed_events], first, span)
        order = np.argsort(sort_keys, kind="stable")
        return cls(distinct_codes, sort_keys[order], first, span), keyed_events[order]

    def numbers(self, values: pl.Series) -> Ints:
        """Return the numbers of key values, -1 for null and for values of no event."""
        if not len(self.codes):
            return np.full(len(values), -1, np.int64)
        codes = codes_of(values).fill_null(0).to_numpy()
        numbers = np.minimum(self.codes.searchsorted(codes), len(self.codes) - 1)
        is_known = (self.codes[numbers] == codes) & values.is_not_null().to_numpy()
        return np.where(is_known, numbers, -1)

    def count_preceding(self, numbers: Ints, moments: Ints) -> Ints:
        """Return how many events are ordered before the given values at the given times."""
        return self._sort_keys.searchsorted(_make_sort_keys(numbers, moments, self._first, self._span))


def _make_sort_keys(numbers: Ints, times: Ints, first: int, span: int) -> Ints:
    return cast(Ints, numbers * span + (times - first).clip(0, span - 1))
