"""Numbers that count in training alone, such as the position at which an item was shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, Self

import polars as pl
from pydantic import Field

from shortlist.contracts import Columns
from shortlist.features.feature_kind import Fitted, Number, PerColumn
from shortlist.features.graph import Graph, column
from shortlist.spec.data import Data
from shortlist.spec.features import declared_column
from shortlist.system.query_engine import Engine


class TrainingOnly(PerColumn):
    """A number that models learn from as it was, and that has one fixed value wherever they give scores.

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
        """Nothing of a row to be scored."""
        return ()

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns, in training."""
        return self.each

    @property
    def learning(self) -> dict[str, Any]:
        """The value of served rows."""
        return {"served": self.serve}

    def check(self, data: Data) -> None:
        """Check that the columns are numbers of the log that no request sends."""
        for name in self.each:
            declared = declared_column(name, data, self.title)
            if name == data.label or name not in {one.name for one in data.columns}:
                raise ValueError(f"{self.title}: '{name}' is the label or no column of the log; wanted another column")
            if declared.known != "after":
                raise ValueError(
                    f"{self.title}: '{name}' is known before the row, so requests send it; declare it `known: after`,"
                    " or the feature as `numeric`"
                )
            if declared.type not in self.column_types:
                raise ValueError(f"{self.title}: '{name}' is of type {declared.type}; wanted integer or number")

    def numbers(self, fitted: Fitted, engine: Engine) -> Iterator[Number]:
        """Return the real numbers; the fixed one where there is none."""
        for name, output in zip(self.each, self.outputs, strict=True):
            value = pl.col(fitted.declared.place(name)).cast(pl.Float64)
            if fitted.declared.is_fraction(name):
                value = pl.when(value.is_finite()).then(value)
            yield Number(output, value.fill_null(self.serve))

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, wanted: Sequence[tuple[Self, int]]) -> str:
        """Compile the fixed values, for as many rows as there are."""
        values = column(feature.serve for feature, _ in wanted)
        return graph.add("Where", graph.missing(graph.numbers([Columns.DAY])), values, values)
