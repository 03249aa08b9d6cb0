"""Hash tables of Int64 columns: the rows of each value, the id of each value. Compiled loops load on first use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

Ints = npt.NDArray[np.int64]
COMPILED_MIN_ROWS: Final = 100_000
"""Rows of a part from which compiled loops pay: loading them takes 0.4 s of processor time, once in a process."""
COMPILED_MIN_VALUES: Final = 50_000_000
"""Counted values from which compiled counting pays: for 2 M rows of 26 keys a fresh process takes 2.0 s of processor
time with compiled loops and 2.3 s without, and 100 MiB more memory."""
_MIN_SLOTS: Final = 1024


def arrow_chunks(values: pl.Series) -> Iterator[tuple[Ints, npt.NDArray[np.uint8], int]]:
    """Yield each chunk of an Int64 column, uncopied: its numbers, Arrow's validity (empty: no null), its first bit."""
    for chunk in values.get_chunks():
        array = chunk.to_arrow(compat_level=pl.CompatLevel.oldest())
        validity, value_buffer = array.buffers()
        numbers = np.frombuffer(value_buffer or b"", np.int64)[array.offset : array.offset + len(array)]
        yield numbers, np.frombuffer(validity or b"", np.uint8), array.offset


class ValueCounts:
    """The rows of each value of an integer column."""

    def __init__(self) -> None:
        self._values = np.zeros(_MIN_SLOTS, np.int64)
        self._rows = np.zeros(_MIN_SLOTS, np.int64)
        self._used_slots = 0

    def __len__(self) -> int:
        """Return the number of different values."""
        return self._used_slots

    @property
    def nbytes(self) -> int:
        """Memory of the table."""
        return self._values.nbytes + self._rows.nbytes

    def add(self, values: pl.Series) -> None:
        """Count Int64 values; nulls do not count. Other threads run meanwhile."""
        from shortlist.features.values.id_kernels import count

        for numbers, validity, offset in arrow_chunks(values):
            row = 0
            while True:
                row, self._used_slots = count(
                    self._values, self._rows, self._used_slots, numbers, validity, offset, row
                )  # fmt: skip
                if row == len(numbers):
                    break
                self._grow()

    def clear(self) -> None:
        """Remove all values and keep the memory, which is faster than allocating it again."""
        self._rows[:] = 0
        self._used_slots = 0

    def in_order(self) -> tuple[Ints, Ints]:
        """Return the different values in ascending order, and the rows of each."""
        from shortlist.features.values.id_kernels import in_order

        return in_order(self._values, self._rows, self._used_slots)

    def add_counts(self, values: pl.Series, rows: pl.Series, min_count: int) -> tuple[Ints, Ints]:
        """Add the rows of each value; return the values that reached `min_count` by it, and their rows so far.

        Args:
            values: Distinct values, Int64, none null.
            rows: Rows of each value, above 0, Int64.
            min_count: Rows to reach, above 0.
        """
        from shortlist.features.values.id_kernels import add_counts

        while self._values.size < slots_for(self._used_slots + len(values)):
            self._grow()
        reached_values, sums = np.empty(len(values), np.int64), np.empty(len(values), np.int64)
        number, self._used_slots = add_counts(
            self._values, self._rows, self._used_slots, _as_numpy(values), _as_numpy(rows), min_count,
            reached_values, sums,
        )  # fmt: skip
        return reached_values[:number], sums[:number]

    def _grow(self) -> None:
        from shortlist.features.values.id_kernels import move

        values, rows = (np.zeros(2 * array.size, np.int64) for array in (self._values, self._rows))
        move(self._values, self._rows, values, rows)
        self._values, self._rows = values, rows


class IdTable:
    """The ids of some integers, 1, 2, 3, ... in their order.

    Args:
        values: Distinct values, Int64, none null.
    """

    def __init__(self, values: pl.Series) -> None:
        from shortlist.features.values.id_kernels import number_values

        slots = slots_for(len(values))
        self._values, self._ids = np.zeros(slots, np.int64), np.zeros(slots, np.uint32)
        number_values(self._values, self._ids, _as_numpy(values))

    def ids(self, values: pl.Series) -> pl.Series:
        """Return UInt32 ids of Int64 values; 0 for null and for values without one. Other threads run meanwhile."""
        from shortlist.features.values.id_kernels import look_up

        ids = np.empty(len(values), np.uint32)
        start = 0
        for numbers, validity, offset in arrow_chunks(values):
            look_up(self._values, self._ids, numbers, validity, offset, ids[start : start + len(numbers)])
            start += len(numbers)
        return pl.Series(values.name, ids)


def slots_for(values: int) -> int:
    """Return the slots of a table for some values: a power of two, twice as many at least."""
    return max(_MIN_SLOTS, 1 << (2 * values - 1).bit_length())


def _as_numpy(values: pl.Series) -> Ints:
    ((numbers, _, _),) = arrow_chunks(values.rechunk())
    return numbers
