"""Where the row of a key is: a hash table of codes."""

from __future__ import annotations

from typing import Self, cast

import numpy as np
from pandas._libs.hashtable import Int64HashTable

from shortlist.serving.online.columns import Codes, Rows


class KeyIndex:
    """Codes of keys, each once, in the order of the rows.

    It is the table inside `pandas.Index`: around each look-up, `get_indexer` spends several times as long on checks
    of what is known here, and more where other programs have had the processor's caches meanwhile.
    """

    def __init__(self, codes: Codes) -> None:
        self.codes = codes
        self._table = Int64HashTable(len(codes))
        self._table.map_locations(np.ascontiguousarray(codes))

    @classmethod
    def empty(cls) -> Self:
        """Return one that knows no key."""
        return cls(np.zeros(0, np.int64))

    @property
    def is_unique(self) -> bool:
        """Whether every code is there once."""
        return len(self._table) == len(self.codes)

    def rows(self, codes: Codes) -> Rows:
        """Return the row of every code; -1 for unknown ones."""
        return cast(Rows, self._table.lookup(np.ascontiguousarray(codes)))
