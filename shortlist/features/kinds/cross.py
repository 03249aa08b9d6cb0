"""Ids of combinations."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, ClassVar, Literal, Self

import polars as pl
from pydantic import Field

from shortlist.features.declared.feature_interfaces import DeclaredIds, IdOutputs
from shortlist.features.declared.feature_kind import FeatureKind, FeatureName, Fitted, OutputForm
from shortlist.features.declared.graph import Graph
from shortlist.features.kinds.hash import bucket_id_nodes, bucket_ids
from shortlist.features.values.columns import DeclaredColumns
from shortlist.spec.base import Names
from shortlist.spec.features import LearningSettings
from shortlist.system.query_engine import Engine


class CrossFeature(FeatureKind, IdOutputs, LearningSettings):
    """One id for the ordered combination of two or more columns, by an order-aware hash; 0 when one is null."""

    kind: Literal["cross"]
    """Combinations to buckets."""
    columns: Names = Field(min_length=2)
    """Columns, not tags; (a, b) and (b, a) are different crosses."""
    name: FeatureName
    """Name of the feature."""
    buckets: int = Field(ge=2, le=2**31 - 1)
    """Ids, the null one among them."""

    column_types: ClassVar[tuple[str, ...]] = ("integer", "string", "hex")

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the features."""
        return (self.name,)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Declared columns it reads."""
        return self.columns

    @property
    def read_as_keys(self) -> tuple[str, ...]:
        """Every column."""
        return self.columns

    @property
    def learning(self) -> dict[str, Any]:
        """Marks the ids as hash buckets, which several combinations may share."""
        return {"hashed": True}

    def forms(self, declared: DeclaredColumns) -> list[OutputForm]:
        """Return one id."""
        return ["id"]

    def id_count(self, output: int, fitted: Fitted) -> int:
        """Return the buckets."""
        return self.buckets

    def declared_ids(self, output: int, declared: DeclaredColumns) -> DeclaredIds:
        """Return the buckets."""
        return DeclaredIds(self.buckets)

    def compute(self, rows: pl.DataFrame, fitted: Fitted, engine: Engine) -> Iterator[pl.Series]:
        """Yield the ids."""
        columns = [rows[fitted.declared.row_column(name)] for name in self.columns]
        yield bucket_ids(columns, self.buckets, engine).alias(self.name)

    @property
    def group(self) -> Hashable:
        """Crosses of as many columns are compiled together."""
        return type(self), len(self.columns)

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, feature_outputs: Sequence[tuple[Self, int]]) -> str:
        """Compile the ids."""
        return bucket_id_nodes(graph, [(feature.columns, feature.buckets) for feature, _ in feature_outputs])
