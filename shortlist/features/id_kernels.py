"""Hash tables of integers, each with a number above 0, as loops over arrays: some nanoseconds per value.

A table is two arrays of the same length, a power of two: the values (Int64), and their numbers, of which 0 marks a free
slot. At most half of the slots are taken. A value lies in the first free slot from its hash on. Slots are counted by
unsigned integers, which need no test for negative indices: that alone makes the loops three times as fast.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shortlist.system.compiled import compiled

Ints = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]
"""Arrow's validity, a bit per row; empty where no row is null."""
Ids = npt.NDArray[np.uint32]

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: the upper bits of multiples lie apart (Knuth, volume 3, 6.4)."""
_WIDTH = np.uint64(64)
_ONE = np.uint64(1)
_DIGIT_BITS = np.uint64(11)
_DIGITS = 1 << 11


@compiled
def _shift(slots: int) -> np.uint64:
    """Return by how many bits a 64-bit hash is shifted to be the number of a slot."""
    bits = 0
    while slots > 1:
        slots >>= 1
        bits += 1
    return _WIDTH - np.uint64(bits)


@compiled
def _slot(keys: Ints, numbers: npt.NDArray[Any], shift: np.uint64, value: int) -> np.uint64:
    """Return the slot of a value, or the free one where it belongs."""
    slot = (np.uint64(value) * _FACTOR) >> shift
    last = np.uint64(keys.shape[0] - 1)
    while keys[slot] != value and numbers[slot] != 0:
        slot = (slot + _ONE) & last
    return slot


@compiled
def _is_null(validity: Bits, place: int) -> bool:
    return validity.shape[0] != 0 and not (validity[np.uint64(place) >> np.uint64(3)] >> np.uint8(place & 7)) & 1


@compiled
def count(
    keys: Ints, rows: Ints, taken: int, values: Ints, validity: Bits, offset: int, first: int
) -> tuple[int, int]:  # fmt: skip
    """Add the rows of each value to a table, until all are added or it is full.

    Args:
        keys: Of the table, changed.
        rows: Likewise.
        taken: Slots that are taken.
        values: Shape (rows,); those that are null count nowhere.
        validity: Of the values.
        offset: Number of their first bit.
        first: Row to begin with.

    Returns:
        The row to go on with in a larger table, or the number of rows; and how many slots are taken now.
    """
    shift = _shift(keys.shape[0])
    most = keys.shape[0] // 2
    for row in range(first, values.shape[0]):
        if _is_null(validity, offset + row):
            continue
        slot = _slot(keys, rows, shift, values[row])
        if rows[slot] == 0:
            if taken == most:
                return row, taken
            taken += 1
            keys[slot] = values[row]
        rows[slot] += 1
    return values.shape[0], taken


@compiled
def reaching(
    keys: Ints, sums: Ints, taken: int, values: Ints, counts: Ints, least: int, reached: Ints, reached_sums: Ints
) -> tuple[int, int]:  # fmt: skip
    """Add counts to the sums of a table; tell which values came to `least` by it.

    Args:
        keys: Of the table, with room for all values, changed.
        sums: Likewise.
        taken: Slots that are taken.
        values: Different ones, shape (count,).
        counts: Above 0, shape (count,).
        least: Above 0.
        reached: Those values are written here, shape (count,).
        reached_sums: And their sums here.

    Returns:
        How many there are; and how many slots are taken now.
    """
    shift = _shift(keys.shape[0])
    found = 0
    for place in range(values.shape[0]):
        slot = _slot(keys, sums, shift, values[place])
        before = sums[slot]
        taken += before == 0
        keys[slot] = values[place]
        sums[slot] = before + counts[place]
        if before < least and sums[slot] >= least:
            reached[found] = values[place]
            reached_sums[found] = sums[slot]
            found += 1
    return found, taken


@compiled
def move(keys: Ints, rows: Ints, larger_keys: Ints, larger_rows: Ints) -> None:
    """Put what a table holds into a larger one, which is empty."""
    shift = _shift(larger_keys.shape[0])
    for old in range(keys.shape[0]):
        if rows[old] != 0:
            slot = _slot(larger_keys, larger_rows, shift, keys[old])
            larger_keys[slot] = keys[old]
            larger_rows[slot] = rows[old]


@compiled
def in_order(keys: Ints, rows: Ints, taken: int) -> tuple[Ints, Ints]:
    """Return the values of a table in ascending order, and their numbers.

    Sorted by digits of 11 bits, as many as the values differ in: half the time of numpy's sort of the values alone.
    """
    values, counts = np.empty(taken, np.int64), np.empty(taken, np.int64)
    at = 0
    for slot in range(keys.shape[0]):
        if rows[slot] != 0:
            values[at], counts[at] = keys[slot], rows[slot]
            at += 1
    if taken == 0:
        return values, counts
    low = values.min()
    span = np.uint64(values.max()) - np.uint64(low)
    next_values, next_counts = np.empty_like(values), np.empty_like(counts)
    shift = np.uint64(0)
    while shift < _WIDTH and span >> shift != 0:
        ends = np.zeros(_DIGITS + 1, np.int64)
        for place in range(taken):
            ends[_digit(values[place], low, shift) + _ONE] += 1
        for before in range(_DIGITS):
            ends[before + 1] += ends[before]
        for place in range(taken):
            digit = _digit(values[place], low, shift)
            to = np.uint64(ends[digit])
            ends[digit] += 1
            next_values[to], next_counts[to] = values[place], counts[place]
        values, next_values = next_values, values
        counts, next_counts = next_counts, counts
        shift += _DIGIT_BITS
    return values, counts


@compiled
def _digit(value: int, low: int, shift: np.uint64) -> np.uint64:
    return ((np.uint64(value) - np.uint64(low)) >> shift) & np.uint64(_DIGITS - 1)


@compiled
def number(keys: Ints, ids: Ids, values: Ints) -> None:
    """Give different values the ids 1, 2, 3, ... in their order, in an empty table with room for them."""
    shift = _shift(keys.shape[0])
    for place in range(values.shape[0]):
        slot = _slot(keys, ids, shift, values[place])
        keys[slot] = values[place]
        ids[slot] = place + 1


@compiled
def look_up(keys: Ints, ids: Ids, values: Ints, validity: Bits, offset: int, found: Ids) -> None:
    """Write the id of each value into `found`: 0 for a null, and for a value without one.

    Args:
        keys: Of the table.
        ids: Likewise.
        values: Shape (rows,).
        validity: Of the values.
        offset: Number of their first bit.
        found: Shape (rows,).
    """
    shift = _shift(keys.shape[0])
    for row in range(values.shape[0]):
        found[row] = 0 if _is_null(validity, offset + row) else ids[_slot(keys, ids, shift, values[row])]


@compiled
def tabulated(
    values: Ints, validity: Bits, offset: int, first: int, table: npt.NDArray[np.float32], of_null: float,
    found: npt.NDArray[np.float32], others: Ints,
) -> int:  # fmt: skip
    """Write what a table has for each value into `found`; tell which rows have a value that is not in it.

    Args:
        values: Shape (rows,).
        validity: Of the values.
        offset: Number of their first bit.
        first: The value of the table's first entry; those after it follow one by one.
        table: Shape (entries,).
        of_null: What a null gives.
        found: Shape (rows,).
        others: The rows that are left out are written here, shape (rows,).

    Returns:
        How many these are.
    """
    left_out = 0
    for row in range(values.shape[0]):
        entry = np.uint64(values[row]) - np.uint64(first)
        if _is_null(validity, offset + row):
            found[row] = of_null
        elif entry < np.uint64(table.shape[0]):
            found[row] = table[entry]
        else:
            others[left_out] = row
            left_out += 1
    return left_out
