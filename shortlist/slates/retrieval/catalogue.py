"""All items that can be recommended, each with a row number by which files and lists refer to it."""

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

CATALOGUE_FILE: Final = "catalogue.arrow"


@dataclass(frozen=True)
class Catalogue:
    """The items, sorted by their ids; an item's row number is its position."""

    items: pl.DataFrame
    """One row per item: its id under the log's name, and the columns of its side tables."""
    key: str
    """Name of the column with the ids."""

    @classmethod
    def from_ids(cls, key: str, log_ids: Iterable[pl.Series], tables: Iterable[pl.DataFrame]) -> Self:
        """Return the items that occur in a log or a side table.

        Args:
            key: Column of the ids.
            log_ids: Ids in the log, in any order, with repetitions.
            tables: Side tables with one row per item, `key` among their columns.

        Raises:
            DataError: There is no item.
        """
        tables = list(tables)
        ids = pl.concat([*log_ids, *(table[key] for table in tables)]) if tables else pl.concat(list(log_ids))
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

    def find_rows(self, ids: pl.Series) -> Rows:
        """Return the row number of every id; -1 where it is null or not in the catalogue."""
        return find_positions(ids, self.ids)

    def write(self, folder: Path) -> None:
        """Write ids and columns into a folder."""
        write_mappable(self.items, folder / CATALOGUE_FILE)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the items in a folder, mapped into memory.

        Raises:
            IntegrityError: There is no such file.
        """
        path = folder / CATALOGUE_FILE
        if not path.is_file():
            raise IntegrityError(f"{path}: missing; build the retrieval again")
        items = pl.read_ipc(path, memory_map=True)
        return cls(items, items.columns[0])


def write_mappable(rows: pl.DataFrame, path: Path) -> None:
    """Write a table that a server maps into memory: uncompressed, in one chunk.

    Of a table in several chunks, Polars copies a whole column to read a few of its rows.
    """
    rows.rechunk().write_ipc(path, record_batch_size=max(1, rows.height))


def open_mapped_array(path: Path) -> NDArray[Any]:
    """Return the array in a file, mapped into memory.

    It is a plain array: numpy's class for mapped files takes several times as long for a few rows.
    """
    return np.asarray(np.load(path, mmap_mode="r"))


def find_positions(values: pl.Series, sorted_values: pl.Series) -> Rows:
    """Return the positions of values in a sorted series; -1 where they are null or missing.

    >>> find_positions(pl.Series([30, None, 7]), pl.Series([10, 20, 30])).tolist()
    [2, -1, -1]
    >>> find_positions(pl.Series(["b", None, "c"]), pl.Series(["a", "b"])).tolist()
    [1, -1, -1]
    """
    cast_values = values.cast(sorted_values.dtype)
    if not len(sorted_values) or not len(cast_values):
        return np.full(len(cast_values), -1, np.int32)
    # By binary search: a request looks up a few of millions, and a join would read them all.
    if sorted_values.dtype.is_integer():  # in numpy, which takes a tenth of the time for a few
        ids = sorted_values.to_numpy()
        numbers, is_valid = _fill_nulls(cast_values)
        positions = np.searchsorted(ids, numbers)
        is_present = is_valid & (ids[np.minimum(positions, len(ids) - 1)] == numbers)
    else:
        positions = sorted_values.search_sorted(cast_values, side="left").to_numpy().astype(np.int64)
        is_present = (
            (sorted_values.gather(np.minimum(positions, len(sorted_values) - 1)) == cast_values)
            .fill_null(value=False)
            .to_numpy()
        )
    rows: Rows = np.where(is_present, positions, -1).astype(np.int32)
    return rows


def _fill_nulls(series: pl.Series) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return whole numbers with 0 for null, and which of them are not null."""
    if not series.null_count():
        return series.to_numpy(), np.ones(len(series), np.bool_)
    values = series.to_list()
    is_valid = np.array([value is not None for value in values], np.bool_)
    filled = [0 if value is None else value for value in values]
    return pl.Series(filled, dtype=series.dtype).to_numpy(), is_valid


def realign_rows(
    values: NDArray[np.float32], old_ids: pl.Series, catalogue: Catalogue
) -> tuple[NDArray[np.float32], pl.Series]:
    """Return values by the row numbers of another catalogue, and which of its items are new: these have zeros.

    Args:
        values: Values by old row number, shape (items, D).
        old_ids: Ids by old row number, sorted.
        catalogue: The new catalogue.

    >>> other = Catalogue(pl.DataFrame({"item": [10, 20, 30]}), "item")
    >>> rows, is_new = realign_rows(np.array([[1.0], [3.0]], np.float32), pl.Series([10, 30]), other)
    >>> rows.ravel().tolist(), is_new.to_list()
    ([1.0, 0.0, 3.0], [False, True, False])
    """
    old_rows = find_positions(catalogue.ids, old_ids)
    realigned = np.zeros((catalogue.size, values.shape[1]), np.float32)
    realigned[old_rows >= 0] = values[old_rows[old_rows >= 0]]
    return realigned, pl.Series(old_rows < 0)
