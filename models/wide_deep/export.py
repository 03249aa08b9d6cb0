"""Wide and deep network (Cheng et al., 2016), as nodes of an ONNX graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models.embedding.network_graph import NetworkGraph, read_model
from models.record import TrainedModel
from models.wide_deep.network import WideDeep, WideDeepNetwork
from models.wide_deep.section import WideDeepModel
from shortlist.serving.export.graph import FeatureGraph


def add_network(graph: FeatureGraph, record: TrainedModel, folder: Path) -> str:
    """Add the features and the network of a model; return the tensor of its log-odds, shape (rows, 1).

    Args:
        graph: Gets the nodes.
        record: Names the features.
        folder: The model folder.
    """
    layout, model = read_model(record, folder, WideDeep, WideDeepModel)
    return WideDeepGraph(graph, layout, model.network, model).logits()


class WideDeepGraph(NetworkGraph[WideDeepNetwork]):
    """`models.wide_deep.network` in ONNX's operators."""

    def logits(self) -> str:
        """Return the tensor of the log-odds, R x 1."""
        embedded = self._embedded()
        standard = self._standard(embedded)
        weights = [self._of_every_row(one, 0, 1) for one in embedded]
        rest = [self._of_every_row(one, 1, self._width) for one in embedded]
        wide = self._linear(self._network.wide, standard)
        if weights:
            own = self._add("ReduceSum", self._add("Concat", *weights, axis=1), np.array([1]), keepdims=1)
            wide = self._add("Add", wide, own)
        deep = self._through(self._network.deep, self._add("Concat", standard, *rest, axis=1))
        return self._add("Add", wide, deep)

    def _of_every_row(self, embedded: str, first: int, last: int) -> str:
        """Return some floats of every row, flat."""
        cut = self._add("Slice", embedded, np.array([first]), np.array([last]), np.array([2]))
        return self._add("Flatten", cut, axis=1)
