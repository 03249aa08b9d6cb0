"""The fused table: the embedding rows of all features in one tensor.

Shapes: D embedding width, R rows of the fused table, L looked-up rows.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.embedding.chunks import Lookups
from models.embedding.layout import Layout


class FusedTable(nn.Module):
    """The embedding rows of all features in one tensor, each feature's after those of the one before.

    They are buffers, not parameters: the row-wise optimizer moves the rows of a batch and nothing else. Row 0 of every
    feature (unknown or rare) starts at zero, so a value never seen in training adds nothing.
    """

    weight_RD: Tensor
    squares_R: Tensor
    """Accumulators of the optimizer; kept with the rows so that a warm start goes on with the same step sizes."""
    fused: bool = False
    """Whether a kernel of Triton looks rows up while they are on a GPU. Whoever trains sets it."""

    def __init__(self, layout: Layout, width: int) -> None:
        super().__init__()
        weight_RD = torch.empty(layout.rows, width).normal_(std=0.01)
        weight_RD[list(layout.starts)] = 0.0
        self.register_buffer("weight_RD", weight_RD)
        self.register_buffer("squares_R", torch.zeros(layout.rows))

    @classmethod
    def of(cls, weight_RD: Tensor, squares_R: Tensor) -> Self:
        """Return the table of some rows and their accumulators."""
        table = cls.__new__(cls)
        nn.Module.__init__(table)
        table.register_buffer("weight_RD", weight_RD)
        table.register_buffer("squares_R", squares_R)
        return table

    @torch.no_grad()
    def take_rows(self, first: int, weight_RD: Tensor, squares_R: Tensor) -> None:
        """Take values for the rows from `first` on."""
        self.weight_RD[first : first + len(weight_RD)] = weight_RD
        self.squares_R[first : first + len(squares_R)] = squares_R

    @torch.no_grad()
    def forward(self, lookups: Lookups) -> Tensor:
        """Return the weighted sum of every slot's rows, shape (slots, D); an empty slot gives zeros."""
        is_one_each = lookups.shares_L is None and len(lookups.rows_L) == len(lookups.starts) - 1
        # There is nothing to sum; but torch's kernel for the CPU sums single rows faster than `index_select` copies.
        if is_one_each and self.weight_RD.is_cuda:
            if self.fused:
                from models.embedding.fused_look_up import looked_up  # needs Triton

                return looked_up(self.weight_RD, lookups.rows_L)
            return self.weight_RD.index_select(0, lookups.rows_L)
        return functional.embedding_bag(
            lookups.rows_L, self.weight_RD, lookups.starts, mode="sum",
            per_sample_weights=lookups.shares_L, include_last_offset=True,
        )  # fmt: skip
