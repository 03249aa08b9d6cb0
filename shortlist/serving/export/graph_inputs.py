"""Input tensors of a graph, and the columns of looked-up rows in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from shortlist.features.declared.graph import Graph
from shortlist.features.values.columns import DeclaredColumns
from shortlist.serving.export.graph_builder import ExportError, GraphBuilder, tensor_info
from shortlist.serving.export.signature import CODES, NO_CODE, NUMBERS, ListInput, Signature, VectorInput

if TYPE_CHECKING:
    from onnx import ValueInfoProto

_FLOATS = ("number", "date")
_KEYS = ("integer", "hex", "string")


class GraphInputs(Graph):
    """The graph interface of feature kinds; columns that are read become inputs.

    Attributes:
        longest: Number of values read from each list column; None for all.
    """

    def __init__(self, nodes: GraphBuilder, declared: DeclaredColumns) -> None:
        self.declared = declared
        self.longest: dict[str, int | None] = {}
        self._nodes = nodes
        self._numbers: dict[str, int] = {}
        self._codes: dict[str, int] = {}
        self._vectors: dict[str, int] = {}
        self._transposed: dict[str, str] = {}
        self._runs: list[str] | None = None

    def add(self, operator: str, *inputs: str | np.ndarray, domain: str = "", **attributes: Any) -> str:
        """Add a node; see `Graph`."""
        return self._nodes.add(operator, *inputs, domain=domain, **attributes)

    def split(self, tensor: str, sizes: Sequence[int]) -> list[str]:
        """Return the parts of a tensor, cut along its first dimension."""
        return self._nodes.split(tensor, sizes)

    def concat(self, tensors: Sequence[str]) -> str:
        """Return the concatenation of tensors along their first dimension."""
        return self._nodes.joined(tensors)

    def numbers(self, places: Sequence[str]) -> str:
        """Return columns as FP64, shape (places, rows); NaN is null."""
        return self._gathered(NUMBERS, self._numbers, places)

    def declared_numbers(self, names: Sequence[str], reader: str) -> str:
        """Return declared columns as `numbers` does.

        Raises:
            ExportError: A column does not hold numbers.
        """
        for name in names:
            self._check_type(name, (*_FLOATS, "integer", "hex"), reader)
        return self.numbers([self.declared.row_column(name) for name in names])

    def codes(self, names: Sequence[str], reader: str) -> str:
        """Return declared columns as INT64 codes, shape (names, rows); NO_CODE is null.

        Raises:
            ExportError: A column does not have exactly one code per row.
        """
        for name in names:
            self._check_type(name, (*_KEYS, *_FLOATS), reader)
        floats = [name for name in names if self._type(name) in _FLOATS]
        keys = [name for name in names if name not in floats]
        blocks = []
        if keys:
            blocks.append(self._gathered(CODES, self._codes, [self.declared.row_column(name) for name in keys]))
        if floats:  # hashed as truncated integers
            numbers = self.numbers([self.declared.row_column(name) for name in floats])
            cut = self._nodes.cast(self._nodes.add("Where", self.is_missing(numbers), np.zeros(1), numbers), np.int64)
            blocks.append(self._nodes.add("Where", self.is_missing(numbers), np.array([NO_CODE]), cut))
        order = [*keys, *floats]
        return self._nodes.gathered(self._nodes.joined(blocks), [order.index(name) for name in names], len(names))

    def tags(self, name: str, values: int | None) -> str:
        """Return a tags column as INT64 codes, shape (rows, longest), padded with NO_CODE.

        Args:
            name: The declared column.
            values: Number of leading values to read; None for all.

        Raises:
            ExportError: It is not of type tags.
        """
        self._check_type(name, ("tags",), "a list")
        return self.list_codes(self.declared.row_column(name), values)

    def list_codes(self, place: str, values: int | None) -> str:
        """Return lists of looked-up rows as INT64 codes, shape (rows, longest), padded with NO_CODE."""
        max_values = self.longest.get(place, values)
        self.longest[place] = None if max_values is None or values is None else max(max_values, values)
        tensor = f"list_{list(self.longest).index(place)}"
        if values is not None:
            tensor = self._nodes.add("Slice", tensor, np.array([0]), np.array([values]), np.array([1]))
        if self._runs is None:
            return tensor
        tensor, runs = self._first_of_runs(tensor)
        self._runs.append(runs)
        return tensor

    def list_codes_by_run(self, place: str, values: int | None) -> tuple[str, str]:
        """Return lists as `list_codes` does, once per run of equal ones, and the number of each row's run."""
        return self._first_of_runs(self.list_codes(place, values))

    @contextmanager
    def by_run(self) -> Iterator[list[str]]:
        """While the block runs, read lists once per run of equal rows.

        Yields:
            Run numbers of the rows for every list that was read, INT64, shape (rows,).
        """
        self._runs = []
        yield self._runs
        self._runs = None

    def _first_of_runs(self, rows: str) -> tuple[str, str]:
        """Return the first row of every run of equal rows, and the run number of each row."""
        add = self._nodes.add
        end = np.array([np.iinfo(np.int64).max])
        next_rows = add("Slice", rows, np.array([1]), end, np.array([0]))
        previous_rows = add("Slice", rows, np.array([0]), np.array([-1]), np.array([0]))
        # ReduceMin of floats takes a few microseconds; ONNX Runtime sums 25 000 integers in 45.
        equal = self._nodes.cast(add("Equal", previous_rows, next_rows), np.float32)
        differs = add("Less", add("ReduceMin", equal, axes=[1], keepdims=0), np.ones(1, np.float32))
        is_first = add("Concat", np.array([True]), differs, axis=0)
        runs = add("CumSum", add("Concat", np.array([0]), self._nodes.cast(differs, np.int64), axis=0), np.array(0))
        return add("Compress", rows, is_first, axis=0), runs

    def vector(self, place: str, width: int) -> str:
        """Return a vector column as FP32, shape (rows, width); zeros for null."""
        self._vectors[place] = width
        return f"vector_{list(self._vectors).index(place)}"

    def signature(self, model: str, kind: str) -> Signature:
        """Return the tensors read so far."""
        return Signature(
            model=model,
            kind=kind,
            numbers=tuple(self._numbers),
            codes=tuple(self._codes),
            lists=tuple(
                ListInput(tensor=f"list_{number}", place=place, longest=longest)
                for number, (place, longest) in enumerate(self.longest.items())
            ),
            vectors=tuple(
                VectorInput(tensor=f"vector_{number}", place=place, width=width)
                for number, (place, width) in enumerate(self._vectors.items())
            ),
        )

    def _gathered(self, tensor: str, column_numbers: dict[str, int], places: Sequence[str]) -> str:
        if tensor not in self._transposed:
            self._transposed[tensor] = self._nodes.transposed(tensor)
        numbers = np.array([column_numbers.setdefault(place, len(column_numbers)) for place in places])
        return self._nodes.add("Gather", self._transposed[tensor], numbers, axis=0)

    def _check_type(self, name: str, kinds: Sequence[str], reader: str) -> None:
        if self._type(name) not in kinds:
            raise ExportError(
                f"features: '{name}' is of type {self._type(name)} and read as {reader}, which an exported graph cannot"
                f" do; wanted type {' or '.join(kinds)}. Declare it so, or leave the feature out of the model."
            )

    def _type(self, name: str) -> str:
        return self.declared.column(name).type


def describe_tensors(signature: Signature) -> list[ValueInfoProto]:
    """Return the descriptions of a signature's tensors, in order."""
    descriptions = []
    if signature.numbers:
        descriptions.append(tensor_info(NUMBERS, np.float64, len(signature.numbers)))
    if signature.codes:
        descriptions.append(tensor_info(CODES, np.int64, len(signature.codes)))
    descriptions += [
        tensor_info(list_input.tensor, np.int64, f"{list_input.tensor}_longest") for list_input in signature.lists
    ]
    descriptions += [tensor_info(vector.tensor, np.float32, vector.width) for vector in signature.vectors]
    return descriptions
