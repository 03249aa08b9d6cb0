"""Batches in shapes that never change: short ones are filled up with rows that count for nothing."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from models.embedding.chunks import Batch, Lookups


class Padded(NamedTuple):
    """A batch whose last rows may be padding."""

    labels_B: Tensor
    dense_BF: Tensor
    lookups: Lookups
    """Slots of padding have no rows. Lookups that are padding themselves are in a slot of their own, the last."""
    slots: int
    """Slots that features have; behind them there may be one of padding."""
    rows: Tensor | None
    """How many of the first rows count, float32, no dimensions; None: all."""
    admitted_L: Tensor | None
    """Which lookups' rows may move; None: all."""
    lists_B: Tensor | None = None
    """Number of every row's list; None: every row is learnt by itself."""

    @classmethod
    def whole(cls, batch: Batch, admitted_L: Tensor | None = None) -> Padded:
        """Return a batch as it is."""
        labels_B, dense_BF, lookups, lists_B = batch
        return cls(labels_B, dense_BF, lookups, len(lookups.starts) - 1, None, admitted_L, lists_B)


def padded(batch: Batch, rows: int, singles: int, admitted_L: Tensor | None = None) -> Padded:
    """Return a batch filled up to some rows; its lookups stay, padding looks up nothing.

    Args:
        batch: At most so many rows.
        rows: To have.
        singles: Features with one id per row.
        admitted_L: Which lookups' rows may move; None: all.
    """
    missing = rows - batch.rows
    count = torch.full((), float(batch.rows), device=batch.labels_B.device)
    if not missing:
        return Padded.whole(batch, admitted_L)._replace(rows=count)
    starts = with_empty_slots(batch.lookups.starts, batch.rows, rows, singles)
    return Padded(
        functional.pad(batch.labels_B, (0, missing)), functional.pad(batch.dense_BF, (0, 0, 0, missing)),
        batch.lookups._replace(starts=starts), len(starts) - 1, count, admitted_L,
    )  # fmt: skip


def with_empty_slots(starts: Tensor, had: int, rows: int, singles: int) -> Tensor:
    """Return where slots begin once every feature has an empty slot for each row that a batch is short of.

    Args:
        starts: Where they begin in the batch, shape (slots + 1,): single ids row by row, then a block per list.
        had: Rows of the batch, at least 1.
        rows: To have.
        singles: Features with one id per row.

    >>> starts = torch.tensor([0, 1, 2, 5, 7])  # two rows: an id each, then a list of three and one of two
    >>> with_empty_slots(starts, had=2, rows=3, singles=1).tolist()
    [0, 1, 2, 2, 5, 7, 7]
    """
    missing, border = rows - had, had * singles
    lists_KB = starts[border:-1].view(-1, had)
    behind_K1 = starts[border + had :: had].unsqueeze(1)
    return torch.cat([
        starts[:border], starts[border].expand(missing * singles),
        torch.cat([lists_KB, behind_K1.expand(-1, missing)], dim=1).flatten(), starts[-1:],
    ])  # fmt: skip
