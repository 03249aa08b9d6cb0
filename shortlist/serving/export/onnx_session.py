"""Runs an exported graph in this process."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from shortlist.serving.export.graph_builder import ExportError
from shortlist.serving.export.program.scorers import OnnxScorer, Scorer, TreeScorer
from shortlist.serving.export.repository import write_parts
from shortlist.serving.export.signature import CODES, MODEL_FILE, NO_CODE, NUMBERS, Signature

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


def create_session(folder: Path, threads: int = 1) -> InferenceSession:
    """Return a session of the graph in a `serving` folder, on the CPU.

    Args:
        folder: Folder with the graph and its external weights.
        threads: Threads that run one batch.
    """
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # as in `predictor.py`
    return InferenceSession(folder / MODEL_FILE, options, providers=["CPUExecutionProvider"])


def open_scorer(folder: Path) -> Scorer:
    """Return the scorer of a `serving` folder: of trees the loops that a server runs, seven times as fast as the graph.

    Args:
        folder: Folder with the graph, its external weights and its signature.
    """
    signature = Signature.read(folder)
    if signature.runs_as != "trees" or not signature.border:
        return OnnxScorer(folder / MODEL_FILE)
    with TemporaryDirectory(prefix="shortlist-trees-") as parts:
        write_parts(folder, signature, Path(parts))
        return TreeScorer(Path(parts))


def null_inputs(signature: Signature, rows: int) -> dict[str, np.ndarray]:
    """Return the tensors of null rows: numbers are 0, codes null, lists empty."""
    tensors: dict[str, np.ndarray] = {}
    if signature.numbers:
        tensors[NUMBERS] = np.zeros((rows, len(signature.numbers)))
    if signature.codes:
        tensors[CODES] = np.full((rows, len(signature.codes)), NO_CODE)
    tensors |= {tags.tensor: np.full((rows, 1), NO_CODE) for tags in signature.lists}
    return tensors | {vector.tensor: np.zeros((rows, vector.width), np.float32) for vector in signature.vectors}


def warm_up_graph(folder: Path, output: str) -> None:
    """Score two null rows.

    Raises:
        ExportError: The graph does not load, does not run, or does not return two rows of float32.
    """
    signature = Signature.read(folder)
    try:
        (scores,) = create_session(folder).run([output], null_inputs(signature, 2))
    except Exception as error:  # onnxruntime raises many kinds of errors
        raise ExportError(f"{folder / MODEL_FILE}: the exported graph does not run: {error}") from error
    if scores.shape[0] != 2 or scores.dtype != np.float32:
        raise ExportError(f"{folder / MODEL_FILE}: answers {scores.dtype} of shape {scores.shape} for 2 rows")
