"""The last layers of a network: one output per label, above a body that all labels share or a mixture of experts.

Shapes: B batch, I inputs, E experts, W width of an expert, H labels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.embedding.network.perceptron import perceptron
from shortlist.contracts import ShortlistError


class MixtureOfExperts(nn.Module):
    """Every label weighs the outputs of the same experts by a gate of its own (MMoE; Ma et al., KDD 2018)."""

    def __init__(self, widths: tuple[int, ...], dropout: float, experts: int) -> None:
        super().__init__()
        inputs, *_, width, labels = widths
        self.experts = nn.ModuleList(perceptron(widths[:-1], dropout) for _ in range(experts))
        for expert in self.experts:
            assert isinstance(expert, nn.Sequential)
            expert.append(nn.ReLU(inplace=True))
        self.gates = nn.Linear(inputs, labels * experts)
        nn.init.zeros_(self.gates.bias)
        self.towers = nn.Linear(width, labels)

    def forward(self, x_BI: Tensor) -> Tensor:
        """Return the log-odds, shape (B, H)."""
        experts_BEW = torch.stack([expert(x_BI) for expert in self.experts], dim=1)
        labels = self.towers.out_features
        gates_BHE = self.gates(x_BI).view(len(x_BI), labels, len(self.experts)).softmax(dim=2)
        mixed_BHW = torch.bmm(gates_BHE.to(experts_BEW.dtype), experts_BEW)
        return (mixed_BHW * self.towers.weight).sum(dim=2) + self.towers.bias


def scorer(widths: tuple[int, ...], dropout: float, experts: int | None) -> nn.Sequential | MixtureOfExperts:
    """Return the layers from the output of the body to the log-odds of every label.

    Args:
        widths: Number of inputs, widths of the hidden layers, and number of labels.
        dropout: Share of hidden units left out in training.
        experts: Number of experts; None: all labels share the hidden layers.

    Raises:
        ShortlistError: No hidden layer is declared for the experts.
    """
    if experts is None:
        return perceptron(widths, dropout)
    if len(widths) < 3:
        raise ShortlistError(
            "models: sharing: mmoe makes an expert of the hidden layers above the body, and none is declared; declare"
            " their widths, or sharing: shared_bottom"
        )
    return MixtureOfExperts(widths, dropout, experts)


def last_layer(network: nn.Sequential | MixtureOfExperts) -> nn.Linear:
    """Return the layer whose biases are added to the log-odds."""
    last = network.towers if isinstance(network, MixtureOfExperts) else network[-1]
    assert isinstance(last, nn.Linear)
    return last
