"""The network of two labels, and its `Ranker`.

Shapes: B batch, F dense floats, H = 2 labels.
"""

# ruff: noqa: N803, N806 - names carry shapes
from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from models.embedding.network.embedding_model import EmbeddingModel, EmbeddingNetwork
from models.embedding.network.perceptron import perceptron
from models.embedding.ranker import EmbeddingRanker
from models.embedding.reading.layout import Layout
from tests.unit.models.loss_kinds.two_label.section import TwoLabelModel


class TwoLabelNetwork(EmbeddingNetwork):
    """One perceptron with an output per label."""

    loss_name = "weighted_log_loss"

    def _build(self, layout: Layout, section: TwoLabelModel) -> None:
        floats = section.inner_floats(layout.floats, layout.widths)
        self.deep = perceptron(section.perceptrons(floats, len(layout.tables))[1], section.dropout)
        self.further_share = section.further_share

    def forward(self, dense_BF: Tensor, pooled: Tensor) -> Tensor:
        """Return the log-odds, shape (B, H)."""
        return self._apply_layers(self.deep, self._join_inputs(dense_BF, pooled))

    def row_losses(self, logits_B: Tensor, labels_B: Tensor) -> Tensor:
        """Return the log losses of both labels, weighted by their shares."""
        losses_BH = functional.binary_cross_entropy_with_logits(logits_B, labels_B, reduction="none")
        return (1 - self.further_share) * losses_BH[:, 0] + self.further_share * losses_BH[:, 1]

    @property
    def last(self) -> nn.Linear:
        """The layer whose biases are added to the log-odds."""
        last = self.deep[-1]
        assert isinstance(last, nn.Linear)
        return last


class TwoLabel(EmbeddingModel):
    """Look up, then score."""

    network_type = TwoLabelNetwork
    network: TwoLabelNetwork


class TwoLabelRanker(EmbeddingRanker[TwoLabelModel]):
    """Trained as every network over embedded ids."""

    kind = "two_label"
    section_type = TwoLabelModel
    model_type = TwoLabel
