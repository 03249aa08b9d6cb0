"""Numbers that are used in training only, such as the position at which an item was shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, Self

import polars as pl
from pydantic import Field

from shortlist.contracts import Columns
from shortlist.features.declared.feature_kind import ColumnwiseFeature, Fitted, NumberQuery
from shortlist.features.declared.graph import Graph, constant_per_output
from shortlist.spec.data import Data
from shortlist.spec.features import LearningSettings, declared_column, refuse_placement
from shortlist.system.query_engine import Engine


class TrainingOnlyFeature(ColumnwiseFeature, LearningSettings):
    """A number with its real value in training, and one fixed value wherever models compute scores.

    The feature table holds the real values. The exported graph has the fixed one, and so have the scores of validation
    and test days, calibration and gates: they judge what is served.
    """

    kind: Literal["training_only"]
    """Numbers known after the row, which explain outcomes and are not known, or not wanted, in serving."""
    serve: float = Field(ge=-1e9, le=1e9)
    """The value in serving, such as 1 for a position: how likely a click is had the item been shown first."""

    own_suffix: ClassVar[str] = "training"
    column_types: ClassVar[tuple[str, ...]] = ("integer", "number")

    @property
    def inputs(self) -> tuple[str, ...]:
        """No column of a row to be scored."""
        return ()

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns, in training."""
        return self.each

    @property
    def learning(self) -> dict[str, Any]:
        """The fixed value of served rows."""
        return {"served": self.serve}

    def check(self, data: Data) -> None:
        """Check that the columns are numbers of the log that no request sends."""
        for name in self.each:
            declared = declared_column(name, data, self.title)
            if name != data.position:
                refuse_placement(name, data, self.title)
            if name == data.label or name not in {log_column.name for log_column in data.columns}:
                raise ValueError(f"{self.title}: '{name}' is the label or no column of the log; wanted another column")
            if declared.known != "after":
                raise ValueError(
                    f"{self.title}: '{name}' is known before the row, so requests send it; declare it `known: after`,"
                    " or the feature as `numeric`"
                )
            if declared.type not in self.column_types:
                raise ValueError(f"{self.title}: '{name}' is of type {declared.type}; wanted integer or number")

    def numbers(self, fitted: Fitted, engine: Engine) -> Iterator[NumberQuery]:
        """Return the real numbers; the fixed one for null."""
        for name, output in zip(self.each, self.outputs, strict=True):
            value = pl.col(fitted.declared.row_column(name)).cast(pl.Float64)
            if fitted.declared.is_fraction(name):
                value = pl.when(value.is_finite()).then(value)
            yield NumberQuery(output, value.fill_null(self.serve))

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, feature_outputs: Sequence[tuple[Self, int]]) -> str:
        """Compile the fixed values, for as many rows as there are."""
        values = constant_per_output(feature.serve for feature, _ in feature_outputs)
        return graph.add("Where", graph.is_missing(graph.numbers([Columns.DAY])), values, values)
