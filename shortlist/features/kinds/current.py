"""Events of a key since its newest statistics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Self

import numpy as np
import polars as pl
from pydantic import Field

from shortlist.features.columns import DeclaredColumns
from shortlist.features.feature_kind import Fitted, KeyedFeature, NumberQuery, log1p
from shortlist.features.graph import Graph
from shortlist.features.open_counts import open_positives_column, open_rows_column
from shortlist.spec.base import Names
from shortlist.spec.data import Data
from shortlist.spec.features import StreamedFeature, owner_of
from shortlist.system.query_engine import Engine


class CurrentCountFeature(KeyedFeature, StreamedFeature):
    """log(1 + n): impressions of the key in the tiles that are not in its statistics yet, up to seconds ago."""

    kind: Literal["current"]
    """Recent occurrences of a key; needs `features.streaming`."""
    key: Names = Field(min_length=1, max_length=1)
    """A column of the log: one of type integer, hex or string."""
    counts: Literal["rows", "positives"] = "rows"
    """Impressions; or those of them with a positive label, which is known `data.outcome_delay` after the impression."""

    def check(self, data: Data) -> None:
        """Check also that the key is sent with every request, and when outcomes are known."""
        super().check(data)
        (name,) = self.key
        side_table = owner_of(name, data)
        if side_table is not None and name not in {column.name for column in data.columns}:
            raise ValueError(
                f"{self.title}: '{name}' is a column of side table '{side_table.name}'; events are counted by a column"
                " of the log"
            )
        column_type = data.by_name[name].type
        if column_type not in ("integer", "hex", "string"):
            raise ValueError(f"{self.title}: '{name}' is of type {column_type}; wanted integer, hex or string")
        if self.counts == "positives" and data.outcome_delay is None:
            raise ValueError(
                f"{self.title}: nothing says when an outcome is known; declare data.outcome_delay, so that training"
                " counts no outcome sooner than a server can"
            )

    @property
    def streamed(self) -> tuple[str, ...]:
        """The key."""
        return self.key

    def numbers(self, fitted: Fitted, engine: Engine) -> Iterator[NumberQuery]:
        """Return the logarithm of the count."""
        yield NumberQuery(self.name, log1p(pl.col(self._row_column(fitted.declared)).cast(pl.Float64)))

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, feature_outputs: Sequence[tuple[Self, int]]) -> str:
        """Compile the counts of all keys at once."""
        columns = [feature._row_column(fitted.declared) for feature, _ in feature_outputs]
        return graph.log1p(graph.fill_missing(graph.numbers(columns), np.zeros(1)))

    def _row_column(self, declared: DeclaredColumns) -> str:
        name_column = open_rows_column if self.counts == "rows" else open_positives_column
        return name_column(declared.log_column(self.key[0]))
