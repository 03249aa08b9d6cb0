"""The network: a linear part over single ids and crosses, and a deep part (Cheng et al., 2016).

Shapes: B batch, F dense floats, S features with a table, D embedding width. The first float of an embedding row is the
id's weight in the linear part, so both parts share one look-up; declare `cross` features for weights of pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.embedding.network.embedding_model import EmbeddingModel, EmbeddingNetwork
from models.embedding.network.heads import last_layer, scorer
from models.embedding.ranker import EmbeddingRanker
from models.embedding.reading.layout import Layout
from models.wide_deep.section import WideDeepModel


class WideDeepNetwork(EmbeddingNetwork):
    """Sums the linear weights of ids and floats, and the output of a perceptron over the other floats of the rows."""

    def _build(self, layout: Layout, section: WideDeepModel) -> None:
        floats = section.inner_floats(layout.floats, layout.widths)
        self.wide = nn.Linear(floats, 1, bias=False)
        nn.init.zeros_(self.wide.weight)
        widths = section.perceptrons(floats, len(layout.tables))[1]
        self.deep = scorer(widths, section.dropout, section.experts_or_none)

    def forward(self, dense_BF: Tensor, pooled: Tensor) -> Tensor:
        """Return the log-odds, shape (B,); see `EmbeddingNetwork.forward`."""
        standard_BF = self._standard(dense_BF)
        embedded_BSD = torch.cat(self._embeddings_by_row(pooled, len(dense_BF)), dim=1)
        weights_BS, rest_BSD = torch.split(embedded_BSD, [1, embedded_BSD.shape[2] - 1], dim=2)
        wide_B1 = weights_BS.sum(dim=(1, 2)).unsqueeze(1) + self.wide(standard_BF)  # the same for every label
        deep_BH = self._apply_layers(self.deep, standard_BF, rest_BSD.flatten(1))
        return torch.add(wide_B1, deep_BH).squeeze(1)

    @property
    def last(self) -> nn.Linear:
        """The layer whose bias is added to the log-odds."""
        return last_layer(self.deep)


class WideDeep(EmbeddingModel):
    """Look up, then score."""

    network_type = WideDeepNetwork
    network: WideDeepNetwork


class WideDeepRanker(EmbeddingRanker[WideDeepModel]):
    """Trained as every network over embedded ids; see `models.embedding.ranker`."""

    kind = "wide_deep"
    section_type = WideDeepModel
    model_type = WideDeep
