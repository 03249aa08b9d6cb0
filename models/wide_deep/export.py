"""Wide and deep network (Cheng et al., 2016), as nodes of an ONNX graph."""

from __future__ import annotations

import numpy as np

from models.embedding.network.network_graph import NetworkGraph
from models.wide_deep.network import WideDeep, WideDeepNetwork
from models.wide_deep.section import WideDeepModel


class WideDeepGraph(NetworkGraph[WideDeepNetwork]):
    """`models.wide_deep.network` in ONNX's operators."""

    model_type = WideDeep
    section_type = WideDeepModel

    def logits(self) -> str:
        """Return the tensor of the log-odds, R x 1."""
        embedded = self._look_up_embeddings()
        standard = self._standard(embedded)
        weights = [self._slice_floats(embedding, 0, 1) for embedding in embedded]
        deep_embeddings = [self._slice_floats(embedding, 1, self._width) for embedding in embedded]
        wide = self._linear(self._network.wide, standard)
        if weights:
            id_weights = self._add("ReduceSum", self._add("Concat", *weights, axis=1), np.array([1]), keepdims=1)
            wide = self._add("Add", wide, id_weights)
        deep = self._apply_layers(self._network.deep, self._add("Concat", standard, *deep_embeddings, axis=1))
        return self._add("Add", wide, deep)

    def _slice_floats(self, embedded: str, first: int, last: int) -> str:
        """Return a range of every embedding's floats, flattened."""
        cut = self._add("Slice", embedded, np.array([first]), np.array([last]), np.array([2]))
        return self._add("Flatten", cut, axis=1)
