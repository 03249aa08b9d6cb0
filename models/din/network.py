"""The network: a DLRM with one more vector, the attention of the scored item over a sequence of past items.

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
from models.embedding.network.embedding_model import EmbeddingModel
from models.embedding.network.interaction import Interaction
from models.embedding.network.perceptron import perceptron
from models.embedding.ranker import EmbeddingRanker
from models.embedding.reading.chunks import Lookups
from models.embedding.reading.layout import AttendedSequence, Layout
from shortlist.contracts import ShortlistError
from shortlist.ranking.inputs import TableFeature


class Attention(nn.Module):
    """Attention of the item over past items: the softmax of a perceptron plus a weight per place.

    The weight of a pair follows from embeddings, so pairs that never occurred in training get one too.
    """

    def __init__(self, places: int, width: int, hidden_widths: tuple[int, ...]) -> None:
        super().__init__()
        self.score = perceptron((3 * width, *hidden_widths, 1))
        self.recency_L = nn.Parameter(torch.zeros(places))

    def forward(self, item_BD: Tensor, past_BLD: Tensor, has_event_BL: Tensor) -> Tensor:
        """Return the weighted sum of the past items, shape (B, D); zeros where there is none.

        All places are computed and those without an event masked, so that no shape depends on the events.
        """
        items_BLD = item_BD.unsqueeze(1).expand_as(past_BLD)
        logits_BL = self.score(torch.cat([items_BLD, past_BLD, items_BLD * past_BLD], dim=2)).squeeze(2)
        logits_BL = torch.where(has_event_BL, logits_BL + self.recency_L, MASKED_LOGIT)
        weights_BL = torch.where(has_event_BL, logits_BL.softmax(dim=1), 0.0)
        return torch.bmm(weights_BL.unsqueeze(1), past_BLD).squeeze(1)

    def forward_events(self, item_BD: Tensor, past_ND: Tensor, narrow_MD: Tensor, has_event_BL: Tensor) -> Tensor:
        """Return the same as `forward`, without computing places that have no event.

        Args:
            item_BD: Embeddings of the items, in the type of products.
            past_ND: Embeddings of the events' items, row by row, float32.
            narrow_MD: The same, in the type of products, padded with zeros.
            has_event_BL: Places that have an event.
        """
        place_N = has_event_BL.flatten().nonzero().squeeze(1)
        assert len(place_N) == len(past_ND), "places without an event were looked up"
        lengths_B = has_event_BL.sum(1)
        row_N = torch.repeat_interleave(lengths_B, output_size=len(place_N))
        row_M = functional.pad(row_N, (0, len(narrow_MD) - len(row_N)))
        firsts = functional.pad(lengths_B.cumsum(0, dtype=torch.int32), (1, 0))
        # torch does not annotate `apply`
        first, dtype = self.score[0], item_BD.dtype
        hidden_MH: Tensor = _FirstAttentionLayer.apply(  # type: ignore[no-untyped-call]
            item_BD, narrow_MD, first.weight.to(dtype), first.bias.to(dtype), row_M, firsts
        )
        logits_N = self.score[1:](hidden_MH)[: len(place_N), 0].to(past_ND.dtype)
        logits_BL = logits_N.new_full(has_event_BL.shape, MASKED_LOGIT).flatten().index_copy(0, place_N, logits_N)
        weights_BL = (logits_BL.view_as(has_event_BL) + self.recency_L).softmax(dim=1)
        weights_N = weights_BL.flatten().index_select(0, place_N)
        interest_BD: Tensor = _WeightedSum.apply(weights_N, past_ND, row_N, firsts)  # type: ignore[no-untyped-call]
        return interest_BD


def round_up_rows(count: int) -> int:
    """Return a number of rows rounded up to one of at most 16 steps between two powers of two.

    Libraries compile narrow products for every number of rows; with a new number in every batch, compiling takes more
    time than the products.

    >>> [round_up_rows(count) for count in (0, 30, 1_000, 80_000)]
    [0, 30, 1024, 81920]
    """
    step = 1 << max(0, count.bit_length() - 5)
    return -(-count // step) * step


MASKED_LOGIT = -1e9
"""Log-weight of a place without an event."""


class _SplitEmbeddings(Function):
    """Splits embeddings into single ids, the item, and past items in float32 and in the type of products.

    Gradients are copied into one tensor; autograd would allocate and add one tensor for each part.
    """

    @staticmethod
    def forward(
        ctx: Any, embedded: Tensor, rows: int, ids_per_row: int, target: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        ctx.shape, ctx.singles_shape, ctx.target = embedded.shape, (rows, ids_per_row, embedded.shape[1]), target
        singles_BSD, past_ND = embedded[: rows * ids_per_row].view(ctx.singles_shape), embedded[rows * ids_per_row :]
        item_BD = singles_BSD[:, target].to(dtype, copy=True)
        narrow_MD = past_ND.new_zeros(round_up_rows(len(past_ND)), past_ND.shape[1], dtype=dtype)
        narrow_MD[: len(past_ND)] = past_ND
        return singles_BSD.to(dtype, copy=True), item_BD, past_ND, narrow_MD

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_singles_BSD: Tensor, grad_item_BD: Tensor, grad_past_ND: Tensor, grad_narrow_MD: Tensor
    ) -> tuple[Tensor | None, ...]:
        gradient = grad_past_ND.new_empty(ctx.shape)
        single_ids = ctx.singles_shape[0] * ctx.singles_shape[1]
        singles_BSD = gradient[:single_ids].view(ctx.singles_shape).copy_(grad_singles_BSD)
        singles_BSD[:, ctx.target] += grad_item_BD
        torch.add(grad_past_ND, grad_narrow_MD[: len(grad_past_ND)], out=gradient[single_ids:])
        return gradient, None, None, None, None


class _FirstAttentionLayer(Function):
    """The first layer of the attention, over item, past item and their product.

    The item's part is computed once per row. Autograd would also add an item's gradients one by one.
    """

    @staticmethod
    def forward(
        ctx: Any, item_BD: Tensor, past_MD: Tensor, weight: Tensor, bias: Tensor, row_M: Tensor, firsts: Tensor
    ) -> Tensor:
        item_MD, width = item_BD.index_select(0, row_M), item_BD.shape[1]
        both_ME = torch.cat([past_MD, item_MD * past_MD], dim=1)
        hidden_MH = functional.linear(item_BD, weight[:, :width], bias).index_select(0, row_M)
        ctx.save_for_backward(item_BD, item_MD, past_MD, both_ME, weight, firsts)
        return hidden_MH.addmm_(both_ME, weight[:, width:].t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        item_BD, item_MD, past_MD, both_ME, weight, firsts = ctx.saved_tensors
        item_weight, past_weight, product_weight = weight.chunk(3, dim=1)
        grad_rows, grad_product_MD = _sum_by_row(gradient, firsts), gradient @ product_weight
        item_gradient = torch.addmm(_sum_by_row(grad_product_MD * past_MD, firsts), grad_rows, item_weight)
        past_gradient = (gradient @ past_weight).addcmul_(grad_product_MD, item_MD)
        weight_gradient = torch.cat([grad_rows.t() @ item_BD, gradient.t() @ both_ME], dim=1)
        return item_gradient, past_gradient, weight_gradient, grad_rows.sum(0), None, None


class _WeightedSum(Function):
    """The weighted sum of every row's past items."""

    @staticmethod
    def forward(ctx: Any, weights_N: Tensor, past_ND: Tensor, row_N: Tensor, firsts: Tensor) -> Tensor:
        ctx.save_for_backward(weights_N, past_ND, row_N)
        return _sum_by_row(past_ND, firsts, weights_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BD: Tensor) -> tuple[Tensor, Tensor, None, None]:
        weights_N, past_ND, row_N = ctx.saved_tensors
        gradient_ND = gradient_BD.index_select(0, row_N)
        return (gradient_ND * past_ND).sum(1), gradient_ND.mul_(weights_N.unsqueeze(1)), None, None


def _sum_by_row(values_ND: Tensor, firsts: Tensor, weights_N: Tensor | None = None) -> Tensor:
    """Return the sum of the values of every row, shape (B, D), in a fixed order.

    Args:
        values_ND: Values row by row; values behind the last row's are ignored.
        firsts: Where each row's values begin, int32, shape (B + 1,).
        weights_N: Weight of each value; None: 1.
    """
    positions_N = torch.arange(int(firsts[-1]), dtype=torch.int32)
    return functional.embedding_bag(
        positions_N, values_ND, firsts, mode="sum", include_last_offset=True, per_sample_weights=weights_N
    )


class InterestNetwork(InteractionNetwork):
    """Dot products of floats, ids and the attention over past items."""

    def _build(self, layout: Layout, section: DINModel) -> None:  # type: ignore[override] # its own section
        super()._build(layout, section)
        self.interaction = Interaction(len(layout.tables) + 2)
        self.attention = Attention(layout.events, section.embedding_dim, section.attention_mlp)
        self._ids, self._target = len(layout.singles), layout.target

    def select_lookups(self, lookups: Lookups, dense_BF: Tensor) -> Lookups:
        """Return the look-ups of single ids, events and lists, on the CPU without places that have no event."""
        if self.mean_F.is_cuda:
            return lookups
        rows_L, starts, shares_L = lookups
        border = len(dense_BF) * self.singles
        rows_BS = rows_L[:border].view(-1, self.singles)
        events = rows_BS[:, self._ids :][self._event_mask(dense_BF)]
        selected_L = torch.cat([rows_BS[:, : self._ids].flatten(), events, rows_L[border:]])
        left_out = len(rows_L) - len(selected_L)
        starts = torch.cat([starts[: border - left_out], starts[border:] - left_out])
        return Lookups(selected_L, starts, None if shares_L is None else shares_L[left_out:])

    def forward(self, dense_BF: Tensor, pooled: Tensor) -> Tensor:
        """Return the log-odds, shape (B,); see `EmbeddingNetwork.forward`."""
        bottom_BD = self._apply_layers(self.bottom, self._standard(dense_BF))
        row_embeddings, interest_BD = self._attend(dense_BF, pooled)
        vectors = (bottom_BD.unsqueeze(1), *row_embeddings, interest_BD.unsqueeze(1))
        pairs_BP = self.interaction(torch.cat([vector.to(self._dtype) for vector in vectors], dim=1), self.fused)
        return self._apply_layers(self.top, bottom_BD, pairs_BP).squeeze(1)

    def _attend(self, dense_BF: Tensor, pooled: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return each row's embeddings, in one or several parts, and the attention over its past items."""
        rows, has_event_BL = len(dense_BF), self._event_mask(dense_BF)
        if pooled.is_cuda or torch.compiler.is_compiling():  # shapes may not depend on the lengths
            embedded_BSD, *lists = self._embeddings_by_row(pooled, rows)
            parts = [self._target, 1, self._ids - self._target - 1, has_event_BL.shape[1]]
            singles_before_BSD, item_B1D, singles_after_BSD, past_BLD = torch.split(embedded_BSD, parts, dim=1)
            return (singles_before_BSD, item_B1D, singles_after_BSD, *lists), self.attention(
                item_B1D.squeeze(1), past_BLD, has_event_BL
            )
        lists = []
        if self._lists:
            pooled, pooled_lists = torch.split(pooled, [len(pooled) - rows * self._lists, rows * self._lists])
            lists = [pooled_lists.view(self._lists, rows, self._width).transpose(0, 1)]
        # torch does not annotate `apply`
        split_embeddings = _SplitEmbeddings.apply(pooled, rows, self._ids, self._target, self._dtype)  # type: ignore[no-untyped-call]
        singles_BSD, item_BD, past_ND, narrow_MD = split_embeddings
        with self._autocast(pooled):
            return (singles_BSD, *lists), self.attention.forward_events(item_BD, past_ND, narrow_MD, has_event_BL)

    def _event_mask(self, dense_BF: Tensor) -> Tensor:
        """Return which places have an event, shape (B, L)."""
        places = len(self.attention.recency_L)
        return torch.arange(places, device=dense_BF.device) < dense_BF[:, -1:]


class DIN(EmbeddingModel):
    """Look up, attend, interact, score."""

    network_type = InterestNetwork
    network: InterestNetwork


class DINRanker(EmbeddingRanker[DINModel]):
    """Trained as every network over embedded ids; see `models.embedding.ranker`."""

    kind = "din"
    section_type = DINModel
    model_type = DIN

    def _make_layout(self, features: tuple[TableFeature, ...], labels: tuple[str, ...] = ()) -> Layout:
        try:
            return Layout.from_features(features, labels, AttendedSequence(self.section.history, self.section.target))
        except ShortlistError as problem:
            raise type(problem)(f"models.{self.name}.{problem}") from None
