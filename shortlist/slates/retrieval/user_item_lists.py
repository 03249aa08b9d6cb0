"""Lists of items of every user, in a file that a server maps into memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shortlist.slates.retrieval.catalogue import Rows, find_positions, write_mappable
from shortlist.slates.retrieval.source import ROW

USER: Final = "user"
"""Column: id of a user."""


@dataclass(frozen=True)
class UserItemLists:
    """Users, sorted, and a list of items of each."""

    table: pl.DataFrame
    """USER, and ROW with lists."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Return what `write_user_item_lists` wrote, mapped into memory."""
        return cls(pl.read_ipc(path, memory_map=True))

    @property
    def users(self) -> pl.Series:
        """Ids of the users, sorted."""
        return self.table[USER]

    @property
    def items(self) -> pl.Series:
        """Their lists of row numbers."""
        return self.table[ROW]

    def find(self, users: pl.Series, width: int | None = None) -> Rows:
        """Return the items of some users, shape (users, width); -1 where there are no more.

        Args:
            users: Ids; null for an anonymous user.
            width: Most items of a user, the first ones; None: those of the longest list among these users.
        """
        bounds, values = self._lists
        numbers = find_positions(users, self.users)
        if width is None:
            list_numbers = numbers[numbers >= 0]
            width = int((bounds[list_numbers + 1] - bounds[list_numbers]).max(initial=0))
        return gather_lists(bounds, values, numbers, width)

    @cached_property
    def _lists(self) -> tuple[NDArray[np.int64], Rows]:
        """Bounds of every user's items, and the items of all users, concatenated."""
        lists = self.items.cast(pl.List(pl.Int32)).to_arrow()
        return lists.offsets.to_numpy(), lists.values.to_numpy()


def write_user_item_lists(items: pl.DataFrame, path: Path) -> None:
    """Write the lists of users, one row per user: USER, and ROW with row numbers."""
    write_mappable(items.select(USER, ROW).sort(USER), path)


def gather_lists(bounds: NDArray[np.int64], values: Rows, list_numbers: Rows, width: int) -> Rows:
    """Return some of many concatenated lists as a matrix; -1 where a list is shorter.

    Args:
        bounds: Start of each list, and end of the last one, shape (lists + 1,).
        values: The concatenated lists.
        list_numbers: Numbers of the lists to return; -1: an empty list.
        width: Width of the matrix.

    >>> gather_lists(np.array([0, 3, 3]), np.array([5, 2, 9], np.int32), np.array([0, 1, -1]), 2).tolist()
    [[5, 2], [-1, -1], [-1, -1]]
    """
    # For -1 both bounds are the last one: an empty list.
    first, last = bounds[list_numbers], bounds[np.where(list_numbers < 0, -1, list_numbers + 1)]
    positions = first[:, None] + np.arange(width)
    is_inside = positions < last[:, None]
    matrix = np.full(positions.shape, -1, np.int32)
    matrix[is_inside] = values[positions[is_inside]]
    return matrix
