"""The compiled hash of ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shortlist.system.compiled import compiled

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)


@compiled
def hash_rows(
    ids: npt.NDArray[Any], columns: npt.NDArray[np.uint64], buckets: np.uint64, hashed: npt.NDArray[np.int32]
) -> None:
    """Fill the hash buckets of ids, of shape (rows, columns); they depend on the column too (SplitMix64, Steele 2014).

    Args:
        ids: Integers.
        columns: Number of each column.
        buckets: Number of buckets.
        hashed: To fill.
    """
    for row in range(ids.shape[0]):
        for column in range(ids.shape[1]):
            mixed = np.uint64(ids[row, column]) + (columns[column] + np.uint64(1)) * _STEP
            mixed = (mixed ^ (mixed >> _SHIFTS[0])) * _FACTORS[0]
            mixed = (mixed ^ (mixed >> _SHIFTS[1])) * _FACTORS[1]
            hashed[row, column] = (mixed ^ (mixed >> _SHIFTS[2])) % buckets
