"""What happened to a key since the newest statistics were made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Self

import numpy as np
import polars as pl
from pydantic import Field

from shortlist.features.columns import DeclaredColumns
from shortlist.features.feature_kind import Fitted, Number, PerKey, log1p
from shortlist.features.graph import Graph
from shortlist.features.open_counts import open_positives, open_rows
from shortlist.spec.base import Names
from shortlist.spec.data import Data
from shortlist.spec.features import owner_of
from shortlist.system.query_engine import Engine


class Current(PerKey):
    """log(1 + n): impressions of the key in the tiles that its statistics do not hold yet, up to seconds ago."""

    kind: Literal["current"]
    """Recent occurrences of a key; needs `features.streaming`."""
    key: Names = Field(min_length=1, max_length=1)
    """A column of the log: one of type integer, hex or string."""
    counts: Literal["rows", "positives"] = "rows"
    """Impressions; or those of them with a positive label, which is known `data.outcome_delay` after the impression."""

    def check(self, data: Data) -> None:
        """Check also that the key is sent with every request, and when outcomes are known."""
        super().check(data)
        (name,) = self.key
        owner = owner_of(name, data)
        if owner is not None and name not in {column.name for column in data.columns}:
            raise ValueError(
                f"{self.title}: '{name}' is a column of side table '{owner.name}'; events are counted by a column of"
                " the log"
            )
        kind = data.by_name[name].type
        if kind not in ("integer", "hex", "string"):
            raise ValueError(f"{self.title}: '{name}' is of type {kind}; wanted integer, hex or string")
        if self.counts == "positives" and data.outcome_delay is None:
            raise ValueError(
                f"{self.title}: nothing says when an outcome is known; declare data.outcome_delay, so that training"
                " counts no outcome sooner than a server can"
            )

    @property
    def streamed(self) -> tuple[str, ...]:
        """The key."""
        return self.key

    def numbers(self, fitted: Fitted, engine: Engine) -> Iterator[Number]:
        """Return the logged count."""
        yield Number(self.name, log1p(pl.col(self._place(fitted.declared)).cast(pl.Float64)))

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, wanted: Sequence[tuple[Self, int]]) -> str:
        """Compile the counts of all keys at once."""
        places = [feature._place(fitted.declared) for feature, _ in wanted]
        return graph.log1p(graph.filled(graph.numbers(places), np.zeros(1)))

    def _place(self, declared: DeclaredColumns) -> str:
        place = open_rows if self.counts == "rows" else open_positives
        return place(declared.in_log(self.key[0]))
