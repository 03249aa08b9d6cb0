"""Deep interest network (Zhou et al., 2018), as nodes of an ONNX graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import nn

from models.din.network import DIN, NOT_THERE, InterestNetwork
from models.din.section import DINModel
from models.dlrm.layout import Attended
from models.dlrm.network_graph import NetworkGraph, read_model
from models.record import TrainedModel
from shortlist.serving.export.graph import FeatureGraph


def add_network(graph: FeatureGraph, record: TrainedModel, folder: Path) -> str:
    """Add the features and the network of a model; return the tensor of its log-odds, shape (rows, 1).

    Args:
        graph: Gets the nodes.
        record: Names the features.
        folder: The model folder.
    """
    section = DINModel.model_validate(record.params)
    layout, model = read_model(record, folder, DIN, DINModel, Attended(section.history, section.target))
    return InterestGraph(graph, layout, model.network, model).logits()


class InterestGraph(NetworkGraph[InterestNetwork]):
    """`models.din.network` in ONNX's operators; L places, N interacting vectors, P pairs."""

    def logits(self) -> str:
        """Return the tensor of the log-odds, R x 1."""
        embedded = self._embedded()
        rows_RL, self._lengths_R1 = self._past_rows()
        bottom_RD = self._through(self._network.bottom, self._standard(embedded))
        found_R1D = self._found(embedded[0], rows_RL)
        bottom_R1D = self._add("Unsqueeze", bottom_RD, np.array([1]))
        vectors_RND = self._add("Concat", bottom_R1D, *embedded, found_R1D, axis=1)
        turned_RDN = self._add("Transpose", vectors_RND, perm=[0, 2, 1])
        dots_RNN = self._add("MatMul", vectors_RND, turned_RDN)
        pairs = self._network.interaction.pairs_P.numpy()
        pairs_RP = self._add("Gather", self._add("Flatten", dots_RNN, axis=1), pairs, axis=1)
        return self._through(self._network.top, self._add("Concat", bottom_RD, pairs_RP, axis=1))

    def _past_rows(self) -> tuple[str, str]:
        """Return the table's rows of the past items, R x L at the border, and how many there are, R x 1."""
        layout, add = self._layout, self._add
        assert layout.history is not None
        ids_RW, there_RW = self._graph.lists(layout.history.name)
        numbers_RW = add("Add", ids_RW, np.array([layout.starts[layout.target]]))
        numbers_RW = add("Where", there_RW, numbers_RW, self._no_row.astype(np.int64))
        lengths_R1 = add("ReduceSum", self._graph.nodes.cast(there_RW, np.float32), np.array([1]), keepdims=1)
        # As wide in every request: OpenVINO makes kernels for every shape that it meets.
        rows = add("Slice", add("Shape", numbers_RW), np.array([0]), np.array([1]))
        shape = add("Concat", rows, np.array([layout.events]), axis=0)
        none_RL = add("Expand", self._no_row.astype(np.int64)[None], shape)
        wide_RL = add("Concat", numbers_RW, none_RL, axis=1)
        cut_RL = add("Slice", wide_RL, np.array([0]), np.array([layout.events]), np.array([1]))
        return self._rows(cut_RL, "history", layout.events), lengths_R1

    def _floats(self, embedded: list[str]) -> str:
        return self._add("Concat", super()._floats(embedded), self._lengths_R1, axis=1)

    def _found(self, ids_RSD: str, rows_RL: str) -> str:
        """Return what the item finds in the past ones, R x 1 x D."""
        add, target, network = self._add, self._layout.target, self._network.attention
        past_RLD = add("Gather", self._table, rows_RL, axis=0)
        there_RL = add("Not", add("Equal", rows_RL, self._no_row))
        item_R1D = add("Slice", ids_RSD, np.array([target]), np.array([target + 1]), np.array([1]))
        items_RLD = add("Expand", item_R1D, add("Shape", past_RLD))
        outputs = add("Concat", items_RLD, past_RLD, add("Mul", items_RLD, past_RLD), axis=2)
        for layer in network.score.children():
            if isinstance(layer, nn.Linear):
                product = add("MatMul", outputs, layer.weight.detach().numpy().T.copy())
                outputs = add("Add", product, layer.bias.detach().numpy())
            else:
                outputs = add("Relu", outputs)
        logits_RL = add("Add", add("Squeeze", outputs, np.array([2])), network.recency_L.detach().numpy())
        logits_RL = add("Where", there_RL, logits_RL, np.array(NOT_THERE, np.float32))
        weights_RL = add("Where", there_RL, add("Softmax", logits_RL, axis=1), np.zeros(1, np.float32))
        return add("MatMul", add("Unsqueeze", weights_RL, np.array([1])), past_RLD)
