"""An exported graph run in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shortlist.serving.export.graph_builder import ExportError
from shortlist.serving.export.signature import CODES, MODEL_FILE, NO_CODE, NUMBERS, Signature

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


def session(folder: Path, threads: int = 1) -> InferenceSession:
    """Return a session of the graph in a `serving` folder, on the CPU.

    Args:
        folder: Holds the graph, and its weights when they lie beside it.
        threads: Threads that run one batch.
    """
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # as in `predictor.py`
    return InferenceSession(folder / MODEL_FILE, options, providers=["CPUExecutionProvider"])


def null_inputs(signature: Signature, rows: int) -> dict[str, np.ndarray]:
    """Return the tensors of rows of which nothing is known: numbers are 0, codes null, lists empty."""
    tensors: dict[str, np.ndarray] = {}
    if signature.numbers:
        tensors[NUMBERS] = np.zeros((rows, len(signature.numbers)))
    if signature.codes:
        tensors[CODES] = np.full((rows, len(signature.codes)), NO_CODE)
    tensors |= {tags.tensor: np.full((rows, 1), NO_CODE) for tags in signature.lists}
    return tensors | {one.tensor: np.zeros((rows, one.width), np.float32) for one in signature.vectors}


def warm_up_graph(folder: Path, output: str) -> None:
    """Score two rows of which nothing is known.

    Raises:
        ExportError: The graph does not load, does not run, or answers something else than two rows of float32.
    """
    signature = Signature.read(folder)
    try:
        (found,) = session(folder).run([output], null_inputs(signature, 2))
    except Exception as error:  # onnxruntime raises what it likes
        raise ExportError(f"{folder / MODEL_FILE}: the exported graph does not run: {error}") from error
    if found.shape[0] != 2 or found.dtype != np.float32:
        raise ExportError(f"{folder / MODEL_FILE}: answers {found.dtype} of shape {found.shape} for 2 rows")
