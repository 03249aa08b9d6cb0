"""Finds the rows of keys by binary search in sorted codes."""

from __future__ import annotations

from typing import Self, cast

import numpy as np

from shortlist.serving.server.features.columns import Codes, Rows


class KeyIndex:
    """Index from the code of a key to its row."""

    def __init__(self, codes: Codes) -> None:
        self.codes = codes
        order = np.argsort(codes, kind="stable")
        # One more than there are codes: searches above all codes end there, and compare unequal.
        self._sorted = np.append(codes[order], codes[order[-1:]])
        self._rows: Rows = np.append(order, -1)

    @classmethod
    def empty(cls) -> Self:
        """Return an index without keys."""
        return cls(np.zeros(0, np.int64))

    @property
    def is_unique(self) -> bool:
        """Whether all codes differ."""
        sorted_codes = self._sorted[: len(self.codes)]
        return bool((sorted_codes[1:] != sorted_codes[:-1]).all())

    def rows(self, codes: Codes) -> Rows:
        """Return the row of every code; -1 for unknown ones."""
        if not len(self.codes):
            return np.full(len(codes), -1, np.intp)
        positions = self._sorted[:-1].searchsorted(codes)
        return cast(Rows, np.where(self._sorted.take(positions) == codes, self._rows.take(positions), -1))
