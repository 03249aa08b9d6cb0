"""The network: a DLRM with one more vector, what the item to be scored finds in a sequence of past items.

Shapes: B batch, S single ids, L places of the sequence, N places of all rows that have an event, row by row, M as many
and some that are padding, D width of an embedding, F dense floats, the last the length.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from models.din.section import DINModel
from models.dlrm.network import InteractionNetwork
from models.embedding.chunks import Lookups
from models.embedding.embedding_model import EmbeddingModel
from models.embedding.interaction import Interaction
from models.embedding.layout import Layout
from models.embedding.perceptron import perceptron


class Attention(nn.Module):
    """The past items' embeddings, weighed by how they go with the item: softmax of a perceptron and a weight per place.

    Items that never occurred together in training get a weight too: it follows from their embeddings.
    """

    def __init__(self, places: int, width: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.score = perceptron((3 * width, *hidden, 1))
        self.recency_L = nn.Parameter(torch.zeros(places))

    def forward(self, item_BD: Tensor, past_BLD: Tensor, there_BL: Tensor) -> Tensor:
        """Return the weighted sum of the past items, shape (B, D); zeros where there is none.

        All places are computed, and those without an event left out: no shape depends on the events.
        """
        items_BLD = item_BD.unsqueeze(1).expand_as(past_BLD)
        logits_BL = self.score(torch.cat([items_BLD, past_BLD, items_BLD * past_BLD], dim=2)).squeeze(2)
        logits_BL = torch.where(there_BL, logits_BL + self.recency_L, NOT_THERE)
        weights_BL = torch.where(there_BL, logits_BL.softmax(dim=1), 0.0)
        return torch.bmm(weights_BL.unsqueeze(1), past_BLD).squeeze(1)

    def of_events(self, item_BD: Tensor, past_ND: Tensor, narrow_MD: Tensor, there_BL: Tensor) -> Tensor:
        """Do the same, computing nothing for places without an event.

        Args:
            item_BD: In the type that products are computed in.
            past_ND: Past items that there are, row by row, float32.
            narrow_MD: The same, in the type of products, and zeros behind them.
            there_BL: Places that have an event.
        """
        at_N = there_BL.flatten().nonzero().squeeze(1)
        assert len(at_N) == len(past_ND), "places without an event were looked up"
        lengths_B = there_BL.sum(1)
        row_N = torch.repeat_interleave(lengths_B, output_size=len(at_N))
        row_M = functional.pad(row_N, (0, len(narrow_MD) - len(row_N)))
        firsts = functional.pad(lengths_B.cumsum(0, dtype=torch.int32), (1, 0))
        # torch does not annotate `apply`
        first, dtype = self.score[0], item_BD.dtype
        compared: Tensor = _Compared.apply(  # type: ignore[no-untyped-call]
            item_BD, narrow_MD, first.weight.to(dtype), first.bias.to(dtype), row_M, firsts
        )
        logits_N = self.score[1:](compared)[: len(at_N), 0].to(past_ND.dtype)
        logits_BL = logits_N.new_full(there_BL.shape, NOT_THERE).flatten().index_copy(0, at_N, logits_N)
        weights_BL = (logits_BL.view_as(there_BL) + self.recency_L).softmax(dim=1)
        weights_N = weights_BL.flatten().index_select(0, at_N)
        found_BD: Tensor = _WeightedSum.apply(weights_N, past_ND, row_N, firsts)  # type: ignore[no-untyped-call]
        return found_BD


def filled(count: int) -> int:
    """Return how many rows to multiply in place of so many, with at most 16 numbers between two powers of two.

    Libraries compile narrow products for the numbers of rows that they meet: for a new one in every batch, they spend
    more time on that than on the products.

    >>> [filled(count) for count in (0, 30, 1_000, 80_000)]
    [0, 30, 1024, 81920]
    """
    step = 1 << max(0, count.bit_length() - 5)
    return -(-count // step) * step


NOT_THERE = -1e9
"""Log-weight of a place without an event."""


class _Apart(Function):
    """A row's own embeddings, that of its item once more, and the past items, as they are and in the type of products.

    Each is taken once, so gradients are copied into one tensor, where autograd would make and add one for each part.
    """

    @staticmethod
    def forward(
        ctx: Any, embedded: Tensor, rows: int, own: int, target: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ctx.shape, ctx.own, ctx.target = embedded.shape, (rows, own, embedded.shape[1]), target
        own_BSD, past_ND = embedded[: rows * own].view(ctx.own), embedded[rows * own :]
        item_BD = own_BSD[:, target].to(dtype, copy=True)
        narrow_MD = past_ND.new_zeros(filled(len(past_ND)), past_ND.shape[1], dtype=dtype)
        narrow_MD[: len(past_ND)] = past_ND
        return own_BSD.to(dtype, copy=True), item_BD, past_ND, narrow_MD

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_own_BSD: Tensor, of_item_BD: Tensor, of_past_ND: Tensor, of_narrow_MD: Tensor
    ) -> tuple[Tensor | None, ...]:
        gradient = of_past_ND.new_empty(ctx.shape)
        own = ctx.own[0] * ctx.own[1]
        own_BSD = gradient[:own].view(ctx.own).copy_(of_own_BSD)
        own_BSD[:, ctx.target] += of_item_BD
        torch.add(of_past_ND, of_narrow_MD[: len(of_past_ND)], out=gradient[own:])
        return gradient, None, None, None, None


class _Compared(Function):
    """The first layer over item, past item and product side by side.

    The item's part is computed once per row. Autograd would also add an item's gradients one by one.
    """

    @staticmethod
    def forward(
        ctx: Any, item_BD: Tensor, past_MD: Tensor, weight: Tensor, bias: Tensor, row_M: Tensor, firsts: Tensor
    ) -> Tensor:
        item_MD, width = item_BD.index_select(0, row_M), item_BD.shape[1]
        both_ME = torch.cat([past_MD, item_MD * past_MD], dim=1)
        hidden = functional.linear(item_BD, weight[:, :width], bias).index_select(0, row_M)
        ctx.save_for_backward(item_BD, item_MD, past_MD, both_ME, weight, firsts)
        return hidden.addmm_(both_ME, weight[:, width:].t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        item_BD, item_MD, past_MD, both_ME, weight, firsts = ctx.saved_tensors
        of_item, of_past, of_product = weight.chunk(3, dim=1)
        of_rows, of_product_MD = _summed(gradient, firsts), gradient @ of_product
        item_gradient = torch.addmm(_summed(of_product_MD * past_MD, firsts), of_rows, of_item)
        past_gradient = (gradient @ of_past).addcmul_(of_product_MD, item_MD)
        weight_gradient = torch.cat([of_rows.t() @ item_BD, gradient.t() @ both_ME], dim=1)
        return item_gradient, past_gradient, weight_gradient, of_rows.sum(0), None, None


class _WeightedSum(Function):
    """The sum of every row's past items, weighed."""

    @staticmethod
    def forward(ctx: Any, weights_N: Tensor, past_ND: Tensor, row_N: Tensor, firsts: Tensor) -> Tensor:
        ctx.save_for_backward(weights_N, past_ND, row_N)
        return _summed(past_ND, firsts, weights_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BD: Tensor) -> tuple[Tensor, Tensor, None, None]:
        weights_N, past_ND, row_N = ctx.saved_tensors
        gradient_ND = gradient_BD.index_select(0, row_N)
        return (gradient_ND * past_ND).sum(1), gradient_ND.mul_(weights_N.unsqueeze(1)), None, None


def _summed(values_ND: Tensor, firsts: Tensor, weights_N: Tensor | None = None) -> Tensor:
    """Return the sum of the values of every row, shape (B, D), in an order that is always the same.

    Args:
        values_ND: Row by row; what is behind the last row's is not read.
        firsts: Where each row's values begin, int32, shape (B + 1,).
        weights_N: Of each; None: 1.
    """
    every_N = torch.arange(int(firsts[-1]), dtype=torch.int32)
    return functional.embedding_bag(
        every_N, values_ND, firsts, mode="sum", include_last_offset=True, per_sample_weights=weights_N
    )


class InterestNetwork(InteractionNetwork):
    """Floats, ids and what the item finds in the past ones, in dot products."""

    def _build(self, layout: Layout, section: DINModel) -> None:  # type: ignore[override] # its own section
        super()._build(layout, section)
        self.interaction = Interaction(len(layout.tables) + 2)
        self.attention = Attention(layout.events, section.embedding_dim, section.attention_mlp)
        self._ids, self._target = len(layout.singles), layout.target

    def needed(self, lookups: Lookups, dense_BF: Tensor) -> Lookups:
        """Return the look-ups without places that have no event, on the CPU: single ids row by row, events, lists."""
        if self.mean_F.is_cuda:
            return lookups
        rows_L, starts, shares_L = lookups
        border = len(dense_BF) * self.singles
        rows_BS = rows_L[:border].view(-1, self.singles)
        events = rows_BS[:, self._ids :][self._there(dense_BF)]
        kept_L = torch.cat([rows_BS[:, : self._ids].flatten(), events, rows_L[border:]])
        left_out = len(rows_L) - len(kept_L)
        starts = torch.cat([starts[: border - left_out], starts[border:] - left_out])
        return Lookups(kept_L, starts, None if shares_L is None else shares_L[left_out:])

    def forward(self, dense_BF: Tensor, pooled: Tensor) -> Tensor:
        """Return the log-odds, shape (B,); see `EmbeddingNetwork.forward`."""
        bottom_BD = self._through(self.bottom, self._standard(dense_BF))
        own, found_BD = self._attended(dense_BF, pooled)
        vectors = (bottom_BD.unsqueeze(1), *own, found_BD.unsqueeze(1))
        pairs_BP = self.interaction(torch.cat([one.to(self._dtype) for one in vectors], dim=1), self.fused)
        return self._through(self.top, bottom_BD, pairs_BP).squeeze(1)

    def _attended(self, dense_BF: Tensor, pooled: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return a row's own embeddings, in one or several parts, and what its item finds in the past ones."""
        rows, there_BL = len(dense_BF), self._there(dense_BF)
        if pooled.is_cuda or torch.compiler.is_compiling():  # shapes may not depend on the lengths
            every_BSD, *lists = self._by_row(pooled, rows)
            parts = [self._target, 1, self._ids - self._target - 1, there_BL.shape[1]]
            before, item_B1D, after, past_BLD = torch.split(every_BSD, parts, dim=1)
            return (before, item_B1D, after, *lists), self.attention(item_B1D.squeeze(1), past_BLD, there_BL)
        lists = []
        if self._lists:
            pooled, of_lists = torch.split(pooled, [len(pooled) - rows * self._lists, rows * self._lists])
            lists = [of_lists.view(self._lists, rows, self._width).transpose(0, 1)]
        # torch does not annotate `apply`
        apart = _Apart.apply(pooled, rows, self._ids, self._target, self._dtype)  # type: ignore[no-untyped-call]
        own_BSD, item_BD, past_ND, narrow_MD = apart
        with self._narrowly(pooled):
            return (own_BSD, *lists), self.attention.of_events(item_BD, past_ND, narrow_MD, there_BL)

    def _there(self, dense_BF: Tensor) -> Tensor:
        """Return which places have an event, shape (B, L)."""
        places = len(self.attention.recency_L)
        return torch.arange(places, device=dense_BF.device) < dense_BF[:, -1:]


class DIN(EmbeddingModel):
    """Look up, attend, interact, score."""

    network_type = InterestNetwork
    network: InterestNetwork
