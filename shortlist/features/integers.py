"""Hash tables of Int64 columns: the rows of each value, the id of each value. What is compiled is imported by use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

Ints = npt.NDArray[np.int64]
MANY: Final = 100_000
"""Rows of a part from which on loops are worth loading, which takes 0.4 s of processor time, once in a process."""
LARGE: Final = 50_000_000
"""Values that are counted, from which on they are worth it for that: for 2 M rows of 26 keys a fresh process takes
2.0 s of processor time with them and 2.3 without, and 100 MiB more memory."""
_FEWEST_SLOTS: Final = 1024


def pieces(values: pl.Series) -> Iterator[tuple[Ints, npt.NDArray[np.uint8], int]]:
    """Give each chunk of an Int64 column, uncopied: its numbers, Arrow's validity (empty: no null), its first bit."""
    for chunk in values.get_chunks():
        array = chunk.to_arrow(compat_level=pl.CompatLevel.oldest())
        validity, data = array.buffers()
        numbers = np.frombuffer(data or b"", np.int64)[array.offset : array.offset + len(array)]
        yield numbers, np.frombuffer(validity or b"", np.uint8), array.offset


class ValueCounts:
    """The rows of each value of an integer column."""

    def __init__(self) -> None:
        self._values = np.zeros(_FEWEST_SLOTS, np.int64)
        self._rows = np.zeros(_FEWEST_SLOTS, np.int64)
        self._taken = 0

    def __len__(self) -> int:
        """Return the number of different values."""
        return self._taken

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self._values.nbytes + self._rows.nbytes

    def add(self, values: pl.Series) -> None:
        """Count Int64 values; nulls do not count. Other threads run meanwhile."""
        from shortlist.features.id_kernels import count

        for numbers, validity, offset in pieces(values):
            row = 0
            while True:
                row, self._taken = count(
                    self._values, self._rows, self._taken, numbers, validity, offset, row
                )  # fmt: skip
                if row == len(numbers):
                    break
                self._grow()

    def clear(self) -> None:
        """Forget all values, and keep the memory: to clear it takes less than to get as much anew."""
        self._rows[:] = 0
        self._taken = 0

    def in_order(self) -> tuple[Ints, Ints]:
        """Return the different values in ascending order, and the rows of each."""
        from shortlist.features.id_kernels import in_order

        return in_order(self._values, self._rows, self._taken)

    def reaching(self, values: pl.Series, rows: pl.Series, least: int) -> tuple[Ints, Ints]:
        """Add the rows of each value; return those that came to `least` by it, and their rows so far.

        Args:
            values: Different ones, Int64, none null.
            rows: Above 0, Int64.
            least: Above 0.
        """
        from shortlist.features.id_kernels import reaching

        while self._values.size < slots_for(self._taken + len(values)):
            self._grow()
        found, sums = np.empty(len(values), np.int64), np.empty(len(values), np.int64)
        number, self._taken = reaching(
            self._values, self._rows, self._taken, _numbers(values), _numbers(rows), least, found, sums
        )  # fmt: skip
        return found[:number], sums[:number]

    def _grow(self) -> None:
        from shortlist.features.id_kernels import move

        values, rows = (np.zeros(2 * each.size, np.int64) for each in (self._values, self._rows))
        move(self._values, self._rows, values, rows)
        self._values, self._rows = values, rows


class IdTable:
    """The ids of some integers, 1, 2, 3, ... in their order.

    Args:
        values: Different ones, Int64, none null.
    """

    def __init__(self, values: pl.Series) -> None:
        from shortlist.features.id_kernels import number

        slots = slots_for(len(values))
        self._values, self._ids = np.zeros(slots, np.int64), np.zeros(slots, np.uint32)
        number(self._values, self._ids, _numbers(values))

    def ids(self, values: pl.Series) -> pl.Series:
        """Return UInt32 ids of Int64 values; 0 for null and for values without one. Other threads run meanwhile."""
        from shortlist.features.id_kernels import look_up

        found = np.empty(len(values), np.uint32)
        start = 0
        for numbers, validity, offset in pieces(values):
            look_up(self._values, self._ids, numbers, validity, offset, found[start : start + len(numbers)])
            start += len(numbers)
        return pl.Series(values.name, found)


def slots_for(values: int) -> int:
    """Return the slots of a table for some values: a power of two, twice as many at least."""
    return max(_FEWEST_SLOTS, 1 << (2 * values - 1).bit_length())


def _numbers(values: pl.Series) -> Ints:
    ((numbers, _, _),) = pieces(values.rechunk())
    return numbers
