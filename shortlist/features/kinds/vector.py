"""Vectors as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import polars as pl

from shortlist.features.declared.feature_interfaces import VectorOutputs
from shortlist.features.declared.feature_kind import ColumnwiseFeature, Fitted, OutputForm
from shortlist.features.declared.graph import Graph
from shortlist.features.values.columns import DeclaredColumns
from shortlist.features.values.vectors import matrix, normalised, vector_series
from shortlist.system.execution import count_cpu_operation
from shortlist.system.query_engine import Engine


class VectorFeature(ColumnwiseFeature, VectorOutputs):
    """A dense vector column, L2-normalised; a null is the zero vector."""

    kind: Literal["vector"]
    """Vectors as they are."""
    normalise: bool = True
    """Divide by the Euclidean length."""

    own_suffix: ClassVar[str] = "vector"
    column_types: ClassVar[tuple[str, ...]] = ("vector",)

    def forms(self, declared: DeclaredColumns) -> list[OutputForm]:
        """Return vectors."""
        return ["vector"] * len(self.each)

    def width(self, output: int, fitted: Fitted) -> int:
        """Return the width of the column's vectors."""
        return fitted.widths[self.each[output]]

    def compute(self, rows: pl.DataFrame, fitted: Fitted, engine: Engine) -> Iterator[pl.Series]:
        """Yield the vectors."""
        count_cpu_operation("vectors (numpy)")
        for name, output in zip(self.each, self.outputs, strict=True):
            vectors = matrix(rows[fitted.declared.row_column(name)], fitted.widths[name])
            yield vector_series(output, normalised(vectors) if self.normalise else vectors)

    def vector_nodes(self, graph: Graph, fitted: Fitted, output: int) -> str:
        """Compile a vector."""
        name = self.each[output]
        vectors = graph.vector(fitted.declared.row_column(name), fitted.widths[name])
        return graph.l2_normalise(vectors) if self.normalise else vectors
