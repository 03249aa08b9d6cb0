"""Where the row of a key is: its place among sorted codes."""

from __future__ import annotations

from typing import Self, cast

import numpy as np

from shortlist.serving.server.columns import Codes, Rows


class KeyIndex:
    """Codes of keys, each once, in the order of the rows."""

    def __init__(self, codes: Codes) -> None:
        self.codes = codes
        order = np.argsort(codes, kind="stable")
        # One place more than there are codes: whatever lies above all of them is found there, and is another code.
        self._sorted = np.append(codes[order], codes[order[-1:]])
        self._rows: Rows = np.append(order, -1)

    @classmethod
    def empty(cls) -> Self:
        """Return one that knows no key."""
        return cls(np.zeros(0, np.int64))

    @property
    def is_unique(self) -> bool:
        """Whether every code is there once."""
        known = self._sorted[: len(self.codes)]
        return bool((known[1:] != known[:-1]).all())

    def rows(self, codes: Codes) -> Rows:
        """Return the row of every code; -1 for unknown ones."""
        if not len(self.codes):
            return np.full(len(codes), -1, np.intp)
        places = self._sorted[:-1].searchsorted(codes)
        return cast(Rows, np.where(self._sorted.take(places) == codes, self._rows.take(places), -1))
