"""The network: crosses of all inputs, then a perceptron (DCN-v2, stacked; Wang et al., 2021).

Shapes: B batch, F dense floats, S features with a table, D embedding width, I = F + S D inputs, K rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from models.dcn.section import DCNModel
from models.embedding.network.embedding_model import EmbeddingModel, EmbeddingNetwork
from models.embedding.network.heads import last_layer, scorer
from models.embedding.ranker import EmbeddingRanker
from models.embedding.reading.layout import Layout


class Cross(nn.Module):
    """x0 * (W x + b) + x: every input times a weighted sum of all; W is I x I, or U V with U I x K and V K x I."""

    def __init__(self, inputs: int, rank: int | None) -> None:
        super().__init__()
        self.down = None if rank is None else nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(inputs if rank is None else rank, inputs)
        for layer in (self.down, self.up):
            if layer is not None:
                nn.init.xavier_normal_(layer.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, first_BI: Tensor, x_BI: Tensor) -> Tensor:
        """Return the crossed inputs, shape (B, I)."""
        weighted = self.up(x_BI if self.down is None else self.down(x_BI))
        return torch.addcmul(x_BI, first_BI, weighted.to(x_BI.dtype))


class _Crossed(Function):
    """All crosses and their derivative, in the type of the inputs.

    With y = W x + b and x' = x0 * y + x, the gradients of a layer are g * x0 for y, g * y for x0, and for x the sum of
    g and the gradient through y, which one product computes. Autograd reads the B x I numbers three times as often, and
    in float32.
    """

    @staticmethod
    def forward(ctx: Any, first_BI: Tensor, layers: int, *weights: Tensor) -> Tensor:
        x_BI, intermediates = first_BI, []
        for *down, up, bias in _split_by_layer(weights, layers):
            lower = functional.linear(x_BI, down[0]) if down else x_BI
            weighted_BI = functional.linear(lower, up, bias)
            intermediates += [x_BI, lower, weighted_BI]
            x_BI = torch.addcmul(x_BI, first_BI, weighted_BI)
        ctx.save_for_backward(first_BI, *weights, *intermediates)
        ctx.layers = layers
        return x_BI

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BI: Tensor) -> tuple[Tensor | None, ...]:
        first_BI, *saved = ctx.saved_tensors
        weights, intermediates = saved[: -3 * ctx.layers], saved[-3 * ctx.layers :]
        grad_first_BI = torch.zeros_like(first_BI)
        grad_weights: list[Tensor] = []
        steps = zip(_split_by_layer(weights, ctx.layers), _split_by_layer(intermediates, ctx.layers), strict=True)
        for (*down, up, _), (x_BI, lower, weighted_BI) in reversed(list(steps)):
            grad_first_BI.addcmul_(gradient_BI, weighted_BI)
            grad_weighted_BI = gradient_BI * first_BI
            grad_layer = [grad_weighted_BI.t() @ lower, grad_weighted_BI.sum(0)]
            if down:
                grad_lower = grad_weighted_BI @ up
                grad_layer = [grad_lower.t() @ x_BI, *grad_layer]
                gradient_BI = torch.addmm(gradient_BI, grad_lower, down[0])
            else:
                gradient_BI = torch.addmm(gradient_BI, grad_weighted_BI, up)
            grad_weights = grad_layer + grad_weights
        return grad_first_BI.add_(gradient_BI), None, *grad_weights


def _split_by_layer(tensors: Sequence[Tensor], layers: int) -> list[Sequence[Tensor]]:
    """Return the tensors of every layer; all layers have the same number of tensors."""
    tensors_per_layer = len(tensors) // layers
    return [tensors[first : first + tensors_per_layer] for first in range(0, len(tensors), tensors_per_layer)]


class CrossNetwork(EmbeddingNetwork):
    """Floats and embeddings side by side, crossed layer by layer, then scored by a perceptron."""

    def _build(self, layout: Layout, section: DCNModel) -> None:
        inputs = section.inner_floats(layout.floats, layout.widths) + len(layout.tables) * section.embedding_dim
        self.crosses = nn.ModuleList(Cross(inputs, section.cross_rank) for _ in range(section.cross_layers))
        widths = (inputs, *section.deep_mlp, section.outputs)
        self.deep = scorer(widths, section.dropout, section.experts_or_none)

    def forward(self, dense_BF: Tensor, pooled: Tensor) -> Tensor:
        """Return the log-odds, shape (B,); see `EmbeddingNetwork.forward`."""
        return self._apply_layers(self.deep, self._cross_inputs(self._join_inputs(dense_BF, pooled))).squeeze(1)

    def _cross_inputs(self, first_BI: Tensor) -> Tensor:
        """Return the inputs after all crosses, shape (B, I); in training perhaps in a narrow type."""
        if not (first_BI.is_cuda or torch.compiler.is_compiling()):
            weights = [weight.to(self._dtype) for cross in self.crosses for weight in cross.parameters()]
            # torch does not annotate `apply`
            crossed: Tensor = _Crossed.apply(first_BI.to(self._dtype), len(self.crosses), *weights)  # type: ignore[no-untyped-call]
            return crossed
        crossed_BI = first_BI
        with self._autocast(first_BI):
            for cross in self.crosses:
                crossed_BI = cross(first_BI, crossed_BI)
        return crossed_BI

    @property
    def last(self) -> nn.Linear:
        """The layer whose bias is added to the log-odds."""
        return last_layer(self.deep)


class DCN(EmbeddingModel):
    """Look up, then score."""

    network_type = CrossNetwork
    network: CrossNetwork


class DCNRanker(EmbeddingRanker[DCNModel]):
    """Trained as every network over embedded ids; see `models.embedding.ranker`."""

    kind = "dcn"
    section_type = DCNModel
    model_type = DCN
