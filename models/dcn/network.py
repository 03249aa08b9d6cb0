"""The network: crosses of all inputs, then a perceptron (DCN-v2, stacked; Wang et al., 2021).

Shapes: B batch, F dense floats, S features with a table, D embedding width, I = F + S D inputs, K rank.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.dcn.section import DCNModel
from models.embedding.embedding_model import EmbeddingModel, EmbeddingNetwork
from models.embedding.heads import last_layer, scorer
from models.embedding.layout import Layout


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


class CrossNetwork(EmbeddingNetwork):
    """Floats and embeddings side by side, crossed layer by layer, then scored by a perceptron."""

    def _build(self, layout: Layout, section: DCNModel) -> None:
        inputs = section.inner_floats(layout.floats, layout.widths) + len(layout.tables) * section.embedding_dim
        self.crosses = nn.ModuleList(Cross(inputs, section.cross_rank) for _ in range(section.cross_layers))
        widths = (inputs, *section.deep_mlp, section.outputs)
        self.deep = scorer(widths, section.dropout, section.experts_or_none)

    def forward(self, dense_BF: Tensor, pooled: Tensor) -> Tensor:
        """Return the log-odds, shape (B,); see `EmbeddingNetwork.forward`."""
        first_BI = crossed_BI = self._inputs(dense_BF, pooled)
        with self._narrowly(first_BI):
            for cross in self.crosses:
                crossed_BI = cross(first_BI, crossed_BI)
        return self._through(self.deep, crossed_BI).squeeze(1)

    @property
    def last(self) -> nn.Linear:
        """The layer whose bias is added to the log-odds."""
        return last_layer(self.deep)


class DCN(EmbeddingModel):
    """Look up, then score."""

    network_type = CrossNetwork
    network: CrossNetwork
