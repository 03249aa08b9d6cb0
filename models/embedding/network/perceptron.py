"""Linear layers with ReLU between them."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def perceptron(widths: tuple[int, ...], dropout: float = 0.0) -> nn.Sequential:
    """Return linear layers with ReLU (and dropout) between them, drawn as in Naumov et al. (2019)."""
    network = nn.Sequential()
    for inputs, outputs in pairwise(widths):
        if len(network):
            network.append(nn.ReLU(inplace=True))
            network.extend([nn.Dropout(dropout)] if dropout else [])
        linear = nn.Linear(inputs, outputs)
        nn.init.normal_(linear.weight, std=(2 / (inputs + outputs)) ** 0.5)
        nn.init.normal_(linear.bias, std=(1 / outputs) ** 0.5)
        network.append(linear)
    return network
