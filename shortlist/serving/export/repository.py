"""Triton model repositories of exported models: written whole, verified before they are served."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from shortlist.artefacts import IntegrityError, verify_manifest, write_manifest, write_text, written_whole
from shortlist.config.serving import Batching
from shortlist.contracts import ShortlistError
from shortlist.serving.export.nodes import DATA_SUFFIX
from shortlist.serving.export.signature import MODEL_FILE, SCORE, Signature
from shortlist.serving.export.triton_config import CONFIG_FILE, as_text, ensemble_config, input_tensors, model_config

Form = Literal["python", "onnxruntime"]

_PROGRAM = Path(__file__).with_name("predictor.py")
_FEATURES = "features"


def write_repository(serving: Path, version: int, batching: Batching, out: Path, form: Form = "python") -> None:
    """Write a repository with one version of one model; it appears whole or not at all.

    `<model>/config.pbtxt`, `<model>/<version>/` with the graph, and `manifest.json` with the digest of every file.

    Args:
        serving: The `serving` folder of a model.
        version: Registered version: the folder's name, and what every answer says.
        batching: How Triton joins requests.
        out: Folder to write.
        form: `python` runs the graph by a program of ours (a laptop's Triton has no other backend); `onnxruntime` by
            Triton's own backend, without any Python.

    Raises:
        IntegrityError: The graph or its signature is missing or broken.
        ShortlistError: The version is no positive number.
    """
    signature = Signature.read(serving)
    _check_version(version)
    config = model_config(signature.model, form, batching, version, input_tensors(signature), (SCORE, "TYPE_FP32", [1]))
    with written_whole(out) as staging:
        folder = _model_folder(staging, signature.model, version, as_text(config))
        _copy_graph(serving, folder)
        if form == "python":
            shutil.copyfile(_PROGRAM, folder / "model.py")
        write_manifest(staging)


def write_fil_repository(transform: Path, trees: Path, version: int, batching: Batching, out: Path) -> None:
    """Write a repository of an XGBoost model for Triton's FIL backend, which has GPUs: features, then trees.

    `<model>` is an ensemble that reads the model's signature and answers `score`; `<model>_transform` computes the
    features on the onnxruntime backend, `<model>_trees` the probability on the FIL backend, which does not keep it
    from 0 and 1 as the ONNX form does.

    Args:
        transform: What `models.export.export_transform` wrote.
        trees: The booster in XGBoost's UBJSON.
        version: Registered version.
        batching: How Triton joins requests.
        out: Folder to write.

    Raises:
        IntegrityError: The graph, its signature or the booster is missing.
        ShortlistError: The version is no positive number.
    """
    signature = Signature.read(transform)
    _check_version(version)
    if not trees.is_file():
        raise IntegrityError(f"{trees}: missing; train the model again")
    name, inputs = signature.model, input_tensors(signature)
    floats = _width_of(transform / MODEL_FILE)
    first = model_config(
        f"{name}_transform", "onnxruntime", batching, version, inputs, (_FEATURES, "TYPE_FP32", [floats])
    )
    second = model_config(
        f"{name}_trees", "fil", batching, version,
        [("input__0", "TYPE_FP32", [floats])], ("output__0", "TYPE_FP32", [1]),
    )  # fmt: skip
    both = ensemble_config(
        name, batching, version, inputs, (SCORE, "TYPE_FP32", [1]),
        [
            {"model_name": first.name, "input_map": {each: each for each, _, _ in inputs},
             "output_map": {_FEATURES: _FEATURES}},
            {"model_name": second.name, "input_map": {"input__0": _FEATURES}, "output_map": {"output__0": SCORE}},
        ],
    )  # fmt: skip
    with written_whole(out) as staging:
        _model_folder(staging, name, version, as_text(both))
        _copy_graph(transform, _model_folder(staging, first.name, version, as_text(first)))
        shutil.copyfile(trees, _model_folder(staging, second.name, version, as_text(second)) / "xgboost.ubj")
        write_manifest(staging)


def verify_repository(out: Path) -> dict[str, str]:
    """Return the digests of a repository's files by relative path after checking every one of them.

    Raises:
        IntegrityError: A file is missing, changed, added or a link; names it.
    """
    for path in out.rglob("*"):
        if path.is_symlink():
            raise IntegrityError(f"{path}: is a link; a model repository's files must lie in its folder")
    return verify_manifest(out)


def _check_version(version: int) -> None:
    if version < 1:
        raise ShortlistError(f"version {version} cannot name a model's folder; wanted a registered version, 1 or later")


def _model_folder(repository: Path, name: str, version: int, config: str) -> Path:
    """Return the version's folder of a model that now has a configuration."""
    folder = repository / name / str(version)
    folder.mkdir(parents=True)
    write_text(folder.parent / CONFIG_FILE, config)
    return folder


def _copy_graph(serving: Path, folder: Path) -> None:
    shutil.copyfile(serving / MODEL_FILE, folder / MODEL_FILE)
    weights = serving / (MODEL_FILE + DATA_SUFFIX)
    if weights.exists():
        shutil.copyfile(weights, folder / weights.name)


def _width_of(graph: Path) -> int:
    """Return the columns that a graph answers."""
    import onnx

    (output,) = onnx.load(graph, load_external_data=False).graph.output
    return int(output.type.tensor_type.shape.dim[1].dim_value)
