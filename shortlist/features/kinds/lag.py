"""The last value of a key."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, Self

from shortlist.features.counts.keyed import KeyedView
from shortlist.features.declared.feature_kind import Fitted, KeyedFeature, NumberQuery, view_column, view_value
from shortlist.features.declared.graph import Graph, constant_per_output
from shortlist.features.values.columns import DeclaredColumns
from shortlist.spec.data import Data
from shortlist.spec.features import check_is_outcome
from shortlist.system.query_engine import Engine


class LagFeature(KeyedFeature):
    """A column's value at the key's last impression on an earlier day."""

    kind: Literal["lag"]
    """Last value of a key."""
    column: str
    """A numeric column, outcomes allowed."""
    fill: float | None = None
    """Value when there is none."""

    def check(self, data: Data) -> None:
        """Check also that the column is a number."""
        super().check(data)
        check_is_outcome(self.column, data, self.title)

    @property
    def reads(self) -> tuple[str, ...]:
        """The key and the column."""
        return (*self.key, self.column)

    def views(self, declared: DeclaredColumns) -> Iterator[KeyedView]:
        """Return the value at the key's last impression."""
        keys, tags = self.keys_and_tags(declared)
        yield KeyedView(keys, tags, last_value_columns=(declared.log_column(self.column),), timed=True)

    def numbers(self, fitted: Fitted, engine: Engine) -> Iterator[NumberQuery]:
        """Return the value."""
        view = self.view(fitted.declared)
        value = view_value(view, self._statistic(fitted.declared))
        yield NumberQuery(self.name, value if self.fill is None else value.fill_null(self.fill))

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, feature_outputs: Sequence[tuple[Self, int]]) -> str:
        """Compile the values of all keys at once."""
        declared = fitted.declared
        value = graph.numbers(
            [view_column(feature.view(declared), feature._statistic(declared)) for feature, _ in feature_outputs]
        )
        return graph.fill_missing(
            value,
            constant_per_output(math.nan if feature.fill is None else feature.fill for feature, _ in feature_outputs),
        )

    def _statistic(self, declared: DeclaredColumns) -> str:
        return f"last_{declared.log_column(self.column)}"
