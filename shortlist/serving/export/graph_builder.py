"""The nodes and constants of an ONNX graph under construction, and the file they end in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shortlist.features import graph as kinds

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

OPSET: Final = 17
"""Of ai.onnx; with IR_VERSION read by onnxruntime from 1.12 on."""
ML_OPSET: Final = 3
"""Of ai.onnx.ml."""
IR_VERSION: Final = 8
ML: Final = kinds.ML
ROWS: Final = "rows"
"""Name of the first dimension of every tensor that goes in or out."""

DATA_SUFFIX: Final = ".data"
"""What the name of a file of external weights adds to its graph's."""
EXTERNAL_BYTES: Final = 256 * 2**20
"""Weights beyond lie beside the graph: one protocol buffer holds at most 2 GiB, and is parsed as a whole."""
PAGE: Final = 4096
"""External tensors begin on such borders, so that they can be mapped; the first page is zeros and tells the file."""
_SMALL_BYTES = 1024
_MOST_BYTES = 2**31 - 1

ExportError = kinds.ExportError


class GraphBuilder:
    """Nodes in the order in which they run; equal constants are kept once."""

    def __init__(self) -> None:
        self._nodes: list[NodeProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._tensors: list[TensorProto] = []
        self._described: list[ValueInfoProto] = []

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, operator: str, *inputs: str | np.ndarray, domain: str = "", **attributes: Any) -> str:
        """Add a node and return the name of its output; arrays among the inputs become constants."""
        return self._add(operator, inputs, 1, domain, attributes)[0]

    def add_named(self, operator: str, tensor: str, name: str) -> str:
        """Add a node whose output has a name of its own."""
        from onnx import helper

        self._nodes.append(helper.make_node(operator, [tensor], [name], name=name))
        return name

    def described(self, tensor: str, name: str, dtype: type[np.generic], width: int | str, rows: str = ROWS) -> str:
        """Give a matrix of rows a name of its own and a description: at such tensors a graph can be cut."""
        self._described.append(tensor_info(name, dtype, width, rows))
        return self.add_named("Identity", tensor, name)

    def split(self, tensor: str, sizes: Sequence[int]) -> list[str]:
        """Return the parts of a tensor, cut along its first dimension."""
        if len(sizes) == 1:
            return [tensor]
        return self._add("Split", (tensor, np.array(sizes)), len(sizes), "", {"axis": 0})

    def joined(self, tensors: Sequence[str], axis: int = 0) -> str:
        """Return tensors one after another along a dimension."""
        return tensors[0] if len(tensors) == 1 else self.add("Concat", *tensors, axis=axis)

    def column(self, matrix: str, number: int) -> str:
        """Return one column of a matrix, shape (rows, 1)."""
        return self.add("Slice", matrix, np.array([number]), np.array([number + 1]), np.array([1]))

    def gathered(self, tensor: str, numbers: Sequence[int], length: int) -> str:
        """Return some of a tensor's parts, numbered along its first dimension, whose length is known."""
        if list(numbers) == list(range(length)):
            return tensor
        return self.add("Gather", tensor, np.array(numbers), axis=0)

    def transposed(self, matrix: str) -> str:
        """Return a matrix with rows and columns exchanged."""
        return self.add("Transpose", matrix, perm=[1, 0])

    def cast(self, tensor: str, dtype: type[np.generic]) -> str:
        """Return a tensor in another type."""
        from onnx import helper

        return self.add("Cast", tensor, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def constant(self, values: np.ndarray) -> str:
        """Return the name of a constant."""
        from onnx import numpy_helper

        key = (values.dtype.str, values.shape, values.tobytes() if values.nbytes < _SMALL_BYTES else b"")
        if not key[2] or key not in self._constants:  # large ones are never equal by chance, and slow to compare
            name = f"constant_{len(self._tensors)}"
            self._tensors.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
            self._constants[key] = name
        return self._constants[key]

    def model(self, inputs: Sequence[ValueInfoProto], outputs: Sequence[ValueInfoProto]) -> ModelProto:
        """Return the whole graph, its weights inside."""
        from onnx import helper

        graph = helper.make_graph(
            self._nodes, "shortlist", list(inputs), list(outputs), self._tensors, value_info=self._described
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(ML, ML_OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="shortlist")

    def _add(
        self, operator: str, inputs: Sequence[str | np.ndarray], outputs: int, domain: str, attributes: dict[str, Any]
    ) -> list[str]:
        from onnx import helper

        number = len(self._nodes)
        names = [f"{operator}_{number}" if outputs == 1 else f"{operator}_{number}_{i}" for i in range(outputs)]
        read = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        node = helper.make_node(operator, read, names, name=f"{operator}_{number}", domain=domain, **attributes)
        self._nodes.append(node)
        return names


def tensor_info(name: str, dtype: type[np.generic], width: int | str, rows: str = ROWS) -> ValueInfoProto:
    """Return the description of a matrix of rows that goes in or out."""
    from onnx import helper

    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [rows, width])


def save(model: ModelProto, path: Path, external_bytes: int = EXTERNAL_BYTES) -> None:
    """Write a graph, its large weights beside it when there are many, and check the file; same graph, same bytes.

    Args:
        model: The graph; its weights move out of it.
        path: File to write; weights go to `<path>.data`.
        external_bytes: Weights beyond are written beside the graph.

    Raises:
        ExportError: What cannot lie beside the graph, such as vocabularies, exceeds what one file can hold.
    """
    import onnx

    tensors = model.graph.initializer
    if sum(len(tensor.raw_data) for tensor in tensors) > external_bytes:
        _move_out(tensors, path.with_name(path.name + DATA_SUFFIX))
    if model.ByteSize() > _MOST_BYTES:
        raise ExportError(
            f"{path}: vocabularies and trees take {model.ByteSize():,} bytes; an ONNX file holds {_MOST_BYTES:,}."
            " Declare smaller vocabularies (max_size, min_rows), or hash."
        )
    path.write_bytes(model.SerializeToString(deterministic=True))
    onnx.checker.check_model(str(path))


def _move_out(tensors: Sequence[TensorProto], path: Path) -> None:
    from onnx import TensorProto

    with path.open("wb") as file:
        file.write(bytes(PAGE))
        for tensor in tensors:
            if len(tensor.raw_data) < _SMALL_BYTES:
                continue
            place = {"location": path.name, "offset": file.tell(), "length": len(tensor.raw_data)}
            file.write(tensor.raw_data)
            file.write(bytes(-file.tell() % PAGE))
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
