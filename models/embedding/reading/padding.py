"""Batches of fixed shapes: short batches are padded with rows that are ignored."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from models.embedding.reading.chunks import Batch, Lookups


class PaddedBatch(NamedTuple):
    """A batch whose last rows may be padding."""

    labels_B: Tensor
    dense_BF: Tensor
    lookups: Lookups
    """Slots of padding have no rows. Padding look-ups are in one slot, the last."""
    slots: int
    """Number of slots of features; one slot of padding may follow."""
    rows: Tensor | None
    """Number of rows that are no padding, the first ones, float32, no dimensions; None: all."""
    admitted_L: Tensor | None
    """Whether the row of each look-up may be updated; None: all may."""
    lists_B: Tensor | None = None
    """List number of every row; None: no order is learnt."""

    @classmethod
    def unpadded(cls, batch: Batch, admitted_L: Tensor | None = None) -> PaddedBatch:
        """Return a batch without padding."""
        labels_B, dense_BF, lookups, lists_B = batch
        return cls(labels_B, dense_BF, lookups, len(lookups.starts) - 1, None, admitted_L, lists_B)


def pad_batch(batch: Batch, rows: int, singles: int, admitted_L: Tensor | None = None) -> PaddedBatch:
    """Return a batch padded to a number of rows; padding looks up no rows.

    Args:
        batch: The batch, of at most `rows` rows.
        rows: Rows of the padded batch.
        singles: Number of features with one id per row.
        admitted_L: Whether the row of each look-up may be updated; None: all may.
    """
    missing = rows - batch.rows
    count = torch.full((), float(batch.rows), device=batch.labels_B.device)
    if not missing:
        return PaddedBatch.unpadded(batch, admitted_L)._replace(rows=count)
    starts = with_empty_slots(batch.lookups.starts, batch.rows, rows, singles)
    return PaddedBatch(
        functional.pad(batch.labels_B, (0, missing)), functional.pad(batch.dense_BF, (0, 0, 0, missing)),
        batch.lookups._replace(starts=starts), len(starts) - 1, count, admitted_L,
    )  # fmt: skip


def with_empty_slots(starts: Tensor, batch_rows: int, rows: int, singles: int) -> Tensor:
    """Return the starts of slots with an empty slot per feature and missing row.

    Args:
        starts: Starts of the batch's slots, shape (slots + 1,): single ids row by row, then a block per list.
        batch_rows: Rows of the batch, at least 1.
        rows: Rows of the padded batch.
        singles: Number of features with one id per row.

    >>> starts = torch.tensor([0, 1, 2, 5, 7])  # two rows: an id each, then a list of three and one of two
    >>> with_empty_slots(starts, batch_rows=2, rows=3, singles=1).tolist()
    [0, 1, 2, 2, 5, 7, 7]
    """
    missing, border = rows - batch_rows, batch_rows * singles
    lists_KB = starts[border:-1].view(-1, batch_rows)
    list_ends_K1 = starts[border + batch_rows :: batch_rows].unsqueeze(1)
    return torch.cat([
        starts[:border], starts[border].expand(missing * singles),
        torch.cat([lists_KB, list_ends_K1.expand(-1, missing)], dim=1).flatten(), starts[-1:],
    ])  # fmt: skip
