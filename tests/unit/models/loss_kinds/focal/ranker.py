"""The focal network, and its `Ranker`.

Shapes: B batch, F dense floats.
"""

# ruff: noqa: N803, N806 - names carry shapes
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.embedding.network.embedding_model import EmbeddingModel, EmbeddingNetwork
from models.embedding.network.perceptron import perceptron
from models.embedding.ranker import EmbeddingRanker
from models.embedding.reading.layout import Layout
from tests.unit.models.loss_kinds.focal.section import FocalModel


class FocalNetwork(EmbeddingNetwork):
    """One perceptron; rows that are already scored well count little."""

    loss_name = "focal_loss"

    def _build(self, layout: Layout, section: FocalModel) -> None:
        floats = section.inner_floats(layout.floats, layout.widths)
        self.deep = perceptron(section.perceptrons(floats, len(layout.tables))[1], section.dropout)
        self.focus = section.focus

    def forward(self, dense_BF: Tensor, pooled: Tensor) -> Tensor:
        """Return the log-odds, shape (B,)."""
        return self._apply_layers(self.deep, self._join_inputs(dense_BF, pooled)).squeeze(1)

    def row_losses(self, logits_B: Tensor, labels_B: Tensor) -> Tensor:
        """Return the focal loss of every row: the log loss, times a power of 1 minus the label's probability."""
        log_losses_B = functional.binary_cross_entropy_with_logits(logits_B, labels_B, reduction="none")
        return (1 - torch.exp(-log_losses_B)) ** self.focus * log_losses_B

    @property
    def last(self) -> nn.Linear:
        """The layer whose bias is added to the log-odds."""
        last = self.deep[-1]
        assert isinstance(last, nn.Linear)
        return last


class Focal(EmbeddingModel):
    """Look up, then score."""

    network_type = FocalNetwork
    network: FocalNetwork


class FocalRanker(EmbeddingRanker[FocalModel]):
    """Trained as every network over embedded ids."""

    kind = "focal"
    section_type = FocalModel
    model_type = Focal
