"""Deep and cross network, version 2 (Wang et al., 2021), as nodes of an ONNX graph."""

from __future__ import annotations

from pathlib import Path

from models.dcn.network import DCN, Cross, CrossNetwork
from models.dcn.section import DCNModel
from models.embedding.network.network_graph import NetworkGraph, read_model
from shortlist.ranking.record import TrainedModel
from shortlist.serving.export.graph import FeatureGraph


def add_network(graph: FeatureGraph, record: TrainedModel, folder: Path) -> str:
    """Add the features and the network of a model; return the tensor of its log-odds, shape (rows, 1).

    Args:
        graph: The graph that the nodes are added to.
        record: Names the features.
        folder: The model folder.
    """
    layout, model = read_model(record, folder, DCN, DCNModel)
    return CrossGraph(graph, layout, model.network, model).logits()


class CrossGraph(NetworkGraph[CrossNetwork]):
    """`models.dcn.network` in ONNX's operators."""

    def logits(self) -> str:
        """Return the tensor of the log-odds, R x 1."""
        first = crossed = self._join_inputs()
        for cross in self._network.crosses:
            assert isinstance(cross, Cross)
            weighted = self._linear(cross.up, crossed if cross.down is None else self._linear(cross.down, crossed))
            crossed = self._add("Add", self._add("Mul", first, weighted), crossed)
        return self._apply_layers(self._network.deep, crossed)
