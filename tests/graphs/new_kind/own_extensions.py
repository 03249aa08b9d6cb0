"""A kind of feature, a gate and an online store from outside the project.

They are what a package of one's own would hold; `test_installed` installs them through entry points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self

import numpy as np
from pydantic import Field

from shortlist.contracts import Columns
from shortlist.evaluation.gates.gate_result import GateResult
from shortlist.evaluation.gates.gates import Case, Gate
from shortlist.features.counts.keyed import ROWS, KeyedView, Total
from shortlist.features.declared.feature_kind import Fitted, KeyedFeature, NumberQuery, view_column, view_number
from shortlist.features.declared.graph import Graph
from shortlist.features.values.columns import DeclaredColumns
from shortlist.spec.base import Section
from shortlist.spec.runtime import FileOf, OnlineStore
from shortlist.system.query_engine import Engine


class Trend(KeyedFeature):
    """Share of a key's rows that fell on the last few days."""

    kind: Literal["trend"]
    """Whether a key gets more frequent."""
    window_days: int = Field(default=2, ge=1)
    """The last days."""

    def views(self, declared: DeclaredColumns) -> Iterator[KeyedView]:
        yield KeyedView(*self.keys_and_tags(declared), (ROWS, self._recent))

    def numbers(self, fitted: Fitted, engine: Engine) -> Iterator[NumberQuery]:
        view = self.view(fitted.declared)
        recent, whole = (view_number(view, total.name) for total in (self._recent, ROWS))
        yield NumberQuery(self.name, (recent + 1) / (whole + 2))

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, features: Sequence[tuple[Self, int]]) -> str:
        views = [(feature, feature.view(fitted.declared)) for feature, _ in features]
        places = [view_column(view, feature._recent.name) for feature, view in views]
        places += [view_column(view, ROWS.name) for _, view in views]
        filled = graph.fill_missing(graph.numbers(places), np.zeros(1))
        recent, whole = graph.split(filled, [len(features)] * 2)
        return graph.add("Div", graph.add("Add", recent, np.ones(1)), graph.add("Add", whole, np.full(1, 2.0)))

    @property
    def _recent(self) -> Total:
        return Total(Columns.ROWS, self.window_days)


class SpreadLimits(Section):
    """The gate's own settings."""

    min_deviation: float = Field(default=0.01, ge=0)
    """Least standard deviation of the scores."""


def spread_gate(case: Case) -> GateResult:
    """Hold when the scores hardly differ."""
    limit = case.settings("spread", SpreadLimits).min_deviation
    assert case.scored.read_rows is not None
    spread = float(case.scored.read_rows().scores.std())
    failures = [f"deviation {spread:.3f} < {limit:.3f} (min_deviation)"] if spread < limit else []
    return GateResult.from_failures(
        "spread", failures, f"deviation {spread:.3f}", deviation=spread, min_deviation=limit
    )


SPREAD: Final = Gate(spread_gate, SpreadLimits)


class ElsewhereOnline(OnlineStore):
    """Feast's SQLite store in a file that the spec names."""

    kind: Literal["elsewhere"]
    """A file."""
    path: Path
    """The file."""

    is_shared: ClassVar[bool] = False

    def configuration(self, file: FileOf) -> dict[str, Any]:
        return {"type": "feast.infra.online_stores.sqlite.SqliteOnlineStore", "path": str(self.path)}

    def files(self, file: FileOf) -> tuple[Path, ...]:
        return (self.path,)
