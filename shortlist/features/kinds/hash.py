"""Ids by hashing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
import polars as pl
from pydantic import Field

from shortlist.features.declared.feature_interfaces import DeclaredIds, IdOutputs
from shortlist.features.declared.feature_kind import ColumnwiseFeature, Fitted, OutputForm
from shortlist.features.declared.graph import Graph
from shortlist.features.values.columns import DeclaredColumns
from shortlist.features.values.hashing import LIMB, NO_CODE, NULL_IN_LIST, PRIME, ROUND_KEYS, codes_of, with_buckets
from shortlist.features.values.lists import map_column
from shortlist.spec.features import LearningSettings
from shortlist.system.query_engine import Engine, collect

_PRIME = np.array([PRIME])
_LIMB = np.array([LIMB])


class HashFeature(ColumnwiseFeature, IdOutputs, LearningSettings):
    """Ids by hashing, for columns whose values need no vocabulary, whatever values will come; 0 is null."""

    kind: Literal["hash"]
    """Values to buckets."""
    buckets: int = Field(ge=2, le=2**31 - 1)
    """Ids, the null one among them."""
    admit_after: int = Field(default=1, ge=1, le=2**31 - 1)
    """The occurrence on the training days from which on networks learn a bucket's embedding. Until then it is zero: an
    id too rare to learn from adds nothing, in training and in serving alike."""
    evict_after_days: int | None = Field(default=None, ge=1)
    """In networks with `retrain: warm`, buckets that no training looked up for more days than these (a training counts
    as its last day) are given back: their embeddings are zero again, free for new ids. null keeps them for ever."""

    own_suffix: ClassVar[str] = "hash"
    column_types: ClassVar[tuple[str, ...]] = ("integer", "string", "hex", "tags")

    @property
    def read_as_keys(self) -> tuple[str, ...]:
        """Every column."""
        return self.each

    @property
    def learning(self) -> dict[str, Any]:
        """Settings of learning the embeddings of buckets."""
        return {"hashed": True, "admit_after": self.admit_after, "evict_after_days": self.evict_after_days}

    def forms(self, declared: DeclaredColumns) -> list[OutputForm]:
        """Return ids; lists of them for tags."""
        return ["ids" if declared.is_tags(name) else "id" for name in self.each]

    def id_count(self, output: int, fitted: Fitted) -> int:
        """Return the buckets."""
        return self.buckets

    def declared_ids(self, output: int, declared: DeclaredColumns) -> DeclaredIds:
        """Return the buckets."""
        return DeclaredIds(self.buckets, per_row=None if declared.is_tags(self.each[output]) else 1)

    def compute(self, rows: pl.DataFrame, fitted: Fitted, engine: Engine) -> Iterator[pl.Series]:
        """Yield the ids."""
        for name, output in zip(self.each, self.outputs, strict=True):
            values = rows[fitted.declared.row_column(name)]
            yield map_column(values, lambda column_values: bucket_ids([column_values], self.buckets, engine)).alias(
                output
            )

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, feature_outputs: Sequence[tuple[Self, int]]) -> str:
        """Compile the ids of columns with one value per row."""
        return bucket_id_nodes(
            graph, [((feature.each[output],), feature.buckets) for feature, output in feature_outputs]
        )

    def list_nodes(self, graph: Graph, fitted: Fitted, output: int) -> tuple[str, str]:
        """Compile the ids of a tags column."""
        codes = graph.tags(self.each[output], None)
        is_present = graph.add("Not", graph.add("Equal", codes, np.array([NO_CODE])))
        return _hash_nodes(graph, [codes], np.array([[self.buckets]]), (NO_CODE, NULL_IN_LIST)), is_present


def bucket_ids(columns: Sequence[pl.Series], buckets: int, engine: Engine) -> pl.Series:
    """Return the ids, UInt32, of the ordered combination of columns; 0 where one is null."""
    codes = pl.DataFrame([codes_of(column).alias(f"{number}") for number, column in enumerate(columns)])
    return collect(with_buckets(codes.lazy(), "bucket", codes.columns, buckets).select("bucket"), engine).to_series()


def bucket_id_nodes(graph: Graph, crosses: Sequence[tuple[tuple[str, ...], int]]) -> str:
    """Compile ordered combinations of columns; return their ids, shape (crosses, rows).

    Args:
        graph: The graph to which nodes are added.
        crosses: Columns, the same number in every cross, and buckets.
    """
    count, depth = len(crosses), len(crosses[0][0])
    columns = [names[position] for position in range(depth) for names, _ in crosses]
    codes = graph.split(graph.codes(columns, "ids by hash"), [count] * depth)
    return _hash_nodes(graph, codes, np.array([[buckets] for _, buckets in crosses]), (NO_CODE,))


def _hash_nodes(graph: Graph, codes: Sequence[str], buckets: np.ndarray, nulls: Sequence[int]) -> str:
    """Return `shortlist.features.values.hashing.with_buckets` of code tensors, one round per tensor and limb."""
    add = graph.add
    mixed, is_missing = "", ""
    for code in codes:
        for null_code in nulls:
            is_null = add("Equal", code, np.array([null_code]))
            is_missing = add("Or", is_missing, is_null) if is_missing else is_null
        low = add("Mod", code, _LIMB)  # floor modulo, so the difference is a multiple and divides exactly
        high = add("Mod", add("Div", add("Sub", code, low), _LIMB), _PRIME)
        for limb, key in zip((low, high), ROUND_KEYS, strict=True):
            keyed = add("Add", limb, np.array([key]))
            mixed = _fifth_power(graph, add("Mod", add("Add", mixed, keyed) if mixed else keyed, _PRIME))
    ids = add("Add", add("Mod", mixed, buckets - 1), np.array([1]))
    return add("Where", is_missing, np.array([0]), ids)


def _fifth_power(graph: Graph, value: str) -> str:
    square = graph.add("Mod", graph.add("Mul", value, value), _PRIME)
    fourth = graph.add("Mod", graph.add("Mul", square, square), _PRIME)
    return graph.add("Mod", graph.add("Mul", fourth, value), _PRIME)
