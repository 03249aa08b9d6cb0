"""Compiled hash tables of integers, each with a number above 0: some nanoseconds per value.

A table is two arrays of the same length, a power of two: the values (Int64), and their numbers, of which 0 marks a free
slot. At most half of the slots are used. A value lies in the first free slot from its hash on. Slots are counted by
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
_UINT64_ONE = np.uint64(1)
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
        slot = (slot + _UINT64_ONE) & last
    return slot


@compiled
def _is_null(validity: Bits, row: int) -> bool:
    return validity.shape[0] != 0 and not (validity[np.uint64(row) >> np.uint64(3)] >> np.uint8(row & 7)) & 1


@compiled
def count(
    keys: Ints, rows: Ints, used_slots: int, values: Ints, validity: Bits, offset: int, first: int
) -> tuple[int, int]:  # fmt: skip
    """Add the rows of each value to a table, until all are added or it is full.

    Args:
        keys: Keys of the table; changed.
        rows: Rows of each key; changed.
        used_slots: Slots that are used.
        values: Shape (rows,); those that are null count nowhere.
        validity: Validity bits of the values.
        offset: Number of the first validity bit.
        first: Row to begin with.

    Returns:
        The row to go on with in a larger table, or the number of rows; and how many slots are used now.
    """
    shift = _shift(keys.shape[0])
    max_used_slots = keys.shape[0] // 2
    for row in range(first, values.shape[0]):
        if _is_null(validity, offset + row):
            continue
        slot = _slot(keys, rows, shift, values[row])
        if rows[slot] == 0:
            if used_slots == max_used_slots:
                return row, used_slots
            used_slots += 1
            keys[slot] = values[row]
        rows[slot] += 1
    return values.shape[0], used_slots


@compiled
def add_counts(
    keys: Ints, sums: Ints, used_slots: int, values: Ints, counts: Ints, min_count: int, reached: Ints,
    reached_sums: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Add counts to the sums of a table; return which values reached `min_count` by it.

    Args:
        keys: Keys of the table, with room for all values; changed.
        sums: Sum of each key; changed.
        used_slots: Slots that are used.
        values: Distinct values, shape (count,).
        counts: Counts to add, above 0, shape (count,).
        min_count: Sum to reach, above 0.
        reached: Output: the values that reached it, shape (count,).
        reached_sums: Output: their sums, shape (count,).

    Returns:
        How many values reached it; and how many slots are used now.
    """
    shift = _shift(keys.shape[0])
    reached_count = 0
    for index in range(values.shape[0]):
        slot = _slot(keys, sums, shift, values[index])
        previous_sum = sums[slot]
        used_slots += previous_sum == 0
        keys[slot] = values[index]
        sums[slot] = previous_sum + counts[index]
        if previous_sum < min_count and sums[slot] >= min_count:
            reached[reached_count] = values[index]
            reached_sums[reached_count] = sums[slot]
            reached_count += 1
    return reached_count, used_slots


@compiled
def move(keys: Ints, rows: Ints, larger_keys: Ints, larger_rows: Ints) -> None:
    """Copy the keys and rows of a table into a larger one, which is empty."""
    shift = _shift(larger_keys.shape[0])
    for old_slot in range(keys.shape[0]):
        if rows[old_slot] != 0:
            slot = _slot(larger_keys, larger_rows, shift, keys[old_slot])
            larger_keys[slot] = keys[old_slot]
            larger_rows[slot] = rows[old_slot]


@compiled
def in_order(keys: Ints, rows: Ints, used_slots: int) -> tuple[Ints, Ints]:
    """Return the values of a table in ascending order, and their counts.

    Sorted by digits of 11 bits, as many as the values differ in: half the time of numpy's sort of the values alone.
    """
    values, counts = np.empty(used_slots, np.int64), np.empty(used_slots, np.int64)
    position = 0
    for slot in range(keys.shape[0]):
        if rows[slot] != 0:
            values[position], counts[position] = keys[slot], rows[slot]
            position += 1
    if used_slots == 0:
        return values, counts
    low = values.min()
    span = np.uint64(values.max()) - np.uint64(low)
    next_values, next_counts = np.empty_like(values), np.empty_like(counts)
    shift = np.uint64(0)
    while shift < _WIDTH and span >> shift != 0:
        ends = np.zeros(_DIGITS + 1, np.int64)
        for index in range(used_slots):
            ends[_digit(values[index], low, shift) + _UINT64_ONE] += 1
        for digit_value in range(_DIGITS):
            ends[digit_value + 1] += ends[digit_value]
        for index in range(used_slots):
            digit = _digit(values[index], low, shift)
            target = np.uint64(ends[digit])
            ends[digit] += 1
            next_values[target], next_counts[target] = values[index], counts[index]
        values, next_values = next_values, values
        counts, next_counts = next_counts, counts
        shift += _DIGIT_BITS
    return values, counts


@compiled
def _digit(value: int, low: int, shift: np.uint64) -> np.uint64:
    return ((np.uint64(value) - np.uint64(low)) >> shift) & np.uint64(_DIGITS - 1)


@compiled
def number_values(keys: Ints, ids: Ids, values: Ints) -> None:
    """Assign the ids 1, 2, 3, ... to distinct values in their order, in an empty table with room for them."""
    shift = _shift(keys.shape[0])
    for index in range(values.shape[0]):
        slot = _slot(keys, ids, shift, values[index])
        keys[slot] = values[index]
        ids[slot] = index + 1


@compiled
def look_up(keys: Ints, ids: Ids, values: Ints, validity: Bits, offset: int, out_ids: Ids) -> None:
    """Write the id of each value into `out_ids`: 0 for a null, and for a value without one.

    Args:
        keys: Keys of the table.
        ids: Id of each key.
        values: Shape (rows,).
        validity: Validity bits of the values.
        offset: Number of the first validity bit.
        out_ids: Output: the ids, shape (rows,).
    """
    shift = _shift(keys.shape[0])
    for row in range(values.shape[0]):
        out_ids[row] = 0 if _is_null(validity, offset + row) else ids[_slot(keys, ids, shift, values[row])]


@compiled
def look_up_numbers(
    values: Ints, validity: Bits, offset: int, first: int, table: npt.NDArray[np.float32], null_number: float,
    out_numbers: npt.NDArray[np.float32], unmatched_rows: Ints,
) -> int:  # fmt: skip
    """Write the table's number for each value into `out_numbers`; report the rows whose value is not in the table.

    Args:
        values: Shape (rows,).
        validity: Validity bits of the values.
        offset: Number of the first validity bit.
        first: The integer of the table's first number; the others follow one by one.
        table: Numbers of consecutive integers, shape (integers,).
        null_number: Number of a null.
        out_numbers: Output: the numbers, shape (rows,).
        unmatched_rows: Output: the rows that are left out, shape (rows,).

    Returns:
        The number of rows that are left out.
    """
    unmatched_count = 0
    for row in range(values.shape[0]):
        table_index = np.uint64(values[row]) - np.uint64(first)
        if _is_null(validity, offset + row):
            out_numbers[row] = null_number
        elif table_index < np.uint64(table.shape[0]):
            out_numbers[row] = table[table_index]
        else:
            unmatched_rows[unmatched_count] = row
            unmatched_count += 1
    return unmatched_count
