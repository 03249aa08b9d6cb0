"""The network: bottom and top perceptrons, and pairwise interaction between them (Naumov et al., 2019).

Shapes: B batch, F dense floats, S features with a table, D embedding width, N = S + 1 interacting vectors,
P = N (N - 1) / 2 pairs, B*S slots (see `Lookups`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.dlrm.section import DLRMModel
from models.embedding.network.embedding_model import EmbeddingModel, EmbeddingNetwork
from models.embedding.network.heads import last_layer, scorer
from models.embedding.network.interaction import Interaction
from models.embedding.network.perceptron import perceptron
from models.embedding.ranker import EmbeddingRanker
from models.embedding.reading.layout import Layout


class InteractionNetwork(EmbeddingNetwork):
    """Scores the dot products of all embeddings and one more vector, computed from the floats."""

    def _build(self, layout: Layout, section: DLRMModel) -> None:
        bottom, top = section.perceptrons(section.inner_floats(layout.floats, layout.widths), len(layout.tables))
        self.bottom = perceptron(bottom)
        self.bottom.append(nn.ReLU(inplace=True))
        self.top = scorer(top, section.dropout, section.experts_or_none)
        self.interaction = Interaction(len(layout.tables) + 1)

    def forward(self, dense_BF: Tensor, pooled: Tensor) -> Tensor:
        """Return the log-odds, shape (B,); see `EmbeddingNetwork.forward`."""
        bottom_BD = self._apply_layers(self.bottom, self._standard(dense_BF))
        vectors = (bottom_BD.unsqueeze(1), *self._embeddings_by_row(pooled, len(dense_BF)))
        # Converted before they are joined, not after: this halves the bytes copied, here and in the derivative.
        pairs_BP = self.interaction(torch.cat([vector.to(self._dtype) for vector in vectors], dim=1), self.fused)
        return self._apply_layers(self.top, bottom_BD, pairs_BP).squeeze(1)

    @property
    def last(self) -> nn.Linear:
        """The top perceptron's last layer."""
        return last_layer(self.top)


class DLRM(EmbeddingModel):
    """Look up, interact, score."""

    network_type = InteractionNetwork
    network: InteractionNetwork


class DLRMRanker(EmbeddingRanker[DLRMModel]):
    """Embeddings of ids, perceptrons over floats, and the dot products between them."""

    kind = "dlrm"
    section_type = DLRMModel
    model_type = DLRM
