"""A random sample of whole groups of rows, from a stream of rows that may not fit into memory."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

_SLACK = 4
"""Most rows in memory, as a multiple of the sample; then the sample is shrunk."""


class GroupSample:
    """All rows of the groups with the smallest keys, as many groups as fit; keys are hashes, so the choice is random.

    The same rows give the same sample, however they are split into pieces. A group larger than the sample is cut when
    it is the only one.
    """

    def __init__(
        self, key: str, max_rows: int, tidy: Callable[[pl.DataFrame], pl.DataFrame] = lambda rows: rows
    ) -> None:
        """Create an empty sample.

        Args:
            key: Column of UInt64 hashes.
            max_rows: Most rows of the sample.
            tidy: Removes rows that do not count, such as those that a later row replaces.
        """
        self._key, self._max_rows, self._tidy = key, max_rows, tidy
        self._rows: pl.DataFrame | None = None
        self._largest: int | None = None

    def add(self, rows: pl.DataFrame) -> None:
        """Add rows; a group may be spread over several pieces."""
        if self._largest is not None:
            rows = rows.filter(pl.col(self._key) <= self._largest)
        self._rows = rows if self._rows is None else pl.concat([self._rows, rows])
        if self._rows.height > _SLACK * self._max_rows:
            self._shrink()

    def rows(self) -> pl.DataFrame:
        """Return the sample, sorted by key; `add` must have been called, if only with no rows."""
        self._shrink()
        assert self._rows is not None
        return self._rows.sort(self._key, maintain_order=True).head(self._max_rows)

    def _shrink(self) -> None:
        assert self._rows is not None
        self._rows = self._tidy(self._rows)
        sizes = self._rows.group_by(self._key).len().sort(self._key)
        fitting = sizes.filter(pl.col("len").cum_sum() <= self._max_rows)
        if fitting.height < sizes.height:
            # A group that does not fit now will not fit later: groups only grow.
            self._largest = int(sizes[self._key][max(fitting.height, 1) - 1])
            self._rows = self._rows.filter(pl.col(self._key) <= self._largest)
