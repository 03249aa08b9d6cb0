"""The network: layers of factorised interactions (FINAL; Zhu et al., SIGIR 2023, one block).

Shapes: B batch, F dense floats, S features with a table, D embedding width, I = F + S D inputs, W width of a layer.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from models.embedding.network.embedding_model import EmbeddingModel, EmbeddingNetwork
from models.embedding.network.heads import last_layer, scorer
from models.embedding.ranker import EmbeddingRanker
from models.embedding.reading.layout import Layout
from models.finalnet.section import FinalNetModel


class Factorised(nn.Module):
    """[a, a * b] of a linear layer's two halves a and b, shape (B, W / 2) each: every layer doubles the degree."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        nn.init.xavier_normal_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x_BI: Tensor) -> Tensor:
        """Return the layer's output, shape (B, W)."""
        a, b = self.linear(x_BI).chunk(2, dim=1)
        return torch.relu(torch.cat([a, a * b], dim=1))


class FinalNetwork(EmbeddingNetwork):
    """Floats and embeddings side by side through factorised interactions, scored by a last layer."""

    def _build(self, layout: Layout, section: FinalNetModel) -> None:
        widths = section.perceptrons(section.inner_floats(layout.floats, layout.widths), len(layout.tables))[1]
        self.layers = nn.ModuleList(Factorised(*pair) for pair in pairwise(widths[:-1]))
        self.dropout = nn.Dropout(section.dropout)
        self.top = scorer(widths[-2:], 0.0, section.experts_or_none)

    def forward(self, dense_BF: Tensor, pooled: Tensor) -> Tensor:
        """Return the log-odds, shape (B,); see `EmbeddingNetwork.forward`."""
        x = self._join_inputs(dense_BF, pooled)
        with self._autocast(x):
            for layer in self.layers:
                x = self.dropout(layer(x))
        return self._apply_layers(self.top, x.float()).squeeze(1)

    @property
    def last(self) -> nn.Linear:
        """The layer whose bias is added to the log-odds."""
        return last_layer(self.top)


class FinalNet(EmbeddingModel):
    """Look up, then score."""

    network_type = FinalNetwork
    network: FinalNetwork


class FinalNetRanker(EmbeddingRanker[FinalNetModel]):
    """Trained as every network over embedded ids; see `models.embedding.ranker`."""

    kind = "finalnet"
    section_type = FinalNetModel
    model_type = FinalNet
