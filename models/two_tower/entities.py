"""Users and items as rows of one embedding table: the id's row and one for every value of the declared columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.embedding.chunks import Lookups
from models.modalities import ItemModalities
from shortlist.retrieval.item_content import ENTITY, SHARE, VALUE, ItemContent, Matrix, NumberScale, column_values
from shortlist.retrieval.vector_content import VectorContent

_ROW = "row"


@dataclass(frozen=True)
class Entities:
    """The rows of every entity, one entity after the other.

    Attributes:
        rows: Of the embedding table, int32.
        shares: Weight of each; the values of a `tags` column share 1.
        starts: Where each entity's rows begin, int64, shape (entities + 1,).
        table_rows: Rows of the table that they use.
        values: By column, the values in the order of their rows, which follow those of the ids.
    """

    rows: Tensor
    shares: Tensor
    starts: Tensor
    table_rows: int
    values: Mapping[str, pl.Series]

    @classmethod
    def of(cls, table: pl.DataFrame, columns: Sequence[str], first: int) -> Entities:
        """Return the rows of the entities in a table, whose lines are the entities.

        Args:
            table: With the columns.
            columns: Whose values get rows of their own; a null gets none.
            first: First row of the embedding table that is free.
        """
        numbers = pl.Series(ENTITY, np.arange(table.height), dtype=pl.Int64)
        parts = [pl.DataFrame({ENTITY: numbers, _ROW: numbers + first, SHARE: np.ones(table.height, np.float32)})]
        free, values = first + table.height, {}
        for name in columns:
            part = column_values(numbers, table[name])
            values[name] = part[VALUE].unique().sort()
            parts.append(part.select(ENTITY, (pl.col(VALUE).rank("dense") - 1 + free).cast(pl.Int64).alias(_ROW),
                                     pl.col(SHARE).cast(pl.Float32)))  # fmt: skip
            free += len(values[name])
        every = pl.concat(parts).sort(ENTITY, maintain_order=True)
        lengths = np.bincount(every[ENTITY].to_numpy(), minlength=table.height)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        return cls(
            torch.from_numpy(every[_ROW].to_numpy().astype(np.int32)),
            torch.from_numpy(every[SHARE].to_numpy().copy()),
            torch.from_numpy(starts.astype(np.int64)),
            free - first,
            values,
        )

    def without_ids(self, hidden: NDArray[np.bool_]) -> Entities:
        """Return the same, the ids of some entities counting nothing; shape (entities,)."""
        ids = self.starts[:-1][torch.from_numpy(hidden)]
        return replace(self, shares=self.shares.index_fill(0, ids, 0.0))

    @property
    def count(self) -> int:
        """Number of entities."""
        return len(self.starts) - 1

    def content(
        self, table_RD: Tensor, first: int, scale: NumberScale, weight_ND: Tensor, modalities: ItemModalities | None
    ) -> ItemContent:
        """Return what was learnt of the columns, ids left out.

        Args:
            table_RD: The embedding table.
            first: Row of the first id.
            scale: Of the numeric columns.
            weight_ND: Of these.
            modalities: What was learnt of their vectors.
        """
        free, learnt = first + self.count, {}
        for name, values in self.values.items():
            vectors: Matrix = table_RD[free : free + len(values)].detach().numpy()
            learnt[name] = ItemContent.learnt(values, vectors)
            free += len(values)
        given = modalities.learnt() if modalities is not None else VectorContent()
        return ItemContent(table_RD.shape[1], learnt, scale, weight_ND.detach().numpy(), given)


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
