"""Users and items as rows of one embedding table: the id's row and one for every value of the declared columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.dlrm.chunks import Lookups

_ENTITY, _ROW, _SHARE, _LENGTH = "entity", "row", "share", "length"


@dataclass(frozen=True)
class Entities:
    """The rows of every entity, one entity after the other.

    Attributes:
        rows: Of the embedding table, int32.
        shares: Weight of each; the values of a `tags` column share 1.
        starts: Where each entity's rows begin, int64, shape (entities + 1,).
        table_rows: Rows of the table that they use.
    """

    rows: Tensor
    shares: Tensor
    starts: Tensor
    table_rows: int

    @classmethod
    def of(cls, table: pl.DataFrame, columns: Sequence[str], first: int) -> Entities:
        """Return the rows of the entities in a table, whose lines are the entities.

        Args:
            table: With the columns.
            columns: Whose values get rows of their own; a null gets none.
            first: First row of the embedding table that is free.
        """
        numbers = pl.Series(_ENTITY, np.arange(table.height), dtype=pl.Int64)
        parts = [pl.DataFrame({_ENTITY: numbers, _ROW: numbers + first, _SHARE: np.ones(table.height, np.float32)})]
        free = first + table.height
        for name in columns:
            part = _values(numbers, table[name])
            count = part["value"].n_unique()
            parts.append(part.select(_ENTITY, (pl.col("value").rank("dense") - 1 + free).cast(pl.Int64).alias(_ROW),
                                     pl.col(_SHARE).cast(pl.Float32)))  # fmt: skip
            free += count
        every = pl.concat(parts).sort(_ENTITY, maintain_order=True)
        lengths = np.bincount(every[_ENTITY].to_numpy(), minlength=table.height)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        return cls(
            torch.from_numpy(every[_ROW].to_numpy().astype(np.int32)),
            torch.from_numpy(every[_SHARE].to_numpy().copy()),
            torch.from_numpy(starts.astype(np.int64)),
            free - first,
        )

    def without_ids(self, hidden: NDArray[np.bool_]) -> Entities:
        """Return the same, the ids of some entities counting nothing; shape (entities,)."""
        ids = self.starts[:-1][torch.from_numpy(hidden)]
        return replace(self, shares=self.shares.index_fill(0, ids, 0.0))

    @property
    def count(self) -> int:
        """Number of entities."""
        return len(self.starts) - 1


def looked_up(*chosen: tuple[Entities, Tensor]) -> Lookups:
    """Return the lookups of some entities, one slot each, in order: one call of the table makes all their vectors.

    Args:
        chosen: Entities, and the numbers of those that are wanted, int64.
    """
    places, lengths, rows, shares = [], [], [], []
    for entities, wanted in chosen:
        begins = entities.starts[wanted]
        length = entities.starts[wanted + 1] - begins
        ends = length.cumsum(0)
        place = torch.arange(int(ends[-1]) if len(ends) else 0) + torch.repeat_interleave(
            begins - ends + length, length
        )
        places.append(place)
        lengths.append(length)
        rows.append(entities.rows[place])
        shares.append(entities.shares[place])
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), *lengths]).cumsum(0).to(torch.int32)
    return Lookups(torch.cat(rows), starts, torch.cat(shares))


def standardised(table: pl.DataFrame, columns: Sequence[str]) -> NDArray[np.float32]:
    """Return numeric columns with mean 0 and deviation 1, shape (lines, columns); 0 for a null."""
    numbers = table.select(pl.col(name).cast(pl.Float64) for name in columns).to_numpy().reshape(table.height, -1)
    mean = np.nanmean(numbers, axis=0) if len(columns) else np.zeros(0)
    scale = np.nanstd(numbers, axis=0) if len(columns) else np.ones(0)
    found: NDArray[np.float32] = np.nan_to_num((numbers - mean) / np.where(scale > 0, scale, 1)).astype(np.float32)
    return found


def _values(numbers: pl.Series, column: pl.Series) -> pl.DataFrame:
    """Return every value of a column with its entity and its share."""
    frame = pl.DataFrame({_ENTITY: numbers, "value": column})
    if isinstance(column.dtype, pl.List):
        frame = frame.with_columns(pl.col("value").list.len().alias(_LENGTH)).explode("value", empty_as_null=False)
        frame = frame.with_columns((1 / pl.col(_LENGTH)).alias(_SHARE))
    else:
        frame = frame.with_columns(pl.lit(1.0).alias(_SHARE))
    return frame.filter(pl.col("value").is_not_null())
