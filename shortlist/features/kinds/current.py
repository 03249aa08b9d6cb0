"""Events of a key since its newest statistics."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Literal, Self

import numpy as np
import polars as pl
from pydantic import Field, model_validator

from shortlist.contracts import Columns
from shortlist.features.counts.keyed import KeyedView, Total, with_rows
from shortlist.features.declared.feature_kind import Fitted, KeyedFeature, NumberQuery, log1p, view_column, view_number
from shortlist.features.declared.graph import Graph, constant_per_output
from shortlist.features.kinds.target import NO_ROWS_MEAN
from shortlist.features.live.open_counts import open_positives_column, open_rows_column, open_settled_column
from shortlist.features.values.columns import DeclaredColumns
from shortlist.spec.base import Names
from shortlist.spec.data import Data
from shortlist.spec.features import StreamedFeature, owner_of
from shortlist.system.query_engine import Engine

_ALL_ROWS = KeyedView((Columns.GLOBAL_KEY,), totals=with_rows(Total(f"sum_{Columns.LABEL}")))


class CurrentCountFeature(KeyedFeature, StreamedFeature):
    """log(1 + n), or the smoothed rate, of the key in the tiles that are not in its statistics yet."""

    kind: Literal["current"]
    """Recent occurrences of a key, or their rate; needs `features.streaming`."""
    key: Names = Field(min_length=1)
    """Columns of the log whose values together are the key; each of type integer, hex or string."""
    counts: Literal["rows", "positives", "rate"] = "rows"
    """Impressions; those of them with a positive label, which is known `data.outcome_delay` after the impression; or
    the smoothed mean of the labels that are known."""
    prior: float | None = Field(default=None, gt=0)
    """Rows' worth of the overall mean (of the statistics) mixed into a rate; 20 by default."""

    @model_validator(mode="after")
    def _prior_is_of_a_rate(self) -> Self:
        if self.prior is not None and self.counts != "rate":
            raise ValueError(f"prior: is of counts: rate, and counts is {self.counts}; leave it out")
        return self

    def check(self, data: Data) -> None:
        """Check also that the key is sent with every request, and when outcomes are known."""
        super().check(data)
        for name in self.key:
            side_table = owner_of(name, data)
            if side_table is not None and name not in {column.name for column in data.columns}:
                raise ValueError(
                    f"{self.title}: '{name}' is a column of side table '{side_table.name}'; events are counted by a"
                    " column of the log, or several"
                )
            column_type = data.by_name[name].type
            if column_type not in ("integer", "hex", "string"):
                raise ValueError(f"{self.title}: '{name}' is of type {column_type}; wanted integer, hex or string")
        if self.counts != "rows" and data.outcome_delay is None:
            raise ValueError(
                f"{self.title}: nothing says when an outcome is known; declare data.outcome_delay, so that training"
                " counts no outcome sooner than a server can"
            )

    @property
    def streamed(self) -> tuple[str, ...]:
        """The key."""
        return self.key

    def views(self, declared: DeclaredColumns) -> Iterator[KeyedView]:
        """Return the sums of all rows, for the overall mean of a rate."""
        if self.counts == "rate":
            yield _ALL_ROWS

    def numbers(self, fitted: Fitted, engine: Engine) -> Iterator[NumberQuery]:
        """Return the logarithm of the count, or the rate."""
        count, *settled = (pl.col(column).cast(pl.Float64) for column in self._row_columns(fitted.declared))
        if not settled:
            yield NumberQuery(self.name, log1p(count))
            return
        rows, positives = (view_number(_ALL_ROWS, total.name) for total in _ALL_ROWS.totals)
        mean = pl.when(rows > 0).then(positives / rows).otherwise(NO_ROWS_MEAN)
        yield NumberQuery(self.name, (count + self._prior * mean) / (settled[0] + self._prior))

    @property
    def group(self) -> Hashable:
        """Rates are compiled apart from counts."""
        return type(self), self.counts == "rate"

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, feature_outputs: Sequence[tuple[Self, int]]) -> str:
        """Compile the counts, or the rates, of all keys at once."""
        features = [feature for feature, _ in feature_outputs]
        columns_by_feature = [feature._row_columns(fitted.declared) for feature in features]
        counts, *settled = (
            graph.fill_missing(graph.numbers(list(columns)), np.zeros(1))
            for columns in zip(*columns_by_feature, strict=True)
        )
        if not settled:
            return graph.log1p(counts)
        places = [view_column(_ALL_ROWS, total.name) for total in _ALL_ROWS.totals]
        rows, positives = graph.split(graph.fill_missing(graph.numbers(places), np.zeros(1)), [1, 1])
        has_rows = graph.add("Greater", rows, np.zeros(1))
        mean = graph.add("Where", has_rows, graph.add("Div", positives, rows), np.array([NO_ROWS_MEAN]))
        priors = constant_per_output(feature._prior for feature in features)
        weighted = graph.add("Add", counts, graph.add("Mul", priors, mean))
        return graph.add("Div", weighted, graph.add("Add", settled[0], priors))

    @property
    def _prior(self) -> float:
        return 20.0 if self.prior is None else self.prior

    def _row_columns(self, declared: DeclaredColumns) -> tuple[str, ...]:
        """Return the count's column of looked-up rows; of a rate, the positive and the settled impressions."""
        key = tuple(sorted(map(declared.log_column, self.key)))
        if self.counts == "rate":
            return open_positives_column(key), open_settled_column(key)
        return (open_rows_column(key) if self.counts == "rows" else open_positives_column(key),)
