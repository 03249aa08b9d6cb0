"""Deep and cross network, version 2 (Wang et al., 2021), as nodes of an ONNX graph."""

from __future__ import annotations

from models.dcn.network import DCN, Cross, CrossNetwork
from models.dcn.section import DCNModel
from models.embedding.network.network_graph import NetworkGraph


class CrossGraph(NetworkGraph[CrossNetwork]):
    """`models.dcn.network` in ONNX's operators."""

    model_type = DCN
    section_type = DCNModel

    def logits(self) -> str:
        """Return the tensor of the log-odds, R x 1."""
        first = crossed = self._join_inputs()
        for cross in self._network.crosses:
            assert isinstance(cross, Cross)
            weighted = self._linear(cross.up, crossed if cross.down is None else self._linear(cross.down, crossed))
            crossed = self._add("Add", self._add("Mul", first, weighted), crossed)
        return self._apply_layers(self._network.deep, crossed)
