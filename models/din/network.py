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

    def forward(self, item_BD: Tensor, past_BLD: Tensor, length_B: Tensor) -> Tensor:
        """Return the weighted sum of the past items, shape (B, D); zeros where there is none."""
        there_BL = torch.arange(past_BLD.shape[1], device=past_BLD.device) < length_B.unsqueeze(1)
        if past_BLD.is_cuda or torch.compiler.is_compiling():  # shapes may not depend on the lengths
            return self._everywhere(item_BD, past_BLD, there_BL)
        at_N = there_BL.flatten().nonzero().squeeze(1)
        row_N = at_N // there_BL.shape[1]
        firsts = functional.pad(there_BL.sum(1, dtype=torch.int32).cumsum(0, dtype=torch.int32), (1, 0))
        # torch does not annotate `apply`
        past_ND: Tensor = _Taken.apply(past_BLD, at_N)  # type: ignore[no-untyped-call]
        logits_N = self.score(_Compared.apply(item_BD, past_ND, row_N, firsts)).squeeze(1)  # type: ignore[no-untyped-call]
        logits_BL = logits_N.new_full(there_BL.shape, NOT_THERE).flatten().index_copy(0, at_N, logits_N)
        weights_BL = (logits_BL.view_as(there_BL) + self.recency_L).softmax(dim=1)
        weights_N = weights_BL.flatten().index_select(0, at_N)
        found_BD: Tensor = _WeightedSum.apply(weights_N, past_ND, row_N, firsts)  # type: ignore[no-untyped-call]
        return found_BD

    def _everywhere(self, item_BD: Tensor, past_BLD: Tensor, there_BL: Tensor) -> Tensor:
        """Do the same, with places that have no event computed too, and then left out."""
        items_BLD = item_BD.unsqueeze(1).expand_as(past_BLD)
        logits_BL = self.score(torch.cat([items_BLD, past_BLD, items_BLD * past_BLD], dim=2)).squeeze(2)
        logits_BL = torch.where(there_BL, logits_BL + self.recency_L, NOT_THERE)
        weights_BL = torch.where(there_BL, logits_BL.softmax(dim=1), 0.0)
        return torch.bmm(weights_BL.unsqueeze(1), past_BLD).squeeze(1)


NOT_THERE = -1e9
"""Log-weight of a place without an event."""


class _Taken(Function):
    """The places that have an event; each is taken once, so the gradient is copied and not added."""

    @staticmethod
    def forward(ctx: Any, past_BLD: Tensor, at_N: Tensor) -> Tensor:
        ctx.save_for_backward(at_N)
        ctx.shape = past_BLD.shape
        return past_BLD.reshape(-1, past_BLD.shape[2]).index_select(0, at_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_ND: Tensor) -> tuple[Tensor, None]:
        (at_N,) = ctx.saved_tensors
        gradient_BLD = gradient_ND.new_zeros(ctx.shape)
        gradient_BLD.view(-1, gradient_ND.shape[1]).index_copy_(0, at_N, gradient_ND)
        return gradient_BLD, None


class _Compared(Function):
    """Item, past item and product side by side; autograd would add an item's gradients one by one."""

    @staticmethod
    def forward(ctx: Any, item_BD: Tensor, past_ND: Tensor, row_N: Tensor, firsts: Tensor) -> Tensor:
        item_ND = item_BD.index_select(0, row_N)
        ctx.save_for_backward(item_ND, past_ND, firsts)
        return torch.cat([item_ND, past_ND, item_ND * past_ND], dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        item_ND, past_ND, firsts = ctx.saved_tensors
        of_item_ND, of_past_ND, of_product_ND = gradient.chunk(3, dim=1)
        items_ND = torch.addcmul(of_item_ND, of_product_ND, past_ND)
        return _summed(items_ND, firsts), torch.addcmul(of_past_ND, of_product_ND, item_ND), None, None


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
        behind = self._ids - self._target - 1
        places = every_BSD.shape[1] - self._ids
        before, item_B1D, after, past_BLD = torch.split(every_BSD, [self._target, 1, behind, places], dim=1)
        found_BD = self.attention(item_B1D.squeeze(1), past_BLD, dense_BF[:, -1])
        vectors = (bottom_BD.unsqueeze(1), before, item_B1D, after, *lists, found_BD.unsqueeze(1))
        pairs_BP = self.interaction(torch.cat([one.to(self._dtype) for one in vectors], dim=1), self.fused)
        return self._through(self.top, bottom_BD, pairs_BP).squeeze(1)


class DIN(EmbeddingModel):
    """Look up, attend, interact, score."""

    network_type = InterestNetwork
    network: InterestNetwork
