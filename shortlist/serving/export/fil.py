"""Writes Triton repositories of boosted trees for the FIL backend, as an ensemble with their features."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from shortlist.contracts import ShortlistError
from shortlist.serving.export.graph_split import FEATURES_FILE, write_features
from shortlist.serving.export.repository import check_version, copy_weights, model_folder
from shortlist.serving.export.signature import MODEL_FILE, SCORE, TREES_FILE, Signature
from shortlist.serving.export.triton_config import as_text, ensemble_config, input_tensors, model_config
from shortlist.spec.serving import Batching, TritonPlacement
from shortlist.storage.artefacts import IntegrityError, atomic_folder, write_manifest

_FLOATS: Final = "TYPE_FP32"
_TREES_IN_FIL: Final = "xgboost.ubj"
"""File name that the backend expects."""


def write_fil_repository(
    serving: Path, version: int, batching: Batching, out: Path, placement: TritonPlacement | None = None
) -> None:
    """Write the repository of an XGBoost model atomically.

    `<model>` is an ensemble that reads the model's signature and answers `score`; `<model>_transform` computes the
    features on the onnxruntime backend and the CPU (look-ups in hash tables have no kernel for GPUs), `<model>_trees`
    the probability on the FIL backend, which does not keep it from 0 and 1 as the ONNX form does.

    Args:
        serving: The `serving` folder of a model, its trees beside it.
        version: Registered version.
        batching: Batching of Triton.
        out: Folder to write.
        placement: Device of the trees; the CPU by default.

    Raises:
        IntegrityError: The graph, its signature or the booster is missing.
        ShortlistError: The version is no positive number, or the graph cannot be cut before the trees.
    """
    signature, trees = Signature.read(serving), serving.parent / TREES_FILE
    check_version(version)
    if not trees.is_file():
        raise IntegrityError(f"{trees}: missing; train the model again")
    if signature.labels:
        raise ShortlistError(
            f"{serving}: the model has further labels ({', '.join(signature.labels)}), and the FIL backend runs one"
            " ensemble of trees; serve its ONNX form"
        )
    if len(signature.border) != 1:
        raise ShortlistError(f"{serving}: the graph does not say where its features end; train the model again")
    if signature.calibration is not None:
        raise ShortlistError(
            f"{serving}: the model is calibrated, which the FIL backend cannot compute; serve its ONNX form, or declare"
            " calibration: none"
        )
    (features,) = signature.border
    name, inputs, graph = signature.model, input_tensors(signature), serving / MODEL_FILE
    dimensions = [_tensor_width(graph, features)]
    transform_config = model_config(
        f"{name}_transform",
        "onnxruntime",
        batching,
        version,
        inputs,
        (features, _FLOATS, dimensions),
        TritonPlacement(),
    )
    trees_config = model_config(
        f"{name}_trees", "fil", batching, version, [("input__0", _FLOATS, dimensions)], ("output__0", _FLOATS, [1]),
        placement or TritonPlacement(),
    )  # fmt: skip
    ensemble = ensemble_config(
        name, batching, version, inputs, (SCORE, _FLOATS, [1]),
        [
            {"model_name": transform_config.name, "input_map": {input_name: input_name for input_name, _, _ in inputs},
             "output_map": {features: features}},
            {"model_name": trees_config.name, "input_map": {"input__0": features}, "output_map": {"output__0": SCORE}},
        ],
    )  # fmt: skip
    with atomic_folder(out) as staging:
        model_folder(staging, name, version, as_text(ensemble))
        transform = model_folder(staging, transform_config.name, version, as_text(transform_config))
        write_features(graph, signature.border, transform)
        (transform / FEATURES_FILE).rename(transform / MODEL_FILE)
        copy_weights(serving, transform)
        shutil.copyfile(trees, model_folder(staging, trees_config.name, version, as_text(trees_config)) / _TREES_IN_FIL)
        write_manifest(staging)


def _tensor_width(graph: Path, tensor: str) -> int:
    """Return the width of a tensor inside a graph."""
    import onnx

    (tensor_description,) = (
        tensor_description
        for tensor_description in onnx.load(graph, load_external_data=False).graph.value_info
        if tensor_description.name == tensor
    )
    return int(tensor_description.type.tensor_type.shape.dim[1].dim_value)
