"""The rate of a key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, Self

import numpy as np
import polars as pl
from pydantic import Field

from shortlist.contracts import Columns
from shortlist.features.columns import DeclaredColumns
from shortlist.features.feature_kind import Fitted, NumberQuery, WindowedFeature, window_sum_nodes
from shortlist.features.graph import Graph, constant_per_output
from shortlist.features.keyed import KeyedView, with_rows
from shortlist.spec.data import Data
from shortlist.spec.features import check_is_outcome
from shortlist.system.query_engine import Engine

NO_ROWS_MEAN: Final = 0.5
"""The overall mean while nothing at all has been seen."""


class TargetFeature(WindowedFeature):
    """Smoothed mean of the label or an earlier outcome over the days before: (sum + prior * mean) / (rows + prior)."""

    kind: Literal["target"]
    """Rate of a key."""
    of: str | None = None
    """A numeric column, outcomes allowed; null for the label."""
    prior: float = Field(default=20.0, gt=0)
    """Rows' worth of the overall mean (of the days before) mixed in."""

    def check(self, data: Data) -> None:
        """Check also that the outcome is a number."""
        super().check(data)
        if self.of is not None:
            check_is_outcome(self.of, data, self.title)

    @property
    def reads(self) -> tuple[str, ...]:
        """The key and the outcome."""
        return self.key if self.of is None else (*self.key, self.of)

    def views(self, declared: DeclaredColumns) -> Iterator[KeyedView]:
        """Return the sums of the key, and of all rows for the overall mean."""
        totals = with_rows(*(total for measure in self._measures(declared) for total in self.totals(measure)))
        yield KeyedView(*self.keys_and_tags(declared), totals)
        yield KeyedView((Columns.GLOBAL_KEY,), totals=totals)

    def numbers(self, fitted: Fitted, engine: Engine) -> Iterator[NumberQuery]:
        """Return the smoothed mean."""
        rows, total = self._measures(fitted.declared)
        view, all_rows_view = self.views(fitted.declared)
        scale = self._scale(fitted.declared)
        all_rows = self.window_sum(all_rows_view, rows)
        overall = self.window_sum(all_rows_view, total) / scale / all_rows
        mean = pl.when(all_rows > 0).then(overall).otherwise(NO_ROWS_MEAN)
        weighted = self.window_sum(view, total) / scale + self.prior * mean
        yield NumberQuery(self.name, weighted / (self.window_sum(view, rows) + self.prior))

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, feature_outputs: Sequence[tuple[Self, int]]) -> str:
        """Compile the smoothed means of all keys at once."""
        add, features = graph.add, [feature for feature, _ in feature_outputs]
        views = [tuple(feature.views(fitted.declared)) for feature in features]
        summands = [
            (feature, view[view_index], feature._measures(fitted.declared)[measure_index])
            for view_index in (0, 1)  # of the key, of all rows
            for measure_index in (0, 1)  # rows, sum
            for feature, view in zip(features, views, strict=True)
        ]
        window_sums = window_sum_nodes(graph, summands)
        rows, sums, all_rows, all_sums = graph.split(window_sums, [len(features)] * 4)
        scale = constant_per_output(feature._scale(fitted.declared) for feature in features)
        mean = add("Div", add("Div", all_sums, scale), all_rows)
        mean = add("Where", add("Greater", all_rows, np.zeros(1)), mean, np.array([NO_ROWS_MEAN]))
        prior = constant_per_output(feature.prior for feature in features)
        weighted = add("Add", add("Div", sums, scale), add("Mul", mean, prior))
        return add("Div", weighted, add("Add", rows, prior))

    def _outcome(self, declared: DeclaredColumns) -> str:
        return declared.log_column(self.of or declared.data.label)

    def _measures(self, declared: DeclaredColumns) -> tuple[str, str]:
        return mean_measures(self._outcome(declared), declared)

    def _scale(self, declared: DeclaredColumns) -> float:
        return float(declared.scale(self._outcome(declared)))


def mean_measures(outcome: str, declared: DeclaredColumns) -> tuple[str, str]:
    """Return the measures of a mean: the rows, and the sum; a null outcome counts in neither.

    Args:
        outcome: Name of the column in the valid log.
        declared: The declared columns.
    """
    never_null = outcome == Columns.LABEL or not declared.column(outcome).nullable
    return Columns.ROWS if never_null else f"{Columns.ROWS}_{outcome}", f"sum_{outcome}"
