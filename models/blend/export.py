"""A blend as nodes of an ONNX graph: the members' nodes on shared inputs, and their weighted sum."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from models.blend.ranker import LARGEST_LOG_ODDS, MEMBERS, read_weights
from models.blend.section import BlendModel
from shortlist.ranking.heads import add_label
from shortlist.ranking.record import TrainedModel, read_record
from shortlist.serving.export.graph import FeatureGraph


def add_members(graph: FeatureGraph, record: TrainedModel, folder: Path) -> str:
    """Add the members of a model; return the tensor of its log-odds, shape (rows, 1).

    Args:
        graph: The graph that the nodes are added to.
        record: Names the members.
        folder: The model folder.
    """
    graph.run_whole()
    members = BlendModel.model_validate(record.params).members
    weights, intercept = read_weights(folder, members)
    columns = [_log_odds(graph, folder / MEMBERS / name) for name in members]
    return graph.nodes.add("Gemm", graph.nodes.joined(columns, axis=1), weights[:, None], np.array([intercept]))


def _log_odds(graph: FeatureGraph, folder: Path) -> str:
    """Add one member; return its log-odds, clipped as in training."""
    log_odds, add = add_label(graph, read_record(folder), folder), graph.nodes.add
    # By comparison, not by Clip: NaN must stay NaN, so that the server can detect it.
    smallest, largest = np.array(-LARGEST_LOG_ODDS), np.array(LARGEST_LOG_ODDS)
    at_least = add("Where", add("Less", log_odds, smallest), smallest, log_odds)
    return add("Where", add("Greater", at_least, largest), largest, at_least)
