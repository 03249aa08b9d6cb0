"""All items that can be recommended, each with a row number by which files and lists name it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shortlist.contracts import DataError
from shortlist.storage.artefacts import IntegrityError

Rows = NDArray[np.int32]
"""Row numbers of items; -1: no item."""

FILE: Final = "catalogue.arrow"


@dataclass(frozen=True)
class Catalogue:
    """The items, sorted by their ids; an item's row number is its place."""

    items: pl.DataFrame
    """One row per item: its id under the log's name, and the columns of its side tables."""
    key: str
    """Name of the column with the ids."""

    @classmethod
    def of(cls, key: str, seen: Iterable[pl.Series], tables: Iterable[pl.DataFrame]) -> Self:
        """Return the items that a log or a side table names.

        Args:
            key: Column of the ids.
            seen: Ids in the log, in any order and number.
            tables: Side tables with one row per item, `key` among their columns.

        Raises:
            DataError: There is no item.
        """
        tables = list(tables)
        ids = pl.concat([*seen, *(table[key] for table in tables)]) if tables else pl.concat(list(seen))
        items = ids.drop_nulls().unique().sort().to_frame(key)
        if not items.height:
            raise DataError(f"retrieval: neither the log nor a side table names an item in column '{key}'")
        for table in tables:
            items = items.join(table, on=key, how="left", maintain_order="left")
        return cls(items, key)

    @property
    def size(self) -> int:
        """Number of items."""
        return self.items.height

    @property
    def ids(self) -> pl.Series:
        """The ids by row number."""
        return self.items[self.key]

    def rows_of(self, ids: pl.Series) -> Rows:
        """Return the row number of every id; -1 where it is null or no item."""
        return places_of(ids, self.ids)

    def write(self, folder: Path) -> None:
        """Write ids and columns into a folder."""
        write_mappable(self.items, folder / FILE)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the items in a folder, mapped into memory.

        Raises:
            IntegrityError: There is no such file.
        """
        path = folder / FILE
        if not path.is_file():
            raise IntegrityError(f"{path}: missing; build the retrieval again")
        items = pl.read_ipc(path, memory_map=True)
        return cls(items, items.columns[0])


def write_mappable(rows: pl.DataFrame, path: Path) -> None:
    """Write a table that a server maps into memory: not compressed, and in one piece.

    From a table in several pieces, Polars copies a whole column to find a few of its rows.
    """
    rows.rechunk().write_ipc(path, record_batch_size=max(1, rows.height))


def mapped_array(path: Path) -> NDArray[Any]:
    """Return an array of a file, mapped into memory.

    A plain one: numpy's own class for mapped files takes several times as long for a few rows.
    """
    return np.asarray(np.load(path, mmap_mode="r"))


def places_of(wanted: pl.Series, known: pl.Series) -> Rows:
    """Return where values are in a sorted series; -1 where they are null or not there.

    >>> places_of(pl.Series([30, None, 7]), pl.Series([10, 20, 30])).tolist()
    [2, -1, -1]
    >>> places_of(pl.Series(["b", None, "c"]), pl.Series(["a", "b"])).tolist()
    [1, -1, -1]
    """
    asked = wanted.cast(known.dtype)
    if not len(known) or not len(asked):
        return np.full(len(asked), -1, np.int32)
    # By halving: a request asks for a few of millions, and a join would read them all.
    if known.dtype.is_integer():  # in numpy, which takes a tenth of the time for a few
        ids = known.to_numpy()
        numbers, there = _numbers_of(asked)
        places = np.searchsorted(ids, numbers)
        found = there & (ids[np.minimum(places, len(ids) - 1)] == numbers)
    else:
        places = known.search_sorted(asked, side="left").to_numpy().astype(np.int64)
        found = (known.gather(np.minimum(places, len(known) - 1)) == asked).fill_null(value=False).to_numpy()
    rows: Rows = np.where(found, places, -1).astype(np.int32)
    return rows


def _numbers_of(asked: pl.Series) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return whole numbers, 0 for null, and where there is one."""
    if not asked.null_count():
        return asked.to_numpy(), np.ones(len(asked), np.bool_)
    values = asked.to_list()
    there = np.array([value is not None for value in values], np.bool_)
    filled = [0 if value is None else value for value in values]
    return pl.Series(filled, dtype=asked.dtype).to_numpy(), there


def moved(values: NDArray[np.float32], known: pl.Series, catalogue: Catalogue) -> tuple[NDArray[np.float32], pl.Series]:
    """Return rows of items by the numbers of another catalogue, and which of its items are new: these have zeros.

    Args:
        values: By row number, shape (items, D).
        known: Ids by that row number, sorted.
        catalogue: The other one.

    >>> other = Catalogue(pl.DataFrame({"item": [10, 20, 30]}), "item")
    >>> rows, is_new = moved(np.array([[1.0], [3.0]], np.float32), pl.Series([10, 30]), other)
    >>> rows.ravel().tolist(), is_new.to_list()
    ([1.0, 0.0, 3.0], [False, True, False])
    """
    places = places_of(catalogue.ids, known)
    found = np.zeros((catalogue.size, values.shape[1]), np.float32)
    found[places >= 0] = values[places[places >= 0]]
    return found, pl.Series(places < 0)


def repeated(rows: Rows) -> NDArray[np.bool_]:
    """Return which entries of each line stand further left already; -1 is never one.

    >>> repeated(np.array([[3, 1, 3, -1, -1]], np.int32)).tolist()
    [[False, False, True, False, False]]
    """
    order = np.argsort(rows, axis=1, kind="stable")
    ranked = np.take_along_axis(rows, order, axis=1)
    again = np.zeros(rows.shape, bool)
    again[:, 1:] = (ranked[:, 1:] == ranked[:, :-1]) & (ranked[:, 1:] >= 0)
    found = np.empty_like(again)
    np.put_along_axis(found, order, again, axis=1)
    return found
