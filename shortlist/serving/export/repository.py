"""Writes Triton model repositories of exported models atomically, and verifies them before they are served."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from shortlist.contracts import ShortlistError
from shortlist.serving.export.graph_builder import DATA_SUFFIX
from shortlist.serving.export.graph_split import write_features, write_network
from shortlist.serving.export.signature import MODEL_FILE, SCORE, Signature
from shortlist.serving.export.trees import write_trees
from shortlist.serving.export.triton_config import CONFIG_FILE, as_text, input_tensors, model_config
from shortlist.spec.serving import Batching, Scoring, TritonPlacement
from shortlist.storage.artefacts import IntegrityError, atomic_folder, verify_manifest, write_manifest, write_text

Form = Literal["python", "onnxruntime"]

_PROGRAM = {"model.py": "predictor.py", "scorers.py": "scorers.py", "calibrated.py": "calibrated.py"}
"""Files of a repository, and their sources in this folder."""
_TREE_PROGRAM = {name: name for name in ("compiling.py", "tree_walk.py")}
"""Further files of a repository of trees, and their sources."""


def write_repository(
    serving: Path, version: int, batching: Batching, out: Path, form: Form = "python", scoring: Scoring | None = None,
    placement: TritonPlacement | None = None,
) -> None:  # fmt: skip
    """Write a repository with one version of one model atomically.

    `<model>/config.pbtxt`, `<model>/<version>/` with the graph, whole or cut where its features end, and
    `manifest.json` with the digest of every file.

    Args:
        serving: The `serving` folder of a model.
        version: Registered version: the name of the folder, and part of every response.
        batching: Batching of Triton.
        out: Folder to write.
        form: `python` uses the Python backend with our program (the only backend of a laptop's Triton); `onnxruntime`
            uses Triton's own backend, without Python.
        scoring: Scoring engine of the form `python`; the defaults of the spec when omitted.
        placement: Device of the form `onnxruntime`; the CPU by default.

    Raises:
        IntegrityError: The graph or its signature is missing or broken.
        ShortlistError: The version is not positive, or the form `python` is placed on a GPU.
    """
    scoring, placement = scoring or Scoring(), placement or TritonPlacement()
    signature = Signature.read(serving)
    check_version(version)
    tensors = input_tensors(signature), (SCORE, "TYPE_FP32", [len(signature.scores)])
    config = model_config(signature.model, form, batching, version, *tensors, placement)
    with atomic_folder(out) as staging:
        if form == "python":
            config.parameters["precision"].string_value = scoring.precision
        folder = model_folder(staging, signature.model, version, as_text(config))
        if form == "python":
            _copy_program(serving, folder, signature, scoring)
        else:
            _copy_graph(serving, folder)
        write_manifest(staging)


def verify_repository(out: Path) -> dict[str, str]:
    """Verify all files of a repository; return their digests by relative path.

    Raises:
        IntegrityError: A file is missing, changed, added or a link; the message names it.
    """
    for path in out.rglob("*"):
        if path.is_symlink():
            raise IntegrityError(f"{path}: is a link; a model repository's files must lie in its folder")
    return verify_manifest(out)


def check_version(version: int) -> None:
    """Check that a version can be the name of a model's folder.

    Raises:
        ShortlistError: It is not positive.
    """
    if version < 1:
        raise ShortlistError(f"version {version} cannot name a model's folder; wanted a registered version, 1 or later")


def model_folder(repository: Path, name: str, version: int, config: str) -> Path:
    """Create a model's folder with its configuration; return the folder of the version."""
    folder = repository / name / str(version)
    folder.mkdir(parents=True)
    write_text(folder.parent / CONFIG_FILE, config)
    return folder


def _copy_program(serving: Path, folder: Path, signature: Signature, scoring: Scoring) -> None:
    """Copy our program, and the graph as a whole or split before the trees or the network."""
    _copy_sources(_PROGRAM, folder)
    if scoring.runtime == "onnxruntime" or signature.runs_as == "graph" or not signature.border:
        _copy_graph(serving, folder)
        return
    if signature.runs_as == "trees":
        _copy_sources(_TREE_PROGRAM, folder)
    write_parts(serving, signature, folder)


def write_parts(serving: Path, signature: Signature, folder: Path) -> None:
    """Write a graph split where its features end, as `scorers.load_scorer` reads it; the signature has a border."""
    graph = serving / MODEL_FILE
    copy_weights(serving, folder)
    write_features(graph, signature.border, folder)
    if signature.calibration is not None:
        signature.calibration.write_arrays(folder)
    if signature.runs_as == "network":
        write_network(graph, signature.border, folder)
    else:
        write_trees(graph, folder)


def _copy_sources(files: dict[str, str], folder: Path) -> None:
    for name, source_name in files.items():
        shutil.copyfile(Path(__file__).parent / "program" / source_name, folder / name)


def _copy_graph(serving: Path, folder: Path) -> None:
    shutil.copyfile(serving / MODEL_FILE, folder / MODEL_FILE)
    copy_weights(serving, folder)


def copy_weights(serving: Path, folder: Path) -> None:
    """Copy the external weights of a graph, if there are any."""
    weights = serving / (MODEL_FILE + DATA_SUFFIX)
    if weights.exists():
        shutil.copyfile(weights, folder / weights.name)
