"""A trained model, its features included, as one ONNX file beside its weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from shortlist.contracts import Files
from shortlist.features.declared.training_log import LEARNT
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.ranking.heads import add_labels
from shortlist.ranking.record import TrainedModel, read_record
from shortlist.ranking.registry import kind_of
from shortlist.serving.export.calibration import Calibration
from shortlist.serving.export.graph import FeatureGraph
from shortlist.serving.export.graph_builder import EXTERNAL_BYTES, ExportError, save
from shortlist.serving.export.onnx_session import warm_up_graph
from shortlist.serving.export.signature import FOLDER, LOG_ODDS, MODEL_FILE, SCORE, RunsAs
from shortlist.storage.artefacts import atomic_folder, write_manifest

AddModel = Callable[[FeatureGraph, TrainedModel, Path], str]
"""add(graph, record, model folder) adds features and model to a graph; returns the log-odds, shape (rows, 1), with one
more column per further label where one network learns all labels."""

_MIN_SCORE = np.array(1e-7, np.float32)
"""Scores stay this far from 0 and 1, as `Ranker.predict` gives them."""
_COMPARED_FIELDS = {"name", "kind", "size", "width"}


def export(model_folder: Path, spec_name: str, external_bytes: int = EXTERNAL_BYTES) -> None:
    """Write `serving/` (the graph and its signature) into a model folder, and renew the folder's manifest.

    Args:
        model_folder: A trained model with its preprocessing; its files are verified first.
        spec_name: Name of the model in Triton.
        external_bytes: Weights above this size are written beside the graph.

    Raises:
        ExportError: The preprocessing does not give the model's features, or the kind has no export.
        IntegrityError: A file of the model is missing or was changed.
    """
    record = read_record(model_folder)
    kind = kind_of(record.kind)
    if not kind.export:
        raise ExportError(f"a model of kind '{kind.name}' cannot be served; declare role: baseline")
    add_model: AddModel = kind.load("export")
    graph = _graph(record, model_folder)
    calibration = Calibration.read(model_folder)
    if record.labels:
        graph.run_whole()
        columns = add_labels(graph, record, model_folder)
    else:
        logits = graph.nodes.add_described(add_model(graph, record, model_folder), LOG_ODDS, np.float32, 1)
        columns = [logits if calibration is None else calibration.add_nodes(graph.nodes, logits)]
    score = _clip_score(graph, graph.nodes.add("Sigmoid", graph.nodes.joined(columns, axis=1)))
    model, signature = graph.finished(score, SCORE, len(columns), spec_name, record.kind)
    runs_as: RunsAs = "graph" if record.labels else kind.runs_as
    serving_fields = {"runs_as": runs_as, "calibration": calibration, "labels": record.labels}
    signature = signature.model_copy(update=serving_fields)
    with atomic_folder(model_folder / FOLDER) as staging:
        save(model, staging / MODEL_FILE, external_bytes)
        signature.write(staging)
        warm_up_graph(staging, SCORE)
    write_manifest(model_folder)


def _graph(record: TrainedModel, folder: Path) -> FeatureGraph:
    preprocessing = Preprocessing.load(folder / Files.PREPROCESSING)
    column_by_name = {
        column["name"]: {key: column[key] for key in _COMPARED_FIELDS} for column in preprocessing.columns()
    }
    for feature in record.features:
        model_feature = feature.model_dump(include=_COMPARED_FIELDS)
        if column_by_name.get(feature.name) != model_feature:
            raise ExportError(
                f"{folder}: the model reads '{feature.name}' as {model_feature}, its preprocessing makes"
                f" {column_by_name.get(feature.name)}. Train again."
            )
    return FeatureGraph(preprocessing)


def _clip_score(graph: FeatureGraph, score: str) -> str:
    # By comparison, not by Clip: NaN must stay NaN, so that the server can detect it.
    add, largest = graph.nodes.add, np.float32(1) - _MIN_SCORE
    at_least = add("Where", add("Less", score, _MIN_SCORE), _MIN_SCORE, score)
    return add("Where", add("Greater", at_least, largest), largest, at_least)


def pack(model: Path, fitted: Path) -> None:
    """Copy the fitted features, without statistics, into a model folder, and renew its manifest.

    Args:
        model: Folder of a trained model.
        fitted: Folder written by `shortlist.features.fits.fit.fit`.
    """
    inside = model / Files.PREPROCESSING
    inside.mkdir()
    shutil.copyfile(fitted / Files.FEATURES, inside / Files.FEATURES)
    for part in ("vocabularies", LEARNT):
        if (fitted / part).is_dir():
            shutil.copytree(fitted / part, inside / part)
    write_manifest(model)
