"""Lists of different lengths, one per row, in flat arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Ragged:
    """A list of fused rows per row; row i's are `values[starts[i]:ends[i]]`."""

    values: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    @classmethod
    def packed(cls, values: np.ndarray, edges: np.ndarray) -> Ragged:
        """Return lists that follow one another; `edges`, shape (rows + 1,), is where they begin and end."""
        return cls(values, edges[:-1], edges[1:])

    def taken(self, order: np.ndarray) -> Ragged:
        """Return the lists in another order, one after the other."""
        firsts = self.starts[order]
        lengths = self.ends[order] - firsts
        edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        source = np.repeat(firsts - edges[:-1], lengths) + np.arange(edges[-1])
        return Ragged.packed(self.values[source], edges)

    def sliced(self, first: int, last: int) -> Ragged:
        """Return the lists of some neighbouring rows."""
        return Ragged(self.values, self.starts[first:last], self.ends[first:last])

    @property
    def in_a_row(self) -> np.ndarray:
        """The ids of all lists, which must follow one another in memory."""
        return self.values[self.starts[0] : self.ends[-1]] if len(self.starts) else self.values[:0]
