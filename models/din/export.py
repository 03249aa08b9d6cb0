"""Deep interest network (Zhou et al., 2018), as nodes of an ONNX graph."""

from __future__ import annotations

import numpy as np
from torch import nn

from models.din.network import DIN, MASKED_LOGIT, InterestNetwork
from models.din.section import DINModel
from models.embedding.network.network_graph import NetworkGraph
from models.embedding.reading.layout import AttendedSequence
from models.embedding_section import EmbeddingSection


class InterestGraph(NetworkGraph[InterestNetwork]):
    """`models.din.network` in ONNX's operators.

    L places, N interacting vectors, P pairs, H hidden units, E is D + 1, U runs: neighbouring rows with the same
    history, such as the candidates of a request. Everything that depends on the history alone is computed once per run.
    """

    model_type = DIN
    section_type = DINModel

    @classmethod
    def _attended(cls, section: EmbeddingSection) -> AttendedSequence:
        assert isinstance(section, DINModel)
        return AttendedSequence(section.history, section.target)

    def logits(self) -> str:
        """Return the tensor of the log-odds, R x 1."""
        embedded = self._look_up_embeddings()
        rows_UL, lengths_U1, run_R = self._past_rows()
        self._lengths_R1 = self._add("Gather", lengths_U1, run_R, axis=0)
        bottom_RD = self._apply_layers(self._network.bottom, self._standard(embedded))
        run_R1 = self._graph.nodes.cast(self._add("Unsqueeze", run_R, np.array([1])), np.int32)
        run_R1 = self._graph.border(run_R1, "run", np.int32, 1)
        interest_R1D = self._interest(embedded[0], rows_UL, self._add("Squeeze", run_R1, np.array([1])))
        bottom_R1D = self._add("Unsqueeze", bottom_RD, np.array([1]))
        vectors_RND = self._add("Concat", bottom_R1D, *embedded, interest_R1D, axis=1)
        turned_RDN = self._add("Transpose", vectors_RND, perm=[0, 2, 1])
        dots_RNN = self._add("MatMul", vectors_RND, turned_RDN)
        pairs = self._network.interaction.pairs_P.numpy()
        pairs_RP = self._add("Gather", self._add("Flatten", dots_RNN, axis=1), pairs, axis=1)
        return self._apply_layers(self._network.top, self._add("Concat", bottom_RD, pairs_RP, axis=1))

    def _past_rows(self) -> tuple[str, str, str]:
        """Return the table rows of the past items, U x L at the border, their number, U x 1, and each row's run, R."""
        layout, add = self._layout, self._add
        assert layout.history is not None
        ids_UW, is_event_UW, run_R = self._graph.lists_by_run(layout.history.name)
        numbers_UW = add("Add", ids_UW, np.array([layout.starts[layout.target]]))
        numbers_UW = add("Where", is_event_UW, numbers_UW, self._no_row.astype(np.int64))
        lengths_U1 = add("ReduceSum", self._graph.nodes.cast(is_event_UW, np.float32), np.array([1]), keepdims=1)
        # As wide in every request: OpenVINO makes kernels for every shape that it meets.
        runs = add("Slice", add("Shape", numbers_UW), np.array([0]), np.array([1]))
        shape = add("Concat", runs, np.array([layout.events]), axis=0)
        none_UL = add("Expand", self._no_row.astype(np.int64)[None], shape)
        wide_UL = add("Concat", numbers_UW, none_UL, axis=1)
        cut_UL = add("Slice", wide_UL, np.array([0]), np.array([layout.events]), np.array([1]))
        rows_UL = self._graph.nodes.cast(cut_UL, np.int32)
        return self._graph.border(rows_UL, "history", np.int32, layout.events, "runs"), lengths_U1, run_R

    def _floats(self, embedded: list[str]) -> str:
        return self._add("Concat", super()._floats(embedded), self._lengths_R1, axis=1)

    def _interest(self, ids_RSD: str, rows_UL: str, run_R: str) -> str:
        """Return the attention-weighted sum of the past items, R x 1 x D."""
        add, network, width = self._add, self._network.attention, self._width
        past_RLE = add("Gather", self._past_items(rows_UL), run_R, axis=0)
        recency_L = network.recency_L.detach().numpy()
        is_padding_UL = add("Equal", rows_UL, self._no_row)
        # Padding has no weight; without any event, every place is the row of zeros.
        bias_UL = add("Where", is_padding_UL, np.array(MASKED_LOGIT, np.float32), recency_L)
        item_RD = add("Gather", ids_RSD, np.array(self._layout.target), axis=1)
        first, *other_layers = network.score.children()
        assert isinstance(first, nn.Linear)
        outputs = add("MatMul", past_RLE, self._item_weights(first, item_RD))
        for layer in other_layers:
            if isinstance(layer, nn.Linear):
                product = add("MatMul", outputs, layer.weight.detach().numpy().T.copy())
                outputs = add("Add", product, layer.bias.detach().numpy()) if layer.out_features > 1 else product
            else:
                outputs = add("Relu", outputs)
        # The bias of the only output is the same in all places: it changes no weight.
        logits_RL = add("Add", add("Squeeze", outputs, np.array([2])), add("Gather", bias_UL, run_R, axis=0))
        weights_R1L = add("Unsqueeze", add("Softmax", logits_RL, axis=1), np.array([1]))
        interest_R1E = add("MatMul", weights_R1L, past_RLE)
        return add("Slice", interest_R1E, np.array([0]), np.array([width]), np.array([2]))

    def _past_items(self, rows_UL: str) -> str:
        """Return the past items with a one behind each, U x L x E, where E is D + 1."""
        past_ULD = self._add("Gather", self._table, rows_UL, axis=0)
        first_UL1 = self._add("Slice", past_ULD, np.array([0]), np.array([1]), np.array([2]))
        ones_UL1 = self._add("Expand", np.ones((1, 1, 1), np.float32), self._add("Shape", first_UL1))
        return self._add("Concat", past_ULD, ones_UL1, axis=2)

    def _item_weights(self, layer: nn.Linear, item_RD: str) -> str:
        """Return, for each row, the matrix that past items are multiplied with instead of the first layer, R x E x H.

        The layer reads item, past item and product. For a given item it is linear in the past item, and its matrix and
        bias are linear in the item. So a place takes D x H products instead of 3 x D x H.
        """
        item_DH, past_DH, product_DH = np.split(layer.weight.detach().numpy().T, 3)
        width, hidden_units = item_DH.shape
        weights_DEH = np.zeros((width, width + 1, hidden_units), np.float32)
        weights_DEH[np.arange(width), np.arange(width)] = product_DH
        weights_DEH[:, width] = item_DH
        bias_EH = np.concatenate([past_DH, layer.bias.detach().numpy()[None]])
        flat_RF = self._add("Gemm", item_RD, weights_DEH.reshape(width, -1), bias_EH.reshape(-1))
        return self._add("Reshape", flat_RF, np.array([-1, width + 1, hidden_units]))
