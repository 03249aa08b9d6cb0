"""The age of a date."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal, Self

import numpy as np
import polars as pl

from shortlist.contracts import Columns
from shortlist.features.declared.feature_kind import ColumnwiseFeature, Fitted, NumberQuery, limit_for, log1p
from shortlist.features.declared.graph import Graph
from shortlist.system.query_engine import Engine


class AgeFeature(ColumnwiseFeature):
    """log(1 + days) from a date column to the impression; a date after the impression counts as 0."""

    kind: Literal["age"]
    """Age of a date."""

    own_suffix: ClassVar[str] = "age"
    column_types: ClassVar[tuple[str, ...]] = ("date",)

    def numbers(self, fitted: Fitted, engine: Engine) -> Iterator[NumberQuery]:
        """Return the logarithm of the days."""
        limit = limit_for(engine)
        for name, output in zip(self.each, self.outputs, strict=True):
            date = pl.col(fitted.declared.row_column(name)).cast(pl.Int64)
            days = pl.col(Columns.DAY).cast(pl.Int32).cast(pl.Int64) - date
            yield NumberQuery(output, log1p(limit(days.cast(pl.Float64), 0.0, None)))

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, feature_outputs: Sequence[tuple[Self, int]]) -> str:
        """Compile the ages of all columns at once."""
        dates = graph.declared_numbers([feature.each[output] for feature, output in feature_outputs], "a date")
        days = graph.add("Sub", graph.numbers([Columns.DAY]), dates)
        return graph.log1p(graph.clip_min(days, np.zeros(1)))
