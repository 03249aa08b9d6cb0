"""Builds an ONNX graph from nodes and constants, and writes it to a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shortlist.features.declared import graph as kinds

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

OPSET: Final = 17
"""Version of ai.onnx; with IR_VERSION, supported by onnxruntime since 1.12."""
ML_OPSET: Final = 3
"""Version of ai.onnx.ml."""
IR_VERSION: Final = 8
ML: Final = kinds.ML
ROWS: Final = "rows"
"""Name of the first dimension of every input and output."""

DATA_SUFFIX: Final = ".data"
"""Suffix of the file of external weights, after the name of the graph's file."""
EXTERNAL_BYTES: Final = 256 * 2**20
"""More weights are written to a separate file: a protocol buffer holds at most 2 GiB, and is parsed as a whole."""
PAGE: Final = 4096
"""Alignment of external tensors, so that they can be memory-mapped; the first page is zeros."""
_SMALL_BYTES = 1024
_MAX_FILE_BYTES = 2**31 - 1

ExportError = kinds.ExportError


class GraphBuilder:
    """Adds nodes in the order in which they run; small equal constants are stored once."""

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
        """Add a node with a named output."""
        from onnx import helper

        self._nodes.append(helper.make_node(operator, [tensor], [name], name=name))
        return name

    def add_described(self, tensor: str, name: str, dtype: type[np.generic], width: int | str, rows: str = ROWS) -> str:
        """Name and describe a matrix of rows, so that the graph can be cut there."""
        self._described.append(tensor_info(name, dtype, width, rows))
        return self.add_named("Identity", tensor, name)

    def split(self, tensor: str, sizes: Sequence[int]) -> list[str]:
        """Return the parts of a tensor, cut along its first dimension."""
        if len(sizes) == 1:
            return [tensor]
        return self._add("Split", (tensor, np.array(sizes)), len(sizes), "", {"axis": 0})

    def joined(self, tensors: Sequence[str], axis: int = 0) -> str:
        """Return the concatenation of tensors along a dimension."""
        return tensors[0] if len(tensors) == 1 else self.add("Concat", *tensors, axis=axis)

    def column(self, matrix: str, number: int) -> str:
        """Return one column of a matrix, shape (rows, 1)."""
        return self.add("Slice", matrix, np.array([number]), np.array([number + 1]), np.array([1]))

    def gathered(self, tensor: str, numbers: Sequence[int], length: int) -> str:
        """Return the rows of a tensor with the given numbers; `length` is its number of rows."""
        if list(numbers) == list(range(length)):
            return tensor
        return self.add("Gather", tensor, np.array(numbers), axis=0)

    def transposed(self, matrix: str) -> str:
        """Return the transposed matrix."""
        return self.add("Transpose", matrix, perm=[1, 0])

    def cast(self, tensor: str, dtype: type[np.generic]) -> str:
        """Return a tensor in another type."""
        from onnx import helper

        return self.add("Cast", tensor, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def constant(self, values: np.ndarray) -> str:
        """Return the name of a constant."""
        from onnx import numpy_helper

        key = (values.dtype.str, values.shape, values.tobytes() if values.nbytes < _SMALL_BYTES else b"")
        if not key[2] or key not in self._constants:  # large constants are unlikely to be equal, and slow to compare
            name = f"constant_{len(self._tensors)}"
            self._tensors.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
            self._constants[key] = name
        return self._constants[key]

    def model(self, inputs: Sequence[ValueInfoProto], outputs: Sequence[ValueInfoProto]) -> ModelProto:
        """Return the complete graph, including its weights."""
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
        tensors = [operand if isinstance(operand, str) else self.constant(operand) for operand in inputs]
        node = helper.make_node(operator, tensors, names, name=f"{operator}_{number}", domain=domain, **attributes)
        self._nodes.append(node)
        return names


def tensor_info(name: str, dtype: type[np.generic], width: int | str, rows: str = ROWS) -> ValueInfoProto:
    """Return the description of an input or output matrix."""
    from onnx import helper

    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [rows, width])


def save(model: ModelProto, path: Path, external_bytes: int = EXTERNAL_BYTES) -> None:
    """Write a graph, with large weights in a separate file, and check it; the same graph gives the same bytes.

    Args:
        model: The graph; its large weights are removed from it.
        path: File to write; weights go to `<path>.data`.
        external_bytes: More weights are written to the separate file.

    Raises:
        ExportError: The parts that cannot be external, such as vocabularies, exceed the size of one file.
    """
    import onnx

    tensors = model.graph.initializer
    if sum(len(tensor.raw_data) for tensor in tensors) > external_bytes:
        _move_weights(tensors, path.with_name(path.name + DATA_SUFFIX))
    if model.ByteSize() > _MAX_FILE_BYTES:
        raise ExportError(
            f"{path}: vocabularies and trees take {model.ByteSize():,} bytes; an ONNX file holds {_MAX_FILE_BYTES:,}."
            " Declare smaller vocabularies (max_size, min_rows), or hash."
        )
    path.write_bytes(model.SerializeToString(deterministic=True))
    onnx.checker.check_model(str(path))


def _move_weights(tensors: Sequence[TensorProto], path: Path) -> None:
    from onnx import TensorProto

    with path.open("wb") as file:
        file.write(bytes(PAGE))
        for tensor in tensors:
            if len(tensor.raw_data) < _SMALL_BYTES:
                continue
            location = {"location": path.name, "offset": file.tell(), "length": len(tensor.raw_data)}
            file.write(tensor.raw_data)
            file.write(bytes(-file.tell() % PAGE))
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in location.items():
                tensor.external_data.add(key=key, value=str(value))
