"""LightGBM's trees as nodes of an ONNX graph, and their leaf values, in the same float32 numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from shortlist.ranking.matrix import float_names
from shortlist.ranking.record import TrainedModel
from shortlist.serving.export.graph import FeatureGraph
from shortlist.serving.export.graph_builder import ML, ExportError

WEIGHTS: Final = "model.txt"


def add_trees(graph: FeatureGraph, record: TrainedModel, folder: Path) -> str:
    """Add the features and trees of a model; return the tensor of its log-odds, shape (rows, 1).

    Args:
        graph: The graph that the nodes are added to.
        record: Names the features in the order of the trees' feature numbers.
        folder: The model folder.

    Raises:
        ExportError: The trees have splits that this program does not train, such as categorical ones.
    """
    import lightgbm as lgb

    floats = graph.floats([feature.name for feature in record.features])
    floats = graph.border(floats, "floats", np.float32, len(float_names(record.features)))
    attributes = tree_attributes(lgb.Booster(model_file=folder / WEIGHTS))
    return graph.nodes.add("TreeEnsembleRegressor", floats, domain=ML, **attributes)


def tree_attributes(booster: Any) -> dict[str, Any]:
    """Return the attributes of a TreeEnsembleRegressor that gives a booster's log-odds.

    LightGBM goes left where a value is at most a double-precision threshold. Features are float32, so this equals being
    below the smallest float32 above the threshold, and no row takes another path.
    """
    rows = [row for tree in booster.dump_model()["tree_info"] for row in _nodes(tree)]
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    leaf = columns["leaf"]
    return {
        "n_targets": 1,
        "base_values": [0.0],  # LightGBM adds it to the leaves of the first tree
        "nodes_treeids": columns["tree"],
        "nodes_nodeids": columns["node"],
        "nodes_modes": np.where(leaf, "LEAF", "BRANCH_LT").tolist(),
        "nodes_featureids": columns["feature"],
        "nodes_values": np.where(leaf, 0, columns["value"]).tolist(),
        "nodes_truenodeids": columns["left"],
        "nodes_falsenodeids": columns["right"],
        "nodes_missing_value_tracks_true": columns["missing_left"],
        "target_treeids": columns["tree"][leaf],
        "target_nodeids": columns["node"][leaf],
        "target_ids": np.zeros(int(leaf.sum()), np.int64),
        "target_weights": columns["value"][leaf].tolist(),
    }


def leaf_values(booster: Any) -> list[np.ndarray]:
    """Return the log-odds of every tree's leaves by their numbers, float32."""
    values_by_tree = []
    for tree in booster.dump_model()["tree_info"]:
        leaves = {row["leaf_number"]: row["value"] for row in _nodes(tree) if row["leaf"]}
        values_by_tree.append(np.array([leaves[number] for number in range(len(leaves))], np.float32))
    return values_by_tree


def _nodes(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes of a tree, numbered from the root."""
    number: int = tree["tree_index"]
    rows: list[dict[str, Any]] = []
    queue = [tree["tree_structure"]]
    for node in queue:  # the queue grows in the loop
        row = {
            "tree": number, "node": len(rows), "leaf": "leaf_value" in node, "leaf_number": node.get("leaf_index", 0),
            "feature": 0, "left": 0, "right": 0, "missing_left": 0,
        }  # fmt: skip
        if row["leaf"]:
            row["value"] = np.float32(node["leaf_value"])
        else:
            if node["decision_type"] != "<=":
                raise ExportError(f"tree {number} splits categories; an exported graph compares numbers only")
            row |= {
                "feature": node["split_feature"], "value": _next_float32(node["threshold"]),
                "left": len(queue), "right": len(queue) + 1, "missing_left": _goes_left_if_missing(node),
            }  # fmt: skip
            queue += [node["left_child"], node["right_child"]]
        rows.append(row)
    return rows


def _next_float32(threshold: float) -> np.float32:
    """Return the smallest float32 above a threshold."""
    near = np.float32(np.clip(threshold, -_LARGEST, _LARGEST))
    return np.nextafter(near, np.float32(np.inf)) if float(near) <= threshold else near


_LARGEST: Final = float(np.nextafter(np.finfo(np.float32).max, np.float32(0)))
"""Largest threshold whose next float32 is finite."""


def _goes_left_if_missing(node: dict[str, Any]) -> int:
    """Return 1 if NaN goes left; where training had no NaN, LightGBM treats NaN as 0."""
    if node["missing_type"] == "NaN":
        return int(node["default_left"])
    return int(node["threshold"] >= 0)
