"""A sample of whole groups of rows, from rows that come piece by piece and may be many more than fit into memory."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

_SLACK = 4
"""Rows held between two clearings, as a multiple of the sample."""


class GroupSample:
    """All rows of the groups whose keys are smallest, as many groups as fit; the keys are hashes, so it is random.

    The same rows give the same sample in whatever pieces they come. A group larger than the sample is cut when it is
    the only one.
    """

    def __init__(self, key: str, most: int, tidy: Callable[[pl.DataFrame], pl.DataFrame] = lambda rows: rows) -> None:
        """Begin with nothing.

        Args:
            key: Column of UInt64 hashes.
            most: Rows of the sample.
            tidy: Takes out rows that do not count, such as those that a later one replaces.
        """
        self._key, self._most, self._tidy = key, most, tidy
        self._held: pl.DataFrame | None = None
        self._largest: int | None = None

    def add(self, rows: pl.DataFrame) -> None:
        """Take rows; a group may come in several pieces."""
        if self._largest is not None:
            rows = rows.filter(pl.col(self._key) <= self._largest)
        self._held = rows if self._held is None else pl.concat([self._held, rows])
        if self._held.height > _SLACK * self._most:
            self._clear()

    def rows(self) -> pl.DataFrame:
        """Return the sample, by key; there must have been at least one piece, if an empty one."""
        self._clear()
        assert self._held is not None
        return self._held.sort(self._key, maintain_order=True).head(self._most)

    def _clear(self) -> None:
        assert self._held is not None
        self._held = self._tidy(self._held)
        sizes = self._held.group_by(self._key).len().sort(self._key)
        fitting = sizes.filter(pl.col("len").cum_sum() <= self._most)
        if fitting.height < sizes.height:
            # What is left out now would be left out later too: groups only grow.
            self._largest = int(sizes[self._key][max(fitting.height, 1) - 1])
            self._held = self._held.filter(pl.col(self._key) <= self._largest)
