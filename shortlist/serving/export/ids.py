"""Ids of a row inside a graph: `shortlist.features.identifiers` on INT64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from shortlist.config.features import Cross, Feature, Hash, Vocabulary
from shortlist.features.hashing import LIMB, PRIME, ROUND_KEYS, codes_of
from shortlist.features.vocabulary import ValueIds
from shortlist.serving.export.inputs import Inputs
from shortlist.serving.export.nodes import ML, ExportError, Nodes
from shortlist.serving.export.signature import NO_CODE, NULL_IN_LIST

if TYPE_CHECKING:
    import polars as pl

_PRIME = np.array([PRIME])
_LIMB = np.array([LIMB])


class Ids:
    """Compiles operations that give ids, and lists of them.

    Args:
        nodes: The graph.
        inputs: Its columns.
        vocabularies: By column.
    """

    def __init__(self, nodes: Nodes, inputs: Inputs, vocabularies: Mapping[str, ValueIds]) -> None:
        self._nodes = nodes
        self._inputs = inputs
        self._vocabularies = vocabularies

    def vocabulary(self, columns: Sequence[str]) -> str:
        """Return ids by vocabulary, shape (columns, rows)."""
        codes = self._nodes.split(self._inputs.codes(columns, "ids by vocabulary"), [1] * len(columns))
        return self._nodes.joined([self._encoded(code, name) for code, name in zip(codes, columns, strict=True)])

    def hashed(self, crosses: Sequence[tuple[tuple[str, ...], int]]) -> str:
        """Return ids by hash, shape (crosses, rows).

        Args:
            crosses: Columns, as many in every cross, and buckets.
        """
        count, depth = len(crosses), len(crosses[0][0])
        columns = [names[place] for place in range(depth) for names, _ in crosses]
        codes = self._nodes.split(self._inputs.codes(columns, "ids by hash"), [count] * depth)
        return self._bucket(codes, np.array([[buckets] for _, buckets in crosses]), (NO_CODE,))

    def tags(self, feature: Vocabulary | Hash, column: str) -> tuple[str, str]:
        """Return the ids of a tags column, shape (rows, longest), and where there is one at all.

        Args:
            feature: How values become ids.
            column: The declared column.
        """
        codes = self._inputs.tags(column, feature.max_values if isinstance(feature, Vocabulary) else None)
        there = self._nodes.add("Not", self._nodes.add("Equal", codes, np.array([NO_CODE])))
        if isinstance(feature, Vocabulary):
            return self._encoded(codes, column), there
        return self._bucket([codes], np.array([[feature.buckets]]), (NO_CODE, NULL_IN_LIST)), there

    def _encoded(self, codes: str, column: str) -> str:
        keys = vocabulary_codes(column, self._vocabularies[column].values)
        if not len(keys):  # no value was seen often enough
            return self._nodes.add("Mul", codes, np.array([0]))
        return self._nodes.add(
            "LabelEncoder", codes, domain=ML,
            keys_int64s=keys, values_int64s=np.arange(1, len(keys) + 1), default_int64=0,
        )  # fmt: skip

    def _bucket(self, codes: Sequence[str], buckets: np.ndarray, nulls: Sequence[int]) -> str:
        """Return `shortlist.features.hashing.with_buckets` of code tensors, one round per tensor and limb."""
        add = self._nodes.add
        mixed, missing = "", ""
        for code in codes:
            for null in nulls:
                is_null = add("Equal", code, np.array([null]))
                missing = add("Or", missing, is_null) if missing else is_null
            low = add("Mod", code, _LIMB)  # floor modulo, so the difference is a multiple and divides exactly
            high = add("Mod", add("Div", add("Sub", code, low), _LIMB), _PRIME)
            for limb, key in zip((low, high), ROUND_KEYS, strict=True):
                keyed = add("Add", limb, np.array([key]))
                mixed = self._fifth_power(add("Mod", add("Add", mixed, keyed) if mixed else keyed, _PRIME))
        found = add("Add", add("Mod", mixed, buckets - 1), np.array([1]))
        return add("Where", missing, np.array([0]), found)

    def _fifth_power(self, value: str) -> str:
        add = self._nodes.add
        square = add("Mod", add("Mul", value, value), _PRIME)
        fourth = add("Mod", add("Mul", square, square), _PRIME)
        return add("Mod", add("Mul", fourth, value), _PRIME)


def crosses_of(feature: Feature, output: int) -> tuple[tuple[str, ...], int]:
    """Return the columns that one output of an operation hashes, in order, and into how many buckets."""
    assert isinstance(feature, Hash | Cross)
    columns = feature.columns if isinstance(feature, Cross) else (feature.each[output],)
    return columns, feature.buckets


def vocabulary_codes(column: str, values: pl.Series) -> np.ndarray:
    """Return the code of every value of a vocabulary, in order of its id.

    Raises:
        ExportError: Two values have one code, or a value's code says null.
    """
    codes = codes_of(values)
    twice = codes.is_duplicated()
    if twice.any():
        pair = values.filter(codes == codes.filter(twice)[0]).to_list()
        raise ExportError(
            f"features: vocabulary of '{column}': {pair[0]!r} and {pair[1]!r} have one fingerprint, so an exported"
            " graph cannot tell them apart. Rename one of them in the log, or hash the column."
        )
    reserved = codes.is_in([NO_CODE, NULL_IN_LIST])
    if reserved.any():
        raise ExportError(
            f"features: vocabulary of '{column}' holds {values.filter(reserved)[0]}, which stands for null in an"
            " exported graph. Declare the column as a string."
        )
    return codes.to_numpy()
