"""The interface through which kinds of features add nodes to an ONNX graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from shortlist.contracts import ShortlistError
from shortlist.features.values.columns import DeclaredColumns

ML: Final = "ai.onnx.ml"
"""The domain of ONNX's operators for classical machine learning."""


class ExportError(ShortlistError):
    """A model that an exported graph cannot express."""


class Graph(ABC):
    """Adds nodes and inputs to a graph under construction; `shortlist.serving.export` implements it.

    Tensors are passed by name. Matrices are transposed, shape (columns, rows), so that a column is contiguous in
    memory. Numbers are FP64, NaN is null; ids and codes are INT64.

    Attributes:
        declared: The declared columns.
    """

    declared: DeclaredColumns

    @abstractmethod
    def add(self, operator: str, *inputs: str | np.ndarray, domain: str = "", **attributes: Any) -> str:
        """Add a node and return the name of its output; arrays among the inputs become constants."""

    @abstractmethod
    def split(self, tensor: str, sizes: Sequence[int]) -> list[str]:
        """Return the parts of a tensor, cut along its first dimension."""

    @abstractmethod
    def concat(self, tensors: Sequence[str]) -> str:
        """Return tensors one after another along their first dimension."""

    @abstractmethod
    def numbers(self, columns: Sequence[str]) -> str:
        """Return columns of looked-up rows as FP64, shape (columns, rows); NaN is null.

        Args:
            columns: Names as of `DeclaredColumns.row_column`; or `<view>:<feature>`, or a column of the clock.
        """

    @abstractmethod
    def declared_numbers(self, names: Sequence[str], reader: str) -> str:
        """Return declared columns as `numbers` does.

        Args:
            names: The columns.
            reader: What the columns are read as, for the message.

        Raises:
            ExportError: The values of a column are no numbers.
        """

    @abstractmethod
    def codes(self, names: Sequence[str], reader: str) -> str:
        """Return declared columns as INT64 codes, shape (names, rows); NO_CODE is null.

        Args:
            names: The columns.
            reader: What the columns are read as, for the message.

        Raises:
            ExportError: One of them has no single code per row.
        """

    @abstractmethod
    def tags(self, name: str, values: int | None) -> str:
        """Return a tags column as INT64 codes, shape (rows, longest), padded with NO_CODE.

        Args:
            name: The declared column.
            values: How many values are read, the first ones; None for all.

        Raises:
            ExportError: It is not of type tags.
        """

    @abstractmethod
    def list_codes(self, column: str, values: int | None) -> str:
        """Return lists of looked-up rows as INT64 codes, shape (rows, longest), padded with NO_CODE.

        Args:
            column: `<view>:<feature>`.
            values: As for `tags`.
        """

    @abstractmethod
    def list_codes_by_run(self, column: str, values: int | None) -> tuple[str, str]:
        """Return what `list_codes` does, once per run of rows with the same list, and the number of each row's run.

        The rows of a request follow each other, so that nodes on the user's list are computed once.

        Returns:
            Codes, shape (runs, longest), and numbers of runs, INT64, shape (rows,).
        """

    @abstractmethod
    def vector(self, column: str, width: int) -> str:
        """Return a vector column as FP32, shape (rows, width); zeros for null."""

    def is_missing(self, numbers: str) -> str:
        """Return a BOOL mask of the numbers that are null."""
        return self.add("IsNaN", numbers)

    def fill_missing(self, numbers: str, fill: np.ndarray) -> str:
        """Return numbers with nulls replaced by a value."""
        return self.add("Where", self.is_missing(numbers), fill, numbers)

    def transpose(self, matrix: str) -> str:
        """Return a matrix with rows and columns exchanged."""
        return self.add("Transpose", matrix, perm=[1, 0])

    def log1p(self, value: str) -> str:
        """Return log(1 + value) as the table computes it; for tiny numbers it differs from a log1p."""
        return self.add("Log", self.add("Add", value, np.ones(1)))

    def clip_min(self, value: str, low: np.ndarray) -> str:
        """Return numbers, those below `low` raised to it; NaN stays NaN."""
        return self.add("Where", self.add("Less", value, low), low, value)

    def clip_max(self, value: str, high: np.ndarray) -> str:
        """Return numbers, those above `high` lowered to it; NaN stays NaN."""
        return self.add("Where", self.add("Greater", value, high), high, value)

    def l2_normalise(self, vectors: str) -> str:
        """Return vectors, shape (rows, width), of length 1; zero vectors stay zero."""
        squares = self.add("ReduceSum", self.add("Mul", vectors, vectors), np.array([1]), keepdims=1)
        length = self.add("Sqrt", squares)
        positive = self.add("Greater", length, np.zeros(1, np.float32))
        return self.add("Div", vectors, self.add("Where", positive, length, np.ones(1, np.float32)))


def constant_per_output(values: Iterable[float]) -> np.ndarray:
    """Return a constant with one row per output, FP64, shape (values, 1)."""
    return np.array([[value] for value in values], dtype=np.float64)
