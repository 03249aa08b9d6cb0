"""The fused embedding table spread by rows over many processes, looked up and moved by exchange with their owners.

Row r belongs to rank r mod W and lies there at r div W, so that every process has its share of every feature's table.
W processes, U distinct rows of this process's batch, A rows that processes ask of this one; other letters as in
`models.dlrm.network`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from models.embedding.reading.chunks import Lookups
from models.embedding.reading.layout import Layout
from models.embedding.table.fused_table import FusedTable
from models.embedding.table.optimizer import RowWiseAdagrad, sum_by_row

_BLOCK = 2**16
"""Rows drawn or sent at once."""


class ShardRoute(NamedTuple):
    """Which rows of a batch are whose."""

    order_U: Tensor
    """Distinct rows, by owner; positions among the sorted rows."""
    sent: list[int]
    """Rows asked of each process."""
    asked: list[int]
    """Rows that each process asks of this one."""
    asked_A: Tensor
    """Which ones, as rows of the own shard, int32."""


class ShardedTable(nn.Module):
    """The rows of one process, and the way to those of the others. Every call is one of all processes together."""

    weight_RD: Tensor
    """Own rows, shape (ceil((R - rank) / W), D)."""
    squares_R: Tensor

    def __init__(self, layout: Layout, width: int, rank: int, world: int) -> None:
        """Draw the very rows that one process alone would draw, and keep the own ones."""
        super().__init__()
        self._rank, self._world, self._rows = rank, world, layout.rows
        unknown = torch.zeros(layout.rows, dtype=torch.bool)
        unknown[list(layout.starts)] = True
        kept = []
        for first in range(0, layout.rows, _BLOCK):
            block = torch.empty(min(_BLOCK, layout.rows - first), width).normal_(std=0.01)
            block[unknown[first : first + len(block)]] = 0.0
            kept.append(block[(rank - first) % world :: world])
        weight_RD = torch.cat(kept)
        self.register_buffer("weight_RD", weight_RD)
        self.register_buffer("squares_R", torch.zeros(len(weight_RD)))
        self._route: ShardRoute | None = None

    @torch.no_grad()
    def forward(self, lookups: Lookups) -> Tensor:
        """Return the weighted sum of every slot's rows, shape (slots, D), as `FusedTable` does."""
        rows_U, place_L = torch.unique(lookups.rows_L, return_inverse=True)
        self._route = self._routed(rows_U)
        answers_AD = self.weight_RD.index_select(0, self._route.asked_A)
        by_owner_UD = answers_AD.new_empty(len(rows_U), answers_AD.shape[1])
        dist.all_to_all_single(by_owner_UD, answers_AD, self._route.sent, self._route.asked)
        sorted_UD = torch.empty_like(by_owner_UD).index_copy_(0, self._route.order_U, by_owner_UD)
        return functional.embedding_bag(
            place_L.to(lookups.starts.dtype), sorted_UD, lookups.starts, mode="sum",
            per_sample_weights=lookups.shares_L, include_last_offset=True,
        )  # fmt: skip

    @torch.no_grad()
    def returned(self, gradient_UD: Tensor) -> tuple[Tensor, Tensor]:
        """Return to their owners the gradients of the rows that the last look-up asked for.

        Args:
            gradient_UD: One per distinct row, rows sorted.

        Returns:
            Own rows that processes asked for, rank after rank, int32 (A,), and their gradients, (A, D).
        """
        assert self._route is not None
        received_AD = gradient_UD.new_empty(len(self._route.asked_A), gradient_UD.shape[1])
        by_owner_UD = gradient_UD.index_select(0, self._route.order_U)
        dist.all_to_all_single(received_AD, by_owner_UD, self._route.asked, self._route.sent)
        return self._route.asked_A, received_AD

    @torch.no_grad()
    def take_rows(self, first: int, weight_RD: Tensor, squares_R: Tensor) -> None:
        """Take values for the rows of the whole table from `first` on; those of other processes are passed over."""
        skipped = (self._rank - first) % self._world
        own, own_squares = weight_RD[skipped :: self._world], squares_R[skipped :: self._world]
        start = (first + skipped) // self._world
        self.weight_RD[start : start + len(own)] = own
        self.squares_R[start : start + len(own)] = own_squares

    @torch.no_grad()
    def whole(self) -> FusedTable | None:
        """Return the whole table in host memory on rank 0, and None on the others. All must call it."""
        if self._rank:
            for block in (*torch.split(self.weight_RD, _BLOCK), *torch.split(self.squares_R, _BLOCK)):
                dist.send(block.contiguous(), dst=0)
            return None
        weight_RD = torch.empty(self._rows, self.weight_RD.shape[1])
        squares_R = torch.empty(self._rows)
        both = ((weight_RD, self.weight_RD), (squares_R, self.squares_R))
        for every, own in both:
            every[:: self._world] = own.cpu()
        for rank in range(1, self._world):
            for every, own in both:
                for part in torch.split(every[rank :: self._world], _BLOCK):
                    block = own.new_empty(part.shape)
                    dist.recv(block, src=rank)
                    part.copy_(block)
        return FusedTable.from_rows(weight_RD, squares_R)

    def _routed(self, rows_U: Tensor) -> ShardRoute:
        owner_U = rows_U % self._world
        order_U = torch.argsort(owner_U, stable=True)
        counts_W = torch.bincount(owner_U, minlength=self._world)
        asked_W = torch.empty_like(counts_W)
        dist.all_to_all_single(asked_W, counts_W)
        sent, asked = counts_W.tolist(), asked_W.tolist()
        wanted_U = torch.div(rows_U.index_select(0, order_U), self._world, rounding_mode="floor").to(torch.int32)
        asked_A = wanted_U.new_empty(sum(asked))
        dist.all_to_all_single(asked_A, wanted_U, asked, sent)
        return ShardRoute(order_U, sent, asked, asked_A)


class ShardedAdagrad:
    """Row-wise Adagrad on a sharded table: gradients go to the rows' owners, who sum and step as one process does."""

    def __init__(self, table: ShardedTable, learning_rate: float, decay: float) -> None:
        """Take a table, changed in place."""
        self._table = table
        self._own = RowWiseAdagrad(table.weight_RD, table.squares_R, learning_rate, decay)

    @torch.no_grad()
    def step(self, lookups: Lookups, gradient_slots_D: Tensor) -> None:
        """Move the rows of all processes' batches; see `RowWiseAdagrad.step`."""
        _, gradient_UD = sum_by_row(lookups, gradient_slots_D)
        asked_A, gradient_AD = self._table.returned(gradient_UD)
        starts = torch.arange(len(asked_A) + 1, dtype=torch.int32, device=asked_A.device)
        if len(asked_A):
            self._own.step(Lookups(asked_A, starts, None), gradient_AD)
