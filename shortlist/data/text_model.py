"""An ONNX model that the user gives, from texts to vectors: tokenizer and network in one graph."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from shortlist.contracts import DataError
from shortlist.storage.artefacts import sha256

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Vectors = npt.NDArray[np.float32]

_WIDEST: Final = 65_536
"""A model that answers more numbers per text answers no vector, but words or characters."""


def model_files(model: Path) -> list[Path]:
    """Return a model's file, and those beside it that hold its weights, in a fixed order.

    Raises:
        DataError: One is missing, or the model is none.
    """
    if not model.is_file():
        raise DataError(f"{model}: no such file; wanted the model")
    from onnx import TensorProto, load

    try:
        graph = load(model, load_external_data=False).graph
    except Exception as error:  # protobuf's own
        raise DataError(f"{model}: no ONNX model that runs here: {error}") from None
    outside = [tensor for tensor in graph.initializer if tensor.data_location == TensorProto.EXTERNAL]
    names = {entry.value for tensor in outside for entry in tensor.external_data if entry.key == "location"}
    files = [model, *(model.parent / name for name in sorted(names))]
    for file in files:
        if not file.is_file():
            raise DataError(f"{file}: no such file; {model.name} keeps weights in it")
    return files


class TextModel:
    """One model; it is opened when it is first run.

    Args:
        path: ONNX file with one input of texts, shape (rows,) or (rows, 1), whose first output is floats, shape
            (rows, width).

    Raises:
        DataError: There is no such model.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.digest = hashlib.sha256("".join(map(sha256, model_files(path))).encode()).hexdigest()
        """Of all its files."""
        self._running: tuple[InferenceSession, str, bool] | None = None

    def vectors(self, texts: pl.Series, keys: pl.Series) -> Vectors:
        """Return the vectors of some texts, shape (rows, width).

        Args:
            texts: Without a null; its name is that of the column, for messages.
            keys: Of the texts' rows, likewise.

        Raises:
            DataError: The model does not run on them, or answers no vectors of finite numbers.
        """
        running, name, is_column = self._running = self._running or _session(self.path)
        given = np.array(texts.to_list(), dtype=object)
        try:
            found: Any = running.run(None, {name: given[:, None] if is_column else given})[0]
        except Exception as error:  # onnxruntime raises what it likes
            raise DataError(f"{self.path}: does not run on texts from '{keys.name}' {keys[0]} on: {error}") from None
        shape = np.shape(found)
        if len(shape) != 2 or shape[0] != len(texts) or not 1 <= shape[1] <= _WIDEST or found.dtype.kind != "f":
            raise DataError(
                f"{self.path}: answers {found.dtype} of shape {shape} for {len(texts)} texts from"
                f" '{keys.name}' {keys[0]} on; wanted a vector of floats for each text, shape ({len(texts)}, width)"
            )
        if len(broken := np.flatnonzero(~np.isfinite(found).all(axis=1))):
            raise DataError(
                f"{self.path}: the vector of '{texts.name}' of '{keys.name}' {keys[int(broken[0])]} is not finite"
            )
        return np.asarray(found, np.float32)


def _session(model: Path) -> tuple[InferenceSession, str, bool]:
    """Return what runs the model, the name of its input, and whether that is a column (rows, 1)."""
    from onnxruntime import InferenceSession

    try:
        running = InferenceSession(model, providers=["CPUExecutionProvider"])
    except Exception as error:  # as above
        raise DataError(f"{model}: no ONNX model that runs here: {error}") from None
    inputs = running.get_inputs()
    if len(inputs) != 1 or inputs[0].type != "tensor(string)" or len(inputs[0].shape) not in (1, 2):
        got = ", ".join(f"{one.name}: {one.type} {one.shape}" for one in inputs)
        raise DataError(
            f"{model}: reads {got}; wanted one tensor of texts, shape (rows,) or (rows, 1). Put the tokenizer into the"
            " graph"
        )
    return running, inputs[0].name, len(inputs[0].shape) == 2
