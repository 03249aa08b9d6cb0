"""Similarity of an item to the user's history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Self

import numpy as np
import polars as pl

from shortlist.features.declared.feature_interfaces import MeanVectorFeature, SinglePrecisionNodes
from shortlist.features.declared.feature_kind import FeatureKind, FeatureName, Fitted
from shortlist.features.declared.graph import Graph
from shortlist.features.declared.static_view_plan import MeanView, check_holds_items
from shortlist.features.values.columns import DeclaredColumns
from shortlist.features.values.vectors import matrix, normalised
from shortlist.spec.data import Data
from shortlist.spec.features import check_is_history, owner_of
from shortlist.system.execution import count_cpu_operation
from shortlist.system.query_engine import Engine


class SimilarityFeature(FeatureKind, MeanVectorFeature, SinglePrecisionNodes):
    """Cosine of the item's vector and the mean vector of the items in the user's list; 0 when either is missing."""

    kind: Literal["similarity"]
    """Closeness of an item to a history."""
    list: str
    """A tags column of the user's side table that holds item keys."""
    vector: str
    """A vector column of the item's side table."""
    name: FeatureName
    """Name of the feature."""

    def check(self, data: Data) -> None:
        """Check also that the list holds items, and that the vector is an item's."""
        super().check(data)
        check_is_history(self.list, data, self.title)
        side_table = owner_of(self.vector, data)
        if side_table is None or side_table.key != data.item or data.by_name[self.vector].type != "vector":
            raise ValueError(f"{self.title}: '{self.vector}' must be a vector column of the item's side table")

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the features."""
        return (self.name,)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Declared columns it reads."""
        return (self.list, self.vector)

    @property
    def reads(self) -> tuple[str, ...]:
        """The vector alone: of the list, only the mean is looked up."""
        return (self.vector,)

    def mean_views(self, declared: DeclaredColumns) -> Iterator[MeanView]:
        """Return the mean vectors of the list."""
        check_holds_items(self.list, declared)
        yield MeanView(declared.key((str(declared.data.user),)), self.list, self.vector)

    def compute(self, rows: pl.DataFrame, fitted: Fitted, engine: Engine) -> Iterator[pl.Series]:
        """Yield the cosine."""
        count_cpu_operation("similarity of vectors (numpy)")
        width = fitted.widths[self.vector]
        item, history = (normalised(matrix(rows[column], width)) for column in self._vector_columns(fitted.declared))
        yield pl.Series(self.name, (item * history).sum(axis=1), dtype=pl.Float32)

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, feature_outputs: Sequence[tuple[Self, int]]) -> str:
        """Compile the cosines."""
        return graph.concat([graph.transpose(feature._cosine_nodes(graph, fitted)) for feature, _ in feature_outputs])

    def _cosine_nodes(self, graph: Graph, fitted: Fitted) -> str:
        width, columns = fitted.widths[self.vector], self._vector_columns(fitted.declared)
        item, history = (graph.l2_normalise(graph.vector(column, width)) for column in columns)
        return graph.add("ReduceSum", graph.add("Mul", item, history), np.array([1]), keepdims=1)

    def _vector_columns(self, declared: DeclaredColumns) -> tuple[str, str]:
        view = MeanView((), self.list, self.vector)
        return declared.row_column(self.vector), f"{view.name}:{view.features[0]}"
