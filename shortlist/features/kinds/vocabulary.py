"""Ids by vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal, Self

import numpy as np
import polars as pl
from pydantic import Field

from shortlist.features.counts.vocabulary import VocabularyLimits
from shortlist.features.declared.feature_interfaces import DeclaredIds, IdOutputs
from shortlist.features.declared.feature_kind import ColumnwiseFeature, Fitted, OutputForm
from shortlist.features.declared.graph import ML, ExportError, Graph
from shortlist.features.values.columns import DeclaredColumns
from shortlist.features.values.hashing import NO_CODE, NULL_IN_LIST, codes_of
from shortlist.features.values.lists import map_column
from shortlist.system.query_engine import Engine


class VocabularyFeature(ColumnwiseFeature, IdOutputs):
    """Dense ids for values seen often enough; 0 is unknown or rare. Ids never change; new values are appended."""

    kind: Literal["vocabulary"]
    """Values to ids."""
    min_rows: int = Field(default=1, ge=1)
    """Training rows a value needs to get an id of its own (the frequency cap)."""
    max_size: int = Field(default=10_000_000, ge=2)
    """Most ids, the unknown one among them."""
    max_values: int = Field(default=64, ge=1)
    """Values kept per row of a tags column, the first ones."""

    own_suffix: ClassVar[str] = "id"
    column_types: ClassVar[tuple[str, ...]] = ("integer", "string", "hex", "tags")

    @property
    def read_as_keys(self) -> tuple[str, ...]:
        """Every column."""
        return self.each

    def forms(self, declared: DeclaredColumns) -> list[OutputForm]:
        """Return ids; lists of them for tags."""
        return ["ids" if declared.is_tags(name) else "id" for name in self.each]

    def vocabularies(self, declared: DeclaredColumns) -> Iterator[VocabularyLimits]:
        """Return every column."""
        yield from (VocabularyLimits(name, self.min_rows, self.max_size) for name in self.each)

    def id_count(self, output: int, fitted: Fitted) -> int:
        """Return the size of the vocabulary."""
        return fitted.vocabularies[self.each[output]].size

    def declared_ids(self, output: int, declared: DeclaredColumns) -> DeclaredIds:
        """Return as many ids as there are values, `max_size` at most."""
        name = self.each[output]
        return DeclaredIds(self.max_size, name, self.max_values if declared.is_tags(name) else 1)

    def compute(self, rows: pl.DataFrame, fitted: Fitted, engine: Engine) -> Iterator[pl.Series]:
        """Yield the ids."""
        for name, output in zip(self.each, self.outputs, strict=True):
            values = rows[fitted.declared.row_column(name)]
            if fitted.declared.is_tags(name):
                values = values.list.head(self.max_values)
            yield map_column(values, fitted.vocabularies[name].ids).alias(output)

    @classmethod
    def nodes(cls, graph: Graph, fitted: Fitted, feature_outputs: Sequence[tuple[Self, int]]) -> str:
        """Compile the ids of columns with one value per row."""
        names = [feature.each[output] for feature, output in feature_outputs]
        codes = graph.split(graph.codes(names, "ids by vocabulary"), [1] * len(names))
        return graph.concat(
            [vocabulary_id_nodes(graph, code, name, fitted) for code, name in zip(codes, names, strict=True)]
        )

    def list_nodes(self, graph: Graph, fitted: Fitted, output: int) -> tuple[str, str]:
        """Compile the ids of a tags column."""
        name = self.each[output]
        codes = graph.tags(name, self.max_values)
        is_present = graph.add("Not", graph.add("Equal", codes, np.array([NO_CODE])))
        return vocabulary_id_nodes(graph, codes, name, fitted), is_present


def vocabulary_id_nodes(graph: Graph, codes: str, column: str, fitted: Fitted) -> str:
    """Return the ids of codes by the vocabulary of a column; 0 for those that are not in it."""
    keys = vocabulary_codes(column, fitted.vocabularies[column].values)
    if not len(keys):  # no value was seen often enough
        return graph.add("Mul", codes, np.array([0]))
    return graph.add(
        "LabelEncoder", codes, domain=ML,
        keys_int64s=keys, values_int64s=np.arange(1, len(keys) + 1), default_int64=0,
    )  # fmt: skip


def vocabulary_codes(column: str, values: pl.Series) -> np.ndarray:
    """Return the code of every value of a vocabulary, in order of its id.

    Raises:
        ExportError: Two values have one code, or a value has the code of null.
    """
    codes = codes_of(values)
    is_duplicated = codes.is_duplicated()
    if is_duplicated.any():
        pair = values.filter(codes == codes.filter(is_duplicated)[0]).to_list()
        raise ExportError(
            f"features: vocabulary of '{column}': {pair[0]!r} and {pair[1]!r} have one fingerprint, so an exported"
            " graph cannot tell them apart. Rename one of them in the log, or hash the column."
        )
    is_reserved = codes.is_in([NO_CODE, NULL_IN_LIST])
    if is_reserved.any():
        raise ExportError(
            f"features: vocabulary of '{column}' holds {values.filter(is_reserved)[0]}, which stands for null in an"
            " exported graph. Declare the column as a string."
        )
    return codes.to_numpy()
