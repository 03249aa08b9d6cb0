"""The fused table: the embedding rows of all features in one tensor.

Shapes: D embedding width, R rows of the fused table, L looked-up rows.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.embedding.reading.chunks import Lookups
from models.embedding.reading.layout import Layout


class FusedTable(nn.Module):
    """The embedding rows of all features in one tensor, feature after feature.

    They are buffers, not parameters: the row-wise optimizer updates only the rows of a batch. Row 0 of every feature
    (unknown or rare) starts at zero, so a value that never occurred in training adds nothing.
    """

    weight_RD: Tensor
    squares_R: Tensor
    """Accumulators of the optimizer, saved with the rows so that a warm start continues with the same step sizes."""
    fused: bool = False
    """Whether a Triton kernel looks up rows on a GPU, as set by the training step."""

    def __init__(self, layout: Layout, width: int) -> None:
        super().__init__()
        weight_RD = torch.empty(layout.rows, width).normal_(std=0.01)
        weight_RD[list(layout.starts)] = 0.0
        self.register_buffer("weight_RD", weight_RD)
        self.register_buffer("squares_R", torch.zeros(layout.rows))

    @classmethod
    def from_rows(cls, weight_RD: Tensor, squares_R: Tensor) -> Self:
        """Return a table of given rows and accumulators."""
        table = cls.__new__(cls)
        nn.Module.__init__(table)
        table.register_buffer("weight_RD", weight_RD)
        table.register_buffer("squares_R", squares_R)
        return table

    @torch.no_grad()
    def take_rows(self, first: int, weight_RD: Tensor, squares_R: Tensor) -> None:
        """Set the rows from `first` on."""
        self.weight_RD[first : first + len(weight_RD)] = weight_RD
        self.squares_R[first : first + len(squares_R)] = squares_R

    @torch.no_grad()
    def forward(self, lookups: Lookups) -> Tensor:
        """Return the weighted sum of every slot's rows, shape (slots, D); an empty slot gives zeros."""
        has_single_rows = lookups.shares_L is None and len(lookups.rows_L) == len(lookups.starts) - 1
        # On the CPU, torch's kernel that sums single rows is faster than a copy by `index_select`.
        if has_single_rows and self.weight_RD.is_cuda:
            if self.fused:
                from models.embedding.table.fused_look_up import look_up_rows  # needs Triton

                return look_up_rows(self.weight_RD, lookups.rows_L)
            return self.weight_RD.index_select(0, lookups.rows_L)
        return functional.embedding_bag(
            lookups.rows_L, self.weight_RD, lookups.starts, mode="sum",
            per_sample_weights=lookups.shares_L, include_last_offset=True,
        )  # fmt: skip
