"""Adds a trained model with its further labels and calibrations to an ONNX graph."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from shortlist.contracts import Files
from shortlist.ranking.record import TrainedModel, read_record
from shortlist.ranking.registry import kind_of
from shortlist.serving.export.calibration import Calibration
from shortlist.serving.export.graph import FeatureGraph

HEADS: Final = "heads"
"""Subfolder of a model folder with one folder per further label, which holds a model or a calibration."""


def add_label(graph: FeatureGraph, record: TrainedModel, folder: Path) -> str:
    """Add a trained model; return the tensor of the label's calibrated log-odds, shape (rows, 1).

    Args:
        graph: The graph that the nodes are added to.
        record: Record of the model.
        folder: The model folder.
    """
    logits = _add_model(graph, record, folder)
    return _add_calibration(graph, _log_odds_column(graph, record, folder, logits, 0), folder)


def add_labels(graph: FeatureGraph, record: TrainedModel, folder: Path) -> list[str]:
    """Add a trained model; return the tensors of calibrated log-odds, shape (rows, 1) each: the label's first.

    Args:
        graph: The graph that the nodes are added to.
        record: Record of the model; names the further labels.
        folder: The model folder.
    """
    logits = _add_model(graph, record, folder)
    tensors = [_add_calibration(graph, _log_odds_column(graph, record, folder, logits, 0), folder)]
    for column, label in enumerate(record.labels, start=1):
        head = folder / HEADS / label
        if _has_own_models(record, folder):
            tensors.append(add_label(graph, read_record(head), head))
        else:
            tensors.append(_add_calibration(graph, _log_odds_column(graph, record, folder, logits, column), head))
    return tensors


def _add_model(graph: FeatureGraph, record: TrainedModel, folder: Path) -> str:
    logits: str = kind_of(record.kind).load("export")(graph, record, folder)
    return logits


def _has_own_models(record: TrainedModel, folder: Path) -> bool:
    """Whether each further label has a separate model; else the model's log-odds have a column per label."""
    return any((folder / HEADS / label / Files.MODEL).exists() for label in record.labels)


def _log_odds_column(graph: FeatureGraph, record: TrainedModel, folder: Path, logits: str, column: int) -> str:
    if not record.labels or _has_own_models(record, folder):
        return logits
    return graph.nodes.column(logits, column)


def _add_calibration(graph: FeatureGraph, logits: str, folder: Path) -> str:
    calibration = Calibration.read(folder)
    return logits if calibration is None else calibration.add_nodes(graph.nodes, logits)
