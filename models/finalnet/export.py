"""FinalNet, a network of factorised interactions (Zhu et al., 2023), as nodes of an ONNX graph."""

from __future__ import annotations

import numpy as np

from models.embedding.network.network_graph import NetworkGraph
from models.finalnet.network import Factorised, FinalNet, FinalNetwork
from models.finalnet.section import FinalNetModel


class FinalGraph(NetworkGraph[FinalNetwork]):
    """`models.finalnet.network` in ONNX's operators."""

    model_type = FinalNet
    section_type = FinalNetModel

    def logits(self) -> str:
        """Return the tensor of the log-odds, R x 1."""
        x = self._join_inputs()
        for layer in self._network.layers:
            assert isinstance(layer, Factorised)
            half = layer.linear.out_features // 2
            halves = self._linear(layer.linear, x)
            a, b = (
                self._add("Slice", halves, np.array([first]), np.array([first + half]), np.array([1]))
                for first in (0, half)
            )
            x = self._add("Relu", self._add("Concat", a, self._add("Mul", a, b), axis=1))
        return self._apply_layers(self._network.top, x)
