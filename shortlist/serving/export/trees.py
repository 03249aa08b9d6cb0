"""Converts the trees of an exported graph to the flat arrays of `tree_walk`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from shortlist.contracts import ShortlistError
from shortlist.serving.export.graph_split import read_graph
from shortlist.serving.export.program.tree_walk import TOP_EXITS, TOP_NODES, TREES
from shortlist.storage.artefacts import IntegrityError

_OPERATION: Final = "TreeEnsembleRegressor"
_TOP_LEVELS: Final = 3


def write_trees(graph: Path, out: Path) -> None:
    """Write the trees of a graph; the same graph gives the same bytes.

    Args:
        graph: The whole graph.
        out: Folder to write to.

    Raises:
        IntegrityError: The graph is missing or broken, or contains no trees.
        ShortlistError: `tree_walk` does not support the trees.
    """
    ensembles = [node for node in read_graph(graph).graph.node if node.op_type == _OPERATION]
    if len(ensembles) != 1:
        raise IntegrityError(f"{graph}: holds {len(ensembles)} ensembles of trees, wanted one; export the model again")
    ensemble = _Ensemble(_attributes(ensembles[0]), graph)
    tops, thresholds, nodes, values = ensemble.flatten()
    np.savez(
        out / TREES, columns=ensemble.columns, tops=tops, thresholds=thresholds, nodes=nodes, values=values,
        base=ensemble.base,
    )  # fmt: skip


class _Ensemble:
    """Trees in ONNX form: every node has the number of its tree and its own number.

    Attributes:
        columns: See `tree_walk.walk`.
        base: See `tree_walk.walk`.
    """

    def __init__(self, attributes: dict[str, Any], graph: Path) -> None:
        """Read the trees.

        Raises:
            ShortlistError: See `write_trees`.
        """
        trees, modes = attributes["nodes_treeids"], attributes["nodes_modes"]
        position_by_key = {
            key: position for position, key in enumerate(zip(trees, attributes["nodes_nodeids"], strict=True))
        }
        self._roots = [position_by_key[tree, 0] for tree in sorted(set(trees))]
        self._leaf = np.array([mode == b"LEAF" for mode in modes])
        self._left = [position_by_key[key] for key in zip(trees, attributes["nodes_truenodeids"], strict=True)]
        self._right = [position_by_key[key] for key in zip(trees, attributes["nodes_falsenodeids"], strict=True)]
        self._values = np.array(attributes["nodes_values"], np.float32)
        if set(modes) - {b"BRANCH_LT", b"LEAF"} or not np.isfinite(self._values).all():
            raise ShortlistError(
                f"{graph}: trees of {', '.join(sorted({mode.decode() for mode in modes}))}; our program walks those of"
                " BRANCH_LT with finite thresholds. Declare serving.scoring.runtime: onnxruntime."
            )
        leaves = [
            position_by_key[key] for key in zip(attributes["target_treeids"], attributes["target_nodeids"], strict=True)
        ]
        self._values[leaves] = attributes["target_weights"]
        self.base = np.array(attributes["base_values"], np.float32)
        columns_read = np.column_stack([attributes["nodes_featureids"], attributes["nodes_missing_value_tracks_true"]])[
            ~self._leaf
        ]
        columns, numbers = np.unique(columns_read, axis=0, return_inverse=True)
        self.columns = columns.astype(np.int32)
        self._column = np.full(len(self._leaf), len(columns), np.int32)  # a leaf's
        self._column[~self._leaf] = numbers.ravel()

    def flatten(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return `tops`, `thresholds`, `nodes` and `values` of `tree_walk.walk`."""
        order: list[int] = []
        number_by_node: dict[int, int] = {}
        tops, inner_nodes = [], []
        for root in self._roots:
            members, levels = self._by_level(root)
            number_by_node |= {node: len(order) + position for position, node in enumerate(members)}
            order += members
            inner, exits = self._top(root)
            inner_nodes.append(inner)
            tops.append([*self._column[inner], *(number_by_node[node] for node in exits), max(0, levels - _TOP_LEVELS)])
        left = [number_by_node[node] - 1 if self._leaf[node] else number_by_node[self._left[node]] for node in order]
        nodes = np.column_stack([self._column[order], left]).astype(np.int32)
        return np.array(tops, np.int32), self._values[np.array(inner_nodes)], nodes, self._values[order]

    def _by_level(self, root: int) -> tuple[list[int], int]:
        """Return a tree's nodes level by level, siblings side by side, and its number of levels below the root."""
        nodes, level, levels = [root], [root], 0
        while level := [child for node in level if not self._leaf[node] for child in self._children(node)]:
            nodes += level
            levels += 1
        return nodes, levels

    def _top(self, root: int) -> tuple[list[int], list[int]]:
        """Return the nodes of the first three levels, and the nodes after them; a leaf is followed by itself."""
        nodes = [root]
        for position in range(TOP_NODES):
            nodes += [nodes[position]] * 2 if self._leaf[nodes[position]] else self._children(nodes[position])
        assert len(nodes) == TOP_NODES + TOP_EXITS
        return nodes[:TOP_NODES], nodes[TOP_NODES:]

    def _children(self, node: int) -> list[int]:
        return [self._left[node], self._right[node]]


def _attributes(node: Any) -> dict[str, Any]:
    from onnx.helper import get_attribute_value

    return {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}
