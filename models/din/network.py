"""The network: a DLRM with one more vector, what the item to be scored finds in a sequence of past items.

Shapes: B batch, S single ids, L places of the sequence, D embedding width, F dense floats, the last the length.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.din.section import DINModel
from models.dlrm.embedding_model import EmbeddingModel
from models.dlrm.interaction import Interaction
from models.dlrm.layout import Layout
from models.dlrm.network import InteractionNetwork
from models.dlrm.perceptron import perceptron


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
        items_BLD = item_BD.unsqueeze(1).expand_as(past_BLD)
        logits_BL = self.score(torch.cat([items_BLD, past_BLD, items_BLD * past_BLD], dim=2)).squeeze(2)
        there_BL = torch.arange(past_BLD.shape[1], device=past_BLD.device) < length_B.unsqueeze(1)
        logits_BL = torch.where(there_BL, logits_BL.float() + self.recency_L, NOT_THERE)
        weights_BL = torch.where(there_BL, logits_BL.softmax(dim=1), 0.0)
        return torch.bmm(weights_BL.unsqueeze(1), past_BLD.float()).squeeze(1)


NOT_THERE = -1e9
"""Log-weight of a place without an event."""


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
        ids_BSD, past_BLD = torch.split(every_BSD, [self._ids, every_BSD.shape[1] - self._ids], dim=1)
        found_BD = self.attention(ids_BSD[:, self._target], past_BLD, dense_BF[:, -1])
        vectors = (bottom_BD.unsqueeze(1), ids_BSD, *lists, found_BD.unsqueeze(1))
        pairs_BP = self.interaction(torch.cat([one.to(self._dtype) for one in vectors], dim=1), self.fused)
        return self._through(self.top, bottom_BD, pairs_BP).squeeze(1)


class DIN(EmbeddingModel):
    """Look up, attend, interact, score."""

    network_type = InterestNetwork
    network: InterestNetwork
