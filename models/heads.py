"""The scores of further labels as nodes of an ONNX graph, wherever a kind computes them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from models.record import TrainedModel, read_record
from models.registry import kind_of
from shortlist.contracts import Files
from shortlist.serving.export.calibration import Calibration
from shortlist.serving.export.graph import FeatureGraph

HEADS: Final = "heads"
"""Folder, in that of a model, of what belongs to each of its further labels: a model, or a calibration."""


def add_label(graph: FeatureGraph, record: TrainedModel, folder: Path) -> str:
    """Add a trained model; return the tensor of the label's calibrated log-odds, shape (rows, 1).

    Args:
        graph: Gets the nodes.
        record: Of the model.
        folder: The model folder.
    """
    logits = _added(graph, record, folder)
    return _calibrated(graph, _column(graph, record, folder, logits, 0), folder)


def add_labels(graph: FeatureGraph, record: TrainedModel, folder: Path) -> list[str]:
    """Add a trained model; return the tensors of calibrated log-odds, shape (rows, 1) each: the label's first.

    Args:
        graph: Gets the nodes.
        record: Of the model; names the further labels.
        folder: The model folder.
    """
    logits = _added(graph, record, folder)
    columns = [_calibrated(graph, _column(graph, record, folder, logits, 0), folder)]
    for place, label in enumerate(record.labels, start=1):
        head = folder / HEADS / label
        if _has_own_models(record, folder):
            columns.append(add_label(graph, read_record(head), head))
        else:
            columns.append(_calibrated(graph, _column(graph, record, folder, logits, place), head))
    return columns


def _added(graph: FeatureGraph, record: TrainedModel, folder: Path) -> str:
    logits: str = kind_of(record.kind).load("export")(graph, record, folder)
    return logits


def _has_own_models(record: TrainedModel, folder: Path) -> bool:
    """Whether each further label has a model of its own; else the label's tensor has a column for each."""
    return any((folder / HEADS / label / Files.MODEL).exists() for label in record.labels)


def _column(graph: FeatureGraph, record: TrainedModel, folder: Path, logits: str, place: int) -> str:
    if not record.labels or _has_own_models(record, folder):
        return logits
    return graph.nodes.column(logits, place)


def _calibrated(graph: FeatureGraph, logits: str, folder: Path) -> str:
    calibration = Calibration.read(folder)
    return logits if calibration is None else calibration.add_nodes(graph.nodes, logits)
