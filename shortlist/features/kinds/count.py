"""Occurrences of a key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Self

from shortlist.contracts import Columns
from shortlist.features.counts.keyed import KeyedView, with_rows
from shortlist.features.declared.feature_kind import Fitted, NumberQuery, WindowedFeature, log1p, window_sum_nodes
from shortlist.features.declared.graph import Graph
from shortlist.features.declared.static_view_plan import check_holds_items
from shortlist.features.values.columns import DeclaredColumns, PlanError
from shortlist.spec.data import Data
from shortlist.spec.features import check_is_history
from shortlist.system.query_engine import Engine


class CountFeature(WindowedFeature):
    """log(1 + n): how often the key occurred on the days before."""

    kind: Literal["count"]
    """Occurrences of a key."""
    of: str | None = None
    """Count instead in this history from before the log: a tags column, holding item keys, of the user's side table."""

    def check(self, data: Data) -> None:
        """Check also that a history is one."""
        super().check(data)
        if self.of is not None:
            check_is_history(self.of, data, self.title)

    def views(self, declared: DeclaredColumns) -> Iterator[KeyedView]:
        """Return the counts of the key."""
        keys, tags = self.keys_and_tags(declared)
        if self.of is not None:
            self._check_key_of_history(self.of, declared)
            yield KeyedView(keys, tags, histories=(self.of,))
        else:
            yield KeyedView(keys, tags, with_rows(*self.totals(Columns.ROWS)))

    def numbers(self, fitted: Fitted, engine: Engine) -> Iterator[NumberQuery]:
        """Return the logarithm of the count."""
        view = self.view(fitted.declared)
        yield NumberQuery(self.name, log1p(self.window_sum(view, self._measure)))

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, feature_outputs: Sequence[tuple[Self, int]]) -> str:
        """Compile the counts of all keys at once."""
        summands = [(feature, feature.view(fitted.declared), feature._measure) for feature, _ in feature_outputs]
        return graph.log1p(window_sum_nodes(graph, summands))

    @property
    def _measure(self) -> str:
        return f"count_{self.of}" if self.of else Columns.ROWS

    def _check_key_of_history(self, history: str, declared: DeclaredColumns) -> None:
        for key in ("window_days", "skip_days", "window"):
            if getattr(self, key) is not None:
                raise PlanError(
                    f"features: count '{self.name}': a history ('{history}') has no days, so {key} has no meaning;"
                    " leave it out."
                )
        check_holds_items(history, declared)
        data = declared.data
        for name in self.key:
            side_table = declared.side_table_of(name)
            if name not in (data.user, data.item) and (
                side_table is None or side_table.key not in (data.user, data.item)
            ):
                raise PlanError(
                    f"features: count '{self.name}': '{name}' is not known of a user or an item alone, so '{history}'"
                    " cannot be counted by it; use columns of their side tables."
                )
