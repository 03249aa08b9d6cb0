"""Time since a key's last impression."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, Self

import numpy as np
import polars as pl
from pydantic import Field

from shortlist.contracts import Columns
from shortlist.features.counts.keyed import LAST_TIME, KeyedView
from shortlist.features.declared.feature_kind import (
    Fitted,
    KeyedFeature,
    NumberQuery,
    limit_for,
    log1p,
    view_column,
    view_value,
)
from shortlist.features.declared.graph import Graph, constant_per_output
from shortlist.features.values.columns import DeclaredColumns
from shortlist.system.query_engine import Engine

_HOUR_US: Final = 3_600_000_000


class TimeSinceFeature(KeyedFeature):
    """log(1 + hours) since the key's last impression on an earlier day; the cap when there is none."""

    kind: Literal["time_since"]
    """Age of a key's last impression."""
    cap_hours: float = Field(default=24 * 30, gt=0)
    """Longest time; longer ones are cut to it."""

    def views(self, declared: DeclaredColumns) -> Iterator[KeyedView]:
        """Return the time of the key's last impression."""
        yield KeyedView(*self.keys_and_tags(declared), timed=True)

    def numbers(self, fitted: Fitted, engine: Engine) -> Iterator[NumberQuery]:
        """Return the logarithm of the hours."""
        view = self.view(fitted.declared)
        elapsed = pl.col(Columns.TIME).cast(pl.Int64) - view_value(view, LAST_TIME)
        hours = (elapsed.cast(pl.Float64) / _HOUR_US).fill_null(self.cap_hours)
        yield NumberQuery(self.name, log1p(limit_for(engine)(hours, 0.0, self.cap_hours)))

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, feature_outputs: Sequence[tuple[Self, int]]) -> str:
        """Compile the logarithms of the hours of all keys at once."""
        cap = constant_per_output(feature.cap_hours for feature, _ in feature_outputs)
        last_times = graph.numbers(
            [view_column(feature.view(fitted.declared), LAST_TIME) for feature, _ in feature_outputs]
        )
        elapsed = graph.add("Sub", graph.numbers([Columns.TIME]), last_times)
        hours = graph.fill_missing(graph.add("Div", elapsed, np.array([float(_HOUR_US)])), cap)
        return graph.log1p(graph.clip_min(graph.clip_max(hours, cap), np.zeros(1)))
