"""The encoder of sessions as an ONNX graph, which returns only the state after the newest event.

Shapes: B sessions, L events of the longest one, D width, H heads, d = D / H.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor, nn

from models.sequence.network import Block, Encoder
from shortlist.serving.export.graph_builder import OPSET, GraphBuilder, save
from shortlist.slates.retrieval.sources.sequence import EVENTS, LENGTHS, STATE

_MASKED_SCORE = -1e9


def export(encoder: Encoder, path: Path) -> None:
    """Write a graph from events (B, L, D) and lengths (B,), INT64, to states (B, D), in the encoder's float type."""
    from onnx import TensorProto, helper

    graph = _EncoderGraph(encoder)
    state = graph.nodes.add_named("Identity", graph.state(), STATE)
    width, floats = encoder.final_norm.normalized_shape[0], helper.np_dtype_to_tensor_dtype(np.dtype(graph.dtype))
    inputs = [
        helper.make_tensor_value_info(EVENTS, floats, ["sessions", "longest", width]),
        helper.make_tensor_value_info(LENGTHS, TensorProto.INT64, ["sessions"]),
    ]
    output = helper.make_tensor_value_info(state, floats, ["sessions", width])
    assert OPSET >= 17  # LayerNormalization
    save(graph.nodes.model(inputs, [output]), path)


class _EncoderGraph:
    """Adds `Encoder.forward` to a graph; the last block has one query per session, the newest event."""

    def __init__(self, encoder: Encoder) -> None:
        self.nodes = GraphBuilder()
        self._add = self.nodes.add
        self._encoder = encoder.eval()
        self.dtype = _array(encoder.final_norm.weight).dtype.type

    def state(self) -> str:
        """Return the states, shape (B, D)."""
        add = self._add
        self._length = add("Gather", add("Shape", EVENTS), np.array([1]), axis=0)
        self._places = add("Range", np.array(0), add("Squeeze", self._length), np.array(1))  # (L,)
        states, blocks = EVENTS, list(self._encoder.blocks)
        for number, block in enumerate(blocks):
            assert isinstance(block, Block)
            states = self._block(block, states, newest=number == len(blocks) - 1)
        return add("Squeeze", self._normed(self._encoder.final_norm, states), np.array([1]))

    def _block(self, block: Block, events: str, *, newest: bool) -> str:
        normed = self._normed(block.before_attention, events)
        query_events = self._first(normed) if newest else normed
        queries, keys, values = (
            self._by_head(block, self._linear(part, tensor))
            for part, tensor in ((block.queries, query_events), (block.keys, normed), (block.values, normed))
        )
        width = block.queries.out_features // len(block.distances_HL)
        scaled = self._add("Mul", queries, np.array([width**-0.5], self.dtype))
        scores = self._add("MatMul", scaled, self._add("Transpose", keys, perm=[0, 1, 3, 2]))
        masked_scores = self._add("Add", self._add("Add", scores, self._distances(block, newest)), self._mask(newest))
        attended = self._add("MatMul", self._add("Softmax", masked_scores, axis=-1), values)
        joined = self._add("Transpose", attended, perm=[0, 2, 1, 3])
        flat = self._add("Reshape", joined, np.array([0, 0, block.queries.out_features]))
        events = self._add("Add", self._first(events) if newest else events, self._linear(block.out, flat))
        inner = self._add("Relu", self._linear(block.inner, self._normed(block.before_perceptron, events)))
        return self._add("Add", events, self._linear(block.outer, inner))

    def _distances(self, block: Block, newest: bool) -> str:
        """Return the score terms of distances, shape (H, 1 or L, L)."""
        table = _array(block.distances_HL)
        distances = self._event_distances(newest)
        low = self._add("Max", distances, np.array(0))
        return self._add("Gather", table, self._add("Min", low, np.array(table.shape[1] - 1)), axis=1)

    def _event_distances(self, newest: bool) -> str:
        keys = self._add("Unsqueeze", self._places, np.array([0]))
        if newest:
            return keys
        return self._add("Sub", keys, self._add("Unsqueeze", self._places, np.array([1])))

    def _mask(self, newest: bool) -> str:
        """Return the score terms that mask newer events and padding, shape (B, 1, 1 or L, L)."""
        lengths = self._add("Unsqueeze", LENGTHS, np.array([1]))
        is_event = self._add("Less", self._add("Unsqueeze", self._places, np.array([0])), lengths)  # (B, L)
        is_visible = self._add("Unsqueeze", is_event, np.array([1, 2]))
        if not newest:
            is_visible = self._add(
                "And", is_visible, self._add("GreaterOrEqual", self._event_distances(newest), np.array(0))
            )
        return self._add("Where", is_visible, np.zeros(1, self.dtype), np.array([_MASKED_SCORE], self.dtype))

    def _first(self, tensor: str) -> str:
        return self._add("Slice", tensor, np.array([0]), np.array([1]), np.array([1]))

    def _by_head(self, block: Block, tensor: str) -> str:
        heads = len(block.distances_HL)
        parts = self._add("Reshape", tensor, np.array([0, 0, heads, block.queries.out_features // heads]))
        return self._add("Transpose", parts, perm=[0, 2, 1, 3])

    def _normed(self, norm: nn.LayerNorm, tensor: str) -> str:
        return self._add(
            "LayerNormalization", tensor, _array(norm.weight), _array(norm.bias), axis=-1, epsilon=float(norm.eps)
        )  # fmt: skip

    def _linear(self, layer: nn.Linear, tensor: str) -> str:
        weight = np.ascontiguousarray(_array(layer.weight).T)
        return self._add("Add", self._add("MatMul", tensor, weight), _array(layer.bias))


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy()
