"""Base classes of kinds that look inside texts: a kind says what it derives from a text, and nothing else.

An exported graph knows a text by its fingerprint alone, so that nodes cannot look inside it. What is derived from texts
of a side table is computed when its view is written and served like every other column of the view, from Feast or from
a snapshot. What is derived from texts of the log is computed for every row, in the table and in the server.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import polars as pl

from shortlist.features.declared.feature_interfaces import DeclaredIds, DerivingFeature, IdOutputs
from shortlist.features.declared.feature_kind import ColumnwiseFeature, Fitted, NumberQuery, OutputForm
from shortlist.features.declared.graph import Graph
from shortlist.features.values.columns import DeclaredColumns
from shortlist.features.values.derived_columns import DerivedColumn, DerivedForm
from shortlist.features.values.hashing import NO_CODE
from shortlist.system.query_engine import Engine


class TextFeature(ColumnwiseFeature, DerivingFeature):
    """A feature of each of several columns of texts."""

    column_types: ClassVar[tuple[str, ...]] = ("string",)
    derived_form: ClassVar[DerivedForm]
    """Form of the derived column."""

    @property
    def reads(self) -> tuple[str, ...]:
        """No column: of the texts, only the derived columns are read."""
        return ()

    @abstractmethod
    def derive(self, texts: pl.Series) -> pl.Series:
        """Return what the feature is for each text, in order; null for null.

        It must depend on the text alone: it is computed in the table, in views and in servers.
        """

    def derived_columns(self) -> Iterator[DerivedColumn]:
        """Return one derived column per output, named like it."""
        for column, output in zip(self.each, self.outputs, strict=True):
            yield DerivedColumn(output, column, self.derived_form, self.derive)

    def row_columns(self, declared: DeclaredColumns) -> list[str]:
        """Return the names under which looked-up rows hold the derived columns, in the order of the outputs."""
        return [column.row_column(declared) for column in self.derived_columns()]


class TextNumberFeature(TextFeature):
    """A number of a text; `derive` returns numbers."""

    derived_form: ClassVar[DerivedForm] = "number"

    def numbers(self, fitted: Fitted, engine: Engine) -> Iterator[NumberQuery]:
        """Return the derived numbers."""
        for output, column in zip(self.outputs, self.row_columns(fitted.declared), strict=True):
            yield NumberQuery(output, pl.col(column))

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, feature_outputs: Sequence[tuple[Any, int]]) -> str:
        """Read the derived numbers of all columns at once."""
        return graph.numbers([feature.row_columns(fitted.declared)[output] for feature, output in feature_outputs])


class TextIdsFeature(TextFeature, IdOutputs):
    """Several ids of a text; `derive` returns lists of integers from 0 to `ids_per_column` - 1."""

    derived_form: ClassVar[DerivedForm] = "list"

    @property
    @abstractmethod
    def ids_per_column(self) -> int:
        """Number of ids, 0 among them."""

    def forms(self, declared: DeclaredColumns) -> list[OutputForm]:
        """Return lists of ids."""
        return ["ids"] * len(self.each)

    def id_count(self, output: int, fitted: Fitted) -> int:
        """Return the number of ids."""
        return self.ids_per_column

    def declared_ids(self, output: int, declared: DeclaredColumns) -> DeclaredIds:
        """Return the number of ids."""
        return DeclaredIds(self.ids_per_column, per_row=None)

    def compute(self, rows: pl.DataFrame, fitted: Fitted, engine: Engine) -> Iterator[pl.Series]:
        """Yield the derived ids."""
        for output, column in zip(self.outputs, self.row_columns(fitted.declared), strict=True):
            yield rows[column].fill_null([]).cast(pl.List(pl.UInt32)).alias(output)

    def list_nodes(self, graph: Graph, fitted: Fitted, output: int) -> tuple[str, str]:
        """Read the derived ids."""
        ids = graph.list_codes(self.row_columns(fitted.declared)[output], None)
        is_present = graph.add("Not", graph.add("Equal", ids, np.array([NO_CODE])))
        return graph.add("Where", is_present, ids, np.array([0])), is_present
