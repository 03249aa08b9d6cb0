"""Numbers of a row inside a graph: `shortlist.features.dense`, each kind of operation over all its columns at once.

Null is NaN. Every number is FP64 until the end, as in the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from shortlist.config.features import Age, Count, Cyclic, Feature, Lag, Numeric, Target, TimeSince
from shortlist.contracts import Columns
from shortlist.features.keyed import LAST_TIME, KeyedView, Total, totals_of_target, view_of
from shortlist.features.moments import Moments
from shortlist.serving.export.inputs import Inputs
from shortlist.serving.export.nodes import Nodes
from shortlist.serving.export.signature import SECOND_OF_DAY, WEEKDAY

_HOUR_US: Final = 3.6e9
_DAY_SECONDS: Final = 86_400.0
_NO_ROWS_MEAN: Final = 0.5
_PI: Final = (math.pi, 1.2246467991473532e-16)
"""Pi as a sum of two doubles: its first 106 bits."""

Wanted = tuple[Any, int]
"""An operation, and which of its outputs."""


class Numbers:
    """Compiles operations that give numbers.

    Args:
        nodes: The graph.
        inputs: Its columns.
        moments: Mean and deviation of what is standardised, by feature name.
    """

    def __init__(self, nodes: Nodes, inputs: Inputs, moments: Mapping[str, Moments]) -> None:
        self._nodes = nodes
        self._inputs = inputs
        self._declared = inputs.declared
        self._moments = moments

    def block(self, group: Sequence[Wanted]) -> str:
        """Return the outputs of operations of one `kind_of`, FP64, shape (outputs, rows)."""
        compile_group: dict[type, Callable[[Sequence[Wanted]], str]] = {
            Numeric: self._numeric, Age: self._age, Count: self._count, Target: self._target,
            TimeSince: self._time_since, Lag: self._lag, Cyclic: self._cyclic,
        }  # fmt: skip
        return compile_group[type(group[0][0])](group)

    def _numeric(self, group: Sequence[Wanted]) -> str:
        add = self._nodes.add
        names = [feature.each[number] for feature, number in group]
        value = self._inputs.declared_numbers(names, "a number")
        finite = add("Less", add("Abs", value), np.array([math.inf]))
        value = add("Where", finite, value, _column(math.nan if one.fill is None else one.fill for one, _ in group))
        low, high = (_column(limits) for limits in zip(*(_limits(one) for one, _ in group), strict=True))
        value = self._at_most(value, high) if (high < math.inf).any() else value
        value = self._at_least(value, low) if (low > -math.inf).any() else value
        value = self._log1p(value) if group[0][0].log else value
        known = [self._moments[one.outputs[number]] if one.standardise else Moments() for one, number in group]
        if any(feature.standardise for feature, _ in group):  # of the others the mean is 0 and the deviation 1
            value = add("Sub", value, _column(one.mean for one in known))
            value = add("Div", value, _column(one.deviation for one in known))
        return value

    def _age(self, group: Sequence[Wanted]) -> str:
        dates = self._inputs.declared_numbers([feature.each[number] for feature, number in group], "a date")
        days = self._nodes.add("Sub", self._inputs.numbers([Columns.DAY]), dates)
        return self._log1p(self._at_least(days, np.zeros(1)))

    def _count(self, group: Sequence[Wanted]) -> str:
        names = [f"count_{one.of}" if one.of else Total(Columns.ROWS, one.window_days or 0).name for one, _ in group]
        places = [_place(view_of(one, self._declared), name) for (one, _), name in zip(group, names, strict=True)]
        return self._log1p(self._known(places))

    def _target(self, group: Sequence[Wanted]) -> str:
        """(sum + prior * mean) / (rows + prior), where the mean is of all rows."""
        add, everything = self._nodes.add, KeyedView((Columns.EVERYTHING,))
        totals = [totals_of_target(one, self._declared) for one, _ in group]
        views = [view_of(one, self._declared) for one, _ in group]
        scale = _column(self._declared.scale(total.measure.removeprefix("sum_")) for _, total in totals)
        places = [
            *(_place(view, rows.name) for view, (rows, _) in zip(views, totals, strict=True)),
            *(_place(view, total.name) for view, (_, total) in zip(views, totals, strict=True)),
            *(_place(everything, rows.name) for rows, _ in totals),
            *(_place(everything, total.name) for _, total in totals),
        ]
        rows, sums, all_rows, all_sums = self._nodes.split(self._known(places), [len(group)] * 4)
        mean = add("Div", add("Div", all_sums, scale), all_rows)
        mean = add("Where", add("Greater", all_rows, np.zeros(1)), mean, np.array([_NO_ROWS_MEAN]))
        prior = _column(feature.prior for feature, _ in group)
        weighted = add("Add", add("Div", sums, scale), add("Mul", mean, prior))
        return add("Div", weighted, add("Add", rows, prior))

    def _time_since(self, group: Sequence[Wanted]) -> str:
        cap = _column(feature.cap_hours for feature, _ in group)
        last = self._inputs.numbers([_place(view_of(one, self._declared), LAST_TIME) for one, _ in group])
        hours = self._nodes.add(
            "Div", self._nodes.add("Sub", self._inputs.numbers([Columns.TIME]), last), np.array([_HOUR_US])
        )
        hours = self._nodes.add("Where", self._inputs.missing(hours), cap, hours)
        return self._log1p(self._at_least(self._at_most(hours, cap), np.zeros(1)))

    def _lag(self, group: Sequence[Wanted]) -> str:
        views = [view_of(feature, self._declared) for feature, _ in group]
        value = self._inputs.numbers([_place(view, f"last_{view.lasts[0]}") for view in views])
        fill = _column(math.nan if feature.fill is None else feature.fill for feature, _ in group)
        return self._nodes.add("Where", self._inputs.missing(value), fill, value)

    def _cyclic(self, group: Sequence[Wanted]) -> str:
        """Sine (output 0) or cosine (output 1) of the wall clock's angle.

        Both are taken as the sine of the distance to their nearest zero, known to 106 bits: onnxruntime's own sine of
        the double next to pi is 0 in some versions, and it has no cosine of doubles in others.
        """
        add = self._nodes.add
        clock = self._inputs.numbers([SECOND_OF_DAY, WEEKDAY])
        second, weekday = self._nodes.split(clock, [1, 1])
        if all(feature.period == "day" for feature, _ in group):
            elapsed = second
        else:
            of_week = _column(float(feature.period == "week") for feature, _ in group)
            elapsed = add("Add", second, add("Mul", add("Mul", weekday, np.array([_DAY_SECONDS])), of_week))
        days = _column(7.0 if feature.period == "week" else 1.0 for feature, _ in group)
        angle = add("Mul", elapsed, 2 * math.pi / (days * _DAY_SECONDS))
        zeros = [(0.0, 1.0, 2.0), (0.5, 1.5, 2.5)]  # of sine and cosine, in units of pi
        signs = [(1.0, -1.0, 1.0), (-1.0, 1.0, -1.0)]  # of the slope there
        before = [add("Less", angle, _column((zeros[n][i] + 0.5) * math.pi for _, n in group)) for i in range(2)]

        def nearest(constants: Sequence[Sequence[float]], unit: float) -> str:
            first, middle, last = (_column(constants[number][i] * unit for _, number in group) for i in range(3))
            return add("Where", before[0], first, add("Where", before[1], middle, last))

        distance = add("Sub", add("Sub", angle, nearest(zeros, _PI[0])), nearest(zeros, _PI[1]))
        return add("Mul", add("Sin", distance), nearest(signs, 1.0))

    def _known(self, places: Sequence[str]) -> str:
        """Return looked-up numbers; 0 for null."""
        value = self._inputs.numbers(places)
        return self._nodes.add("Where", self._inputs.missing(value), np.zeros(1), value)

    def _log1p(self, value: str) -> str:
        # As the table computes it, which for tiny numbers is not what a log1p would give.
        return self._nodes.add("Log", self._nodes.add("Add", value, np.ones(1)))

    def _at_least(self, value: str, low: np.ndarray) -> str:
        return self._nodes.add("Where", self._nodes.add("Less", value, low), low, value)  # NaN stays NaN

    def _at_most(self, value: str, high: np.ndarray) -> str:
        return self._nodes.add("Where", self._nodes.add("Greater", value, high), high, value)


def kind_of(feature: Feature) -> tuple[type, bool]:
    """Return what operations that are compiled together have in common."""
    return type(feature), isinstance(feature, Numeric) and feature.log


def _limits(feature: Numeric) -> tuple[float, float]:
    low, high = feature.clip or (-math.inf, math.inf)
    return max(low, 0.0) if feature.log else low, high


def _column(values: Iterable[float]) -> np.ndarray:
    return np.array([[value] for value in values], dtype=np.float64)


def _place(view: KeyedView, name: str) -> str:
    return f"{view.name}:{name}"
