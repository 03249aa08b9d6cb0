"""The time of day or week."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, Literal, Self

import numpy as np
import polars as pl

from shortlist.contracts import Columns
from shortlist.features.declared.feature_kind import FeatureKind, FeatureName, Fitted
from shortlist.features.declared.graph import Graph, constant_per_output
from shortlist.features.values.columns import SECOND_OF_DAY, WEEKDAY
from shortlist.system.execution import count_cpu_operation
from shortlist.system.query_engine import Engine

_DAY_SECONDS: Final = 86_400
_PI: Final = (math.pi, 1.2246467991473532e-16)
"""Pi as a sum of two doubles: its first 106 bits."""


class CyclicFeature(FeatureKind):
    """Sine and cosine of the time of day or of the week, in the clock's timezone."""

    kind: Literal["cyclic"]
    """Time on a circle."""
    period: Literal["day", "week"]
    """Length of the circle."""
    name: FeatureName
    """Gives `<name>_sin` and `<name>_cos`."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the features."""
        return (f"{self.name}_sin", f"{self.name}_cos")

    @property
    def inputs(self) -> tuple[str, ...]:
        """It reads no declared column."""
        return ()

    def compute(self, rows: pl.DataFrame, fitted: Fitted, engine: Engine) -> Iterator[pl.Series]:
        """Yield sine and cosine, on the CPU, which alone knows timezones."""
        count_cpu_operation("wall clock in a timezone")
        angle = self._angle(fitted.declared.timezone)
        values = zip(self.outputs, (angle.sin(), angle.cos()), strict=True)
        yield from rows.select(value.cast(pl.Float32).alias(name) for name, value in values)

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, feature_outputs: Sequence[tuple[Self, int]]) -> str:
        """Compile sines (output 0) and cosines (output 1) of the wall clock's angle.

        Both are taken as the sine of the distance to their nearest zero, known to 106 bits: onnxruntime's own sine of
        the double next to pi is 0 in some versions, and it has no cosine of doubles in others.
        """
        add = graph.add
        second, weekday = graph.split(graph.numbers([SECOND_OF_DAY, WEEKDAY]), [1, 1])
        if all(feature.period == "day" for feature, _ in feature_outputs):
            elapsed = second
        else:
            weekly_flags = constant_per_output(float(feature.period == "week") for feature, _ in feature_outputs)
            elapsed = add("Add", second, add("Mul", add("Mul", weekday, np.array([float(_DAY_SECONDS)])), weekly_flags))
        days = constant_per_output(7.0 if feature.period == "week" else 1.0 for feature, _ in feature_outputs)
        angle = add("Mul", elapsed, 2 * math.pi / (days * _DAY_SECONDS))
        zeros = [(0.0, 1.0, 2.0), (0.5, 1.5, 2.5)]  # of sine and cosine, in units of pi
        signs = [(1.0, -1.0, 1.0), (-1.0, 1.0, -1.0)]  # of the slope there
        is_before = [
            add("Less", angle, constant_per_output((zeros[output][i] + 0.5) * math.pi for _, output in feature_outputs))
            for i in range(2)
        ]

        def nearest_constant(constants: Sequence[Sequence[float]], unit: float) -> str:
            first, middle, last = (
                constant_per_output(constants[output][i] * unit for _, output in feature_outputs) for i in range(3)
            )
            return add("Where", is_before[0], first, add("Where", is_before[1], middle, last))

        distance = add("Sub", add("Sub", angle, nearest_constant(zeros, _PI[0])), nearest_constant(zeros, _PI[1]))
        return add("Mul", add("Sin", distance), nearest_constant(signs, 1.0))

    def _angle(self, timezone: str) -> pl.Expr:
        """Return the angle of the wall clock, 0 at midnight (of Monday, for a week)."""
        local = pl.col(Columns.TIME).dt.convert_time_zone(timezone).dt
        second = (
            local.hour().cast(pl.Float64) * 3600 + local.minute() * 60.0 + local.second() + local.microsecond() / 1e6
        )
        if self.period == "day":
            return second * (2 * math.pi / _DAY_SECONDS)
        return (second + (local.weekday() - 1) * float(_DAY_SECONDS)) * (2 * math.pi / (7 * _DAY_SECONDS))
