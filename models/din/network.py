"""The network: a DLRM with one more vector, what the item to be scored finds in a sequence of past items.

Shapes: B batch, S single ids, L places of the sequence, N places of all rows that have an event, row by row, D width
of an embedding, F dense floats, the last the length.
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

    def of_events(self, item_BD: Tensor, past_ND: Tensor, there_BL: Tensor, at_N: Tensor) -> Tensor:
        """Do the same, computing nothing for places without an event.

        Args:
            item_BD: In the type that products are computed in.
            past_ND: Past items that there are, row by row, float32.
            there_BL: Places that have an event.
            at_N: Their numbers among all places of all rows.
        """
        row_N = at_N // there_BL.shape[1]
        firsts = functional.pad(there_BL.sum(1, dtype=torch.int32).cumsum(0, dtype=torch.int32), (1, 0))
        # torch does not annotate `apply`
        first, dtype = self.score[0], item_BD.dtype
        compared: Tensor = _Compared.apply(  # type: ignore[no-untyped-call]
            item_BD, past_ND.to(dtype), first.weight.to(dtype), first.bias.to(dtype), row_N, firsts
        )
        logits_N = self.score[1:](compared).squeeze(1).to(past_ND.dtype)
        logits_BL = logits_N.new_full(there_BL.shape, NOT_THERE).flatten().index_copy(0, at_N, logits_N)
        weights_BL = (logits_BL.view_as(there_BL) + self.recency_L).softmax(dim=1)
        weights_N = weights_BL.flatten().index_select(0, at_N)
        found_BD: Tensor = _WeightedSum.apply(weights_N, past_ND, row_N, firsts)  # type: ignore[no-untyped-call]
        return found_BD


NOT_THERE = -1e9
"""Log-weight of a place without an event."""


class _Apart(Function):
    """A row's own embeddings, that of its item once more, and the past items that there are.

    Each is taken once, so gradients are copied into one tensor, where autograd would make and add one for each part.
    """

    @staticmethod
    def forward(
        ctx: Any, every_BSD: Tensor, own: int, target: int, at_N: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        _, slots, width = every_BSD.shape
        among_all_N = at_N + (at_N // (slots - own) + 1) * own
        ctx.save_for_backward(among_all_N)
        ctx.shape, ctx.dtype, ctx.own, ctx.target = every_BSD.shape, every_BSD.dtype, own, target
        own_BSD = every_BSD[:, :own].to(dtype, copy=True)
        past_ND = every_BSD.reshape(-1, width).index_select(0, among_all_N)
        return own_BSD, own_BSD[:, target].clone(), past_ND

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_own_BSD: Tensor, of_item_BD: Tensor, of_past_ND: Tensor) -> tuple[Tensor | None, ...]:
        (among_all_N,) = ctx.saved_tensors
        gradient_BSD = torch.empty(ctx.shape, dtype=ctx.dtype)
        gradient_BSD[:, : ctx.own] = of_own_BSD
        gradient_BSD[:, ctx.target] += of_item_BD
        gradient_BSD[:, ctx.own :] = 0.0
        gradient_BSD.view(-1, ctx.shape[2]).index_copy_(0, among_all_N, of_past_ND)
        return gradient_BSD, None, None, None, None


class _Compared(Function):
    """The first layer over item, past item and product side by side, without these being put side by side.

    The item's part is computed once per row. Autograd would also add an item's gradients one by one.
    """

    @staticmethod
    def forward(
        ctx: Any, item_BD: Tensor, past_ND: Tensor, weight: Tensor, bias: Tensor, row_N: Tensor, firsts: Tensor
    ) -> Tensor:
        item_ND = item_BD.index_select(0, row_N)
        product_ND = item_ND * past_ND
        of_item, of_past, of_product = weight.chunk(3, dim=1)
        hidden = functional.linear(item_BD, of_item, bias).index_select(0, row_N)
        hidden.addmm_(past_ND, of_past.t()).addmm_(product_ND, of_product.t())
        ctx.save_for_backward(item_BD, item_ND, past_ND, product_ND, weight, firsts)
        return hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        item_BD, item_ND, past_ND, product_ND, weight, firsts = ctx.saved_tensors
        of_item, of_past, of_product = weight.chunk(3, dim=1)
        of_rows, of_product_ND = _summed(gradient, firsts), gradient @ of_product
        item_gradient = torch.addmm(_summed(of_product_ND * past_ND, firsts), of_rows, of_item)
        past_gradient = (gradient @ of_past).addcmul_(of_product_ND, item_ND)
        parts = of_rows.t() @ item_BD, gradient.t() @ past_ND, gradient.t() @ product_ND
        return item_gradient, past_gradient, torch.cat(parts, dim=1), of_rows.sum(0), None, None


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
        values_ND: Row by row.
        firsts: Where each row's values begin, int32, shape (B + 1,).
        weights_N: Of each; None: 1.
    """
    every_N = torch.arange(len(values_ND), dtype=torch.int32)
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

    def forward(self, dense_BF: Tensor, pooled: Tensor) -> Tensor:
        """Return the log-odds, shape (B,); see `EmbeddingNetwork.forward`."""
        bottom_BD = self._through(self.bottom, self._standard(dense_BF))
        every_BSD, *lists = self._by_row(pooled, len(dense_BF))
        own, found_BD = self._attended(every_BSD, dense_BF[:, -1])
        vectors = (bottom_BD.unsqueeze(1), *own, *lists, found_BD.unsqueeze(1))
        pairs_BP = self.interaction(torch.cat([one.to(self._dtype) for one in vectors], dim=1), self.fused)
        return self._through(self.top, bottom_BD, pairs_BP).squeeze(1)

    def _attended(self, every_BSD: Tensor, length_B: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return a row's own embeddings, in one or several parts, and what its item finds in the past ones."""
        places = every_BSD.shape[1] - self._ids
        there_BL = torch.arange(places, device=length_B.device) < length_B.unsqueeze(1)
        if every_BSD.is_cuda or torch.compiler.is_compiling():  # shapes may not depend on the lengths
            parts = [self._target, 1, self._ids - self._target - 1, places]
            before, item_B1D, after, past_BLD = torch.split(every_BSD, parts, dim=1)
            return (before, item_B1D, after), self.attention(item_B1D.squeeze(1), past_BLD, there_BL)
        at_N = there_BL.flatten().nonzero().squeeze(1)
        # torch does not annotate `apply`
        apart = _Apart.apply(every_BSD, self._ids, self._target, at_N, self._dtype)  # type: ignore[no-untyped-call]
        own_BSD, item_BD, past_ND = apart
        with self._narrowly(every_BSD):
            return (own_BSD,), self.attention.of_events(item_BD, past_ND, there_BL, at_N)


class DIN(EmbeddingModel):
    """Look up, attend, interact, score."""

    network_type = InterestNetwork
    network: InterestNetwork
