"""Oblivious trees as nodes of an ONNX graph: lookups by id before the features end, then trees that compare numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.catboost.lookup import MISSING_KEY, Lookup, float_features, id_features
from models.catboost.oblivious_trees import ObliviousTrees, nodes_of
from shortlist.ranking.inputs import TableFeature
from shortlist.ranking.matrix import float_names
from shortlist.ranking.record import TrainedModel
from shortlist.serving.export.graph import FeatureGraph
from shortlist.serving.export.graph_builder import ML


def add_trees(graph: FeatureGraph, record: TrainedModel, folder: Path) -> str:
    """Add the features, lookups and trees of a model; return the tensor of its log-odds, shape (rows, 1).

    Args:
        graph: The graph that the nodes are added to.
        record: Names the features.
        folder: The model folder.
    """
    trees = ObliviousTrees.read(folder)
    columns = _Columns(graph, record.features)
    blocks = [*columns.blocks, *(_add_lookup(columns, lookup) for lookup in trees.lookups)]
    width = columns.width + sum(lookup.values.shape[1] for lookup in trees.lookups)
    numbers = graph.border(graph.nodes.joined(blocks, axis=1), "floats", np.float32, width)
    return graph.nodes.add("TreeEnsembleRegressor", numbers, domain=ML, **tree_attributes(trees))


class _Columns:
    """The floats and ids of a graph by name.

    Attributes:
        nodes: Builder of the graph.
        blocks: The matrix of the floats, if there are any.
        width: Number of floats.
    """

    def __init__(self, graph: FeatureGraph, features: Sequence[TableFeature]) -> None:
        self.nodes = graph.nodes
        floats, ids = float_features(features), [feature.name for feature in id_features(features)]
        self.blocks = [graph.floats([feature.name for feature in floats])] if floats else []
        self._matrices = {name: (self.blocks[0], number) for number, name in enumerate(float_names(floats))}
        if ids:
            matrix = graph.ids(ids)
            self._matrices |= {name: (matrix, number) for number, name in enumerate(ids)}
        self.width = len(float_names(floats))
        self._ids = frozenset(ids)
        self._tensors: dict[str, str] = {}

    def column(self, name: str) -> str:
        """Return a float (FP32) or an id (INT64) of each row, shape (rows,)."""
        if name not in self._tensors:
            matrix, number = self._matrices[name]
            self._tensors[name] = self.nodes.add("Gather", matrix, np.array(number), axis=1)
        return self._tensors[name]

    def is_missing(self, name: str) -> str:
        """Return whether a row lacks a float or an id."""
        if name in self._ids:
            return self.nodes.add("Equal", self.column(name), np.array(0))
        return self.nodes.add("IsNaN", self.column(name))


def _add_lookup(columns: _Columns, lookup: Lookup) -> str:
    """Add a lookup; return its numbers, shape (rows, columns)."""
    add, combination = columns.nodes.add, lookup.combination
    parts = [
        *(columns.column(name) for name in combination.ids),
        *(_as_bit(columns, add("Greater", columns.column(name), np.array(border, np.float32)))
          for name, border in combination.comparisons),
        *(_as_bit(columns, add("Equal", columns.column(name), np.array(id_))) for name, id_ in combination.matches),
    ]  # fmt: skip
    key = parts[0]
    for part, radix in zip(parts[1:], combination.radices[1:], strict=True):
        key = add("Add", add("Mul", key, np.array(radix)), part)
    if not combination.is_single:
        for name in sorted(lookup.rarely_unknown):
            key = add("Where", columns.is_missing(name), np.array(MISSING_KEY), key)
        key = add(
            "LabelEncoder", key, domain=ML, keys_int64s=lookup.keys, values_int64s=np.arange(len(lookup.keys)),
            default_int64=len(lookup.keys),
        )  # fmt: skip
    return add("Gather", lookup.values, key, axis=0)


def _as_bit(columns: _Columns, condition: str) -> str:
    return columns.nodes.cast(condition, np.int64)


def tree_attributes(trees: ObliviousTrees) -> dict[str, Any]:
    """Return the attributes of a TreeEnsembleRegressor that gives the log-odds of oblivious trees.

    A row goes left (`true`) where its number is at most the border: below the next float32. All numbers are float32, so
    no row takes another path.
    """
    parts = []
    for number, tree in enumerate(trees):
        nodes, zeros = nodes_of(len(tree.columns)), np.zeros(len(tree.leaves), np.int64)
        inner, leaves = len(nodes.level), len(tree.leaves)
        parts.append(
            {
                "tree": np.full(inner + leaves, number),
                "node": np.arange(inner + leaves),
                "leaf": np.arange(inner + leaves) >= inner,
                "feature": np.append(tree.columns[nodes.level], zeros),
                "value": np.append(np.nextafter(tree.borders, np.float32(np.inf))[nodes.level], tree.leaves),
                "left": np.append(nodes.left, zeros),
                "right": np.append(nodes.right, zeros),
                "missing_left": np.append(~tree.missing_is_above, zeros),
            }
        )
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    leaf = columns["leaf"]
    return {
        "n_targets": 1,
        "base_values": trees.base.tolist(),
        "nodes_treeids": columns["tree"],
        "nodes_nodeids": columns["node"],
        "nodes_modes": np.where(leaf, "LEAF", "BRANCH_LT").tolist(),
        "nodes_featureids": columns["feature"],
        "nodes_values": np.where(leaf, 0, columns["value"]).tolist(),
        "nodes_truenodeids": columns["left"],
        "nodes_falsenodeids": columns["right"],
        "nodes_missing_value_tracks_true": columns["missing_left"].astype(np.int64),
        "target_treeids": columns["tree"][leaf],
        "target_nodeids": columns["node"][leaf],
        "target_ids": np.zeros(int(leaf.sum()), np.int64),
        "target_weights": columns["value"][leaf].tolist(),
    }
