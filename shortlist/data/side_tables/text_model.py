"""The user's ONNX model from texts to vectors, with tokenizer and network in one graph."""

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

_MAX_WIDTH: Final = 65_536
"""Largest width of a vector; an output with more numbers per text is of words or characters."""


def model_files(model: Path) -> list[Path]:
    """Return a model's file, and its external weight files, in a fixed order.

    Raises:
        DataError: A file is missing, or the model is not an ONNX model.
    """
    if not model.is_file():
        raise DataError(f"{model}: no such file; wanted the model")
    from onnx import TensorProto, load

    try:
        graph = load(model, load_external_data=False).graph
    except Exception as error:  # protobuf's own
        raise DataError(f"{model}: no ONNX model that runs here: {error}") from None
    external_tensors = [tensor for tensor in graph.initializer if tensor.data_location == TensorProto.EXTERNAL]
    names = {
        attribute.value
        for tensor in external_tensors
        for attribute in tensor.external_data
        if attribute.key == "location"
    }
    files = [model, *(model.parent / name for name in sorted(names))]
    for file in files:
        if not file.is_file():
            raise DataError(f"{file}: no such file; {model.name} keeps weights in it")
    return files


class TextModel:
    """A model from texts to vectors; its session is opened at the first call.

    Args:
        path: ONNX file with one input of texts, shape (rows,) or (rows, 1), whose first output is floats, shape
            (rows, width).

    Raises:
        DataError: There is no such model.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.digest = hashlib.sha256("".join(map(sha256, model_files(path))).encode()).hexdigest()
        """SHA-256 of all its files."""
        self._opened_session: tuple[InferenceSession, str, bool] | None = None

    def compute_vectors(self, texts: pl.Series, keys: pl.Series) -> Vectors:
        """Return the vectors of some texts, shape (rows, width).

        Args:
            texts: Texts without nulls; the series' name is that of the column, for messages.
            keys: Keys of the texts' rows, likewise.

        Raises:
            DataError: The model does not run on them, or does not return vectors of finite numbers.
        """
        session, name, is_column = self._opened_session = self._opened_session or _open_session(self.path)
        text_array = np.array(texts.to_list(), dtype=object)
        try:
            vectors: Any = session.run(None, {name: text_array[:, None] if is_column else text_array})[0]
        except Exception as error:  # onnxruntime raises what it likes
            raise DataError(f"{self.path}: does not run on texts from '{keys.name}' {keys[0]} on: {error}") from None
        shape = np.shape(vectors)
        if len(shape) != 2 or shape[0] != len(texts) or not 1 <= shape[1] <= _MAX_WIDTH or vectors.dtype.kind != "f":
            raise DataError(
                f"{self.path}: answers {vectors.dtype} of shape {shape} for {len(texts)} texts from"
                f" '{keys.name}' {keys[0]} on; wanted a vector of floats for each text, shape ({len(texts)}, width)"
            )
        if len(not_finite := np.flatnonzero(~np.isfinite(vectors).all(axis=1))):
            raise DataError(
                f"{self.path}: the vector of '{texts.name}' of '{keys.name}' {keys[int(not_finite[0])]} is not finite"
            )
        return np.asarray(vectors, np.float32)


def _open_session(model: Path) -> tuple[InferenceSession, str, bool]:
    """Return an inference session, the name of its input, and whether the input is a column (rows, 1)."""
    from onnxruntime import InferenceSession

    try:
        session = InferenceSession(model, providers=["CPUExecutionProvider"])
    except Exception as error:  # as above
        raise DataError(f"{model}: no ONNX model that runs here: {error}") from None
    inputs = session.get_inputs()
    if len(inputs) != 1 or inputs[0].type != "tensor(string)" or len(inputs[0].shape) not in (1, 2):
        input_list = ", ".join(f"{model_input.name}: {model_input.type} {model_input.shape}" for model_input in inputs)
        raise DataError(
            f"{model}: reads {input_list}; wanted one tensor of texts, shape (rows,) or (rows, 1). Put the tokenizer"
            " into the graph"
        )
    return session, inputs[0].name, len(inputs[0].shape) == 2
