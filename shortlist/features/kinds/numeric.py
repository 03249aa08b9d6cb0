"""Numbers: filled, clipped, logged, standardised."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import ClassVar, Literal, Self

import numpy as np
import polars as pl

from shortlist.features.columns import DeclaredColumns
from shortlist.features.feature_kind import Fitted, Limit, Measured, Number, PerColumn, limit_by_clip, limit_for, log1p
from shortlist.features.graph import Graph, column
from shortlist.features.moments import Moments
from shortlist.system.query_engine import Engine


class Numeric(PerColumn):
    """Numbers: filled, clipped, logged, standardised, in this order."""

    kind: Literal["numeric"]
    """Numbers as numbers."""
    fill: float | None = None
    """Value for nulls; null keeps them missing (XGBoost reads them as missing, DLRM as 0)."""
    clip: tuple[float, float] | None = None
    """Smallest and largest value kept."""
    log: bool = False
    """log(1 + x); values below 0 count as 0."""
    standardise: bool = False
    """Subtract the mean and divide by the standard deviation of the training days."""

    own_suffix: ClassVar[str] = "number"
    column_types: ClassVar[tuple[str, ...]] = ("integer", "number", "hex")

    def measured(self, declared: DeclaredColumns) -> Iterator[Measured]:
        """Return the numbers before they are standardised."""
        settings = self.model_dump(mode="json", include={"fill", "clip", "log"})
        for name, output in zip(self.each, self.outputs, strict=True) if self.standardise else ():
            yield Measured(output, name, self._plain(name, declared, limit_by_clip), settings)

    def numbers(self, fitted: Fitted, engine: Engine) -> Iterator[Number]:
        """Return the numbers."""
        limit = limit_for(engine)
        for name, output in zip(self.each, self.outputs, strict=True):
            value = self._plain(name, fitted.declared, limit)
            if self.standardise:
                value = (value - fitted.moments[output].mean) / fitted.moments[output].deviation
            yield Number(output, value, fitted.declared.place(name))

    @property
    def group(self) -> Hashable:
        """Logged numbers are compiled apart from the others."""
        return type(self), self.log

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, wanted: Sequence[tuple[Self, int]]) -> str:
        """Compile the numbers of all columns at once."""
        names = [feature.each[number] for feature, number in wanted]
        value = graph.declared_numbers(names, "a number")
        finite = graph.add("Less", graph.add("Abs", value), np.array([math.inf]))
        fill = column(math.nan if feature.fill is None else feature.fill for feature, _ in wanted)
        value = graph.add("Where", finite, value, fill)
        low, high = (column(limits) for limits in zip(*(feature._limits for feature, _ in wanted), strict=True))
        value = graph.at_most(value, high) if (high < math.inf).any() else value
        value = graph.at_least(value, low) if (low > -math.inf).any() else value
        value = graph.log1p(value) if wanted[0][0].log else value
        if any(feature.standardise for feature, _ in wanted):  # of the others the mean is 0 and the deviation 1
            known = [fitted.moments[one.outputs[number]] if one.standardise else Moments() for one, number in wanted]
            value = graph.add("Sub", value, column(one.mean for one in known))
            value = graph.add("Div", value, column(one.deviation for one in known))
        return value

    def _plain(self, name: str, declared: DeclaredColumns, limit: Limit) -> pl.Expr:
        """Return a number filled, clipped and logged, not yet standardised; NaN and infinity count as null."""
        value = pl.col(declared.place(name)).cast(pl.Float64)
        if declared.is_fraction(name):
            value = pl.when(value.is_finite()).then(value)
        value = value if self.fill is None else value.fill_null(self.fill)
        if self.clip is not None:
            value = limit(value, *self.clip)
        if not self.log:
            return value
        # Without what changes nothing (an integer is finite, a clipped number clipped), logs take a third less time.
        is_positive = self.clip is not None and self.clip[0] >= 0
        return log1p(value if is_positive else limit(value, 0.0, None))

    @property
    def _limits(self) -> tuple[float, float]:
        low, high = self.clip or (-math.inf, math.inf)
        return max(low, 0.0) if self.log else low, high
