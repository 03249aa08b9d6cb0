"""Boosted trees as nodes of an ONNX graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from shortlist.ranking.matrix import float_names
from shortlist.ranking.record import TrainedModel
from shortlist.serving.export.fil import write_fil_repository
from shortlist.serving.export.graph import FeatureGraph
from shortlist.serving.export.graph_builder import ML, ExportError
from shortlist.serving.export.signature import FOLDER
from shortlist.spec.serving import Serving

WEIGHTS: Final = "model.ubj"
_OBJECTIVES = ("binary:logistic", "rank:pairwise", "rank:ndcg")


def add_trees(graph: FeatureGraph, record: TrainedModel, folder: Path) -> str:
    """Add the features and trees of a model; return the tensor of its log-odds, shape (rows, 1).

    Args:
        graph: The graph that the nodes are added to.
        record: Names the features in the order of the trees' feature numbers.
        folder: The model folder.

    Raises:
        ExportError: The trees have splits that this program does not train, such as categorical ones.
    """
    floats = graph.floats([feature.name for feature in record.features])
    floats = graph.border(floats, "floats", np.float32, len(float_names(record.features)))
    return graph.nodes.add("TreeEnsembleRegressor", floats, domain=ML, **tree_attributes(folder / WEIGHTS))


def write_fil(model: Path, version: int, serving: Serving, out: Path) -> None:
    """Write a Triton repository whose trees run on the FIL backend; see `write_fil_repository`."""
    write_fil_repository(model / FOLDER, version, serving.batching, out, serving.placement)


def tree_attributes(weights: Path) -> dict[str, Any]:
    """Return the attributes of a TreeEnsembleRegressor that gives a booster's log-odds.

    A row goes left (`true`) where its value is below the threshold, or missing and left is the default; all in float32
    as in XGBoost. All trees of the file are used: training saves only those up to the best round.
    """
    import xgboost as xgb

    learner = json.loads(xgb.Booster(model_file=weights).save_raw("json"))["learner"]
    if learner["objective"]["name"] not in _OBJECTIVES or learner["gradient_booster"]["name"] != "gbtree":
        raise ExportError(
            f"{weights}: {learner['gradient_booster']['name']} for {learner['objective']['name']}; wanted trees for"
            f" {_OBJECTIVES[0]} or an order. Train the model with this program."
        )
    parts = [_tree(tree, number, weights) for number, tree in enumerate(learner["gradient_booster"]["model"]["trees"])]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    leaf = joined["left"] < 0
    modes = np.where(leaf, "LEAF", "BRANCH_LT")
    return {
        "n_targets": 1,
        "base_values": [_base_margin(learner)],
        "nodes_treeids": joined["tree"],
        "nodes_nodeids": joined["node"],
        "nodes_modes": modes.tolist(),
        "nodes_featureids": np.where(leaf, 0, joined["feature"]),
        "nodes_values": np.where(leaf, 0, joined["value"]).tolist(),
        "nodes_truenodeids": np.where(leaf, 0, joined["left"]),
        "nodes_falsenodeids": np.where(leaf, 0, joined["right"]),
        "nodes_missing_value_tracks_true": np.where(leaf, 0, joined["default_left"]),
        "target_treeids": joined["tree"][leaf],
        "target_nodeids": joined["node"][leaf],
        "target_ids": np.zeros(int(leaf.sum()), np.int64),
        "target_weights": joined["value"][leaf].tolist(),
    }


def _tree(tree: dict[str, Any], number: int, weights: Path) -> dict[str, np.ndarray]:
    if tree["categories"] or any(tree["split_type"]):
        raise ExportError(f"{weights}: tree {number} splits categories; an exported graph compares numbers only")
    left_children = np.array(tree["left_children"], np.int64)
    return {
        "tree": np.full(len(left_children), number),
        "node": np.arange(len(left_children)),
        "left": left_children,
        "right": np.array(tree["right_children"], np.int64),
        "feature": np.array(tree["split_indices"], np.int64),
        "value": np.array(tree["split_conditions"], np.float32),  # of a leaf: its weight
        "default_left": np.array(tree["default_left"], np.int64),
    }


def _base_margin(learner: dict[str, Any]) -> float:
    """Return the log-odds that every row starts from."""
    base = json.loads(learner["learner_model_param"]["base_score"])
    score = np.float32(base[0] if isinstance(base, list) else base)  # a list since XGBoost 3.1
    if learner["objective"]["name"] != _OBJECTIVES[0]:
        return float(score)  # ranking scores are no log-odds; the base score is used as it is
    return float(-np.log(np.float32(1) / score - np.float32(1)))
