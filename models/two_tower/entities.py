"""Users and items as rows of one embedding table: the id's row and one for every value of the declared columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.embedding.reading.chunks import Lookups
from models.modalities import ItemModalities
from shortlist.slates.retrieval.item_content import (
    ENTITY,
    SHARE,
    VALUE,
    ItemContent,
    Matrix,
    NumberScale,
    column_values,
)
from shortlist.slates.retrieval.vector_content import VectorContent

_ROW = "row"


@dataclass(frozen=True)
class Entities:
    """The rows of every entity, one entity after the other.

    Attributes:
        rows: Rows of the embedding table, int32.
        shares: Weight of each row; the values of a `tags` column share 1.
        starts: Start of each entity's rows, int64, shape (entities + 1,).
        table_rows: Number of rows of the table that they use.
        values: By column, the values in the order of their rows, which follow those of the ids.
    """

    rows: Tensor
    shares: Tensor
    starts: Tensor
    table_rows: int
    values: Mapping[str, pl.Series]

    @classmethod
    def from_table(cls, table: pl.DataFrame, columns: Sequence[str], first: int) -> Entities:
        """Return the rows of the entities in a table, whose lines are the entities.

        Args:
            table: One line per entity, with the columns.
            columns: Columns whose values get rows; a null gets none.
            first: First free row of the embedding table.
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
        all_rows = pl.concat(parts).sort(ENTITY, maintain_order=True)
        lengths = np.bincount(all_rows[ENTITY].to_numpy(), minlength=table.height)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        return cls(
            torch.from_numpy(all_rows[_ROW].to_numpy().astype(np.int32)),
            torch.from_numpy(all_rows[SHARE].to_numpy().copy()),
            torch.from_numpy(starts.astype(np.int64)),
            free - first,
            values,
        )

    def without_ids(self, is_hidden: NDArray[np.bool_]) -> Entities:
        """Return the entities with weight 0 for the ids of hidden ones, shape (entities,)."""
        ids = self.starts[:-1][torch.from_numpy(is_hidden)]
        return replace(self, shares=self.shares.index_fill(0, ids, 0.0))

    @property
    def count(self) -> int:
        """Number of entities."""
        return len(self.starts) - 1

    def content(
        self, table_RD: Tensor, first: int, scale: NumberScale, weight_ND: Tensor, modalities: ItemModalities | None
    ) -> ItemContent:
        """Return the learnt vectors of the columns, without ids.

        Args:
            table_RD: The embedding table.
            first: Row of the first id.
            scale: Scale of the numeric columns.
            weight_ND: Weights of the numeric columns.
            modalities: Projections of the vector columns.
        """
        free, content_by_column = first + self.count, {}
        for name, values in self.values.items():
            vectors: Matrix = table_RD[free : free + len(values)].detach().numpy()
            content_by_column[name] = ItemContent.value_table(values, vectors)
            free += len(values)
        vector_content = modalities.to_vector_content() if modalities is not None else VectorContent()
        return ItemContent(table_RD.shape[1], content_by_column, scale, weight_ND.detach().numpy(), vector_content)


def make_lookups(*selections: tuple[Entities, Tensor]) -> Lookups:
    """Return the look-ups of some entities, one slot each, in order, so that one call of the table gives all vectors.

    Args:
        selections: Entities, and the numbers of those to look up, int64.
    """
    places, lengths, rows, shares = [], [], [], []
    for entities, numbers in selections:
        begins = entities.starts[numbers]
        length = entities.starts[numbers + 1] - begins
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
