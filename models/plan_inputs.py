"""The shape of a spec's network before training: its tables, with known or assumed rows, and its widths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from models.embedding_section import EmbeddingSection
from shortlist.contracts import ShortlistError, did_you_mean
from shortlist.features.declared.feature_interfaces import DeclaredIds, IdOutputs, declared_ids
from shortlist.features.declared.feature_kind import declared_kinds
from shortlist.features.values.columns import DeclaredColumns
from shortlist.planning.model_shape import EmbeddingTable, ModelShape
from shortlist.spec.spec import Spec, match_features

_ASSUMED_VECTOR_WIDTH = 64
_ASSUMED_TAGS = 64


def shape_of(spec: Spec, name: str, cardinalities: Mapping[str, int], fitted: Mapping[str, int]) -> ModelShape:
    """Return the shape of a spec's network.

    Args:
        spec: The spec.
        name: Name of the model.
        cardinalities: Distinct values by column, frequent enough for an id; takes precedence over `fitted`.
        fitted: Size (of ids) or width (of vectors) by feature, from a feature table.

    Raises:
        ShortlistError: A cardinality is given for a column without a vocabulary.
    """
    section = cast(EmbeddingSection, spec.models[name])
    _check_columns(cardinalities, spec)
    vectors = section.vectors.of if section.vectors is not None else ()
    read_features = set(match_features((*section.features, *vectors), spec.features.names))
    widths: dict[str, int] = {}
    tables: list[EmbeddingTable] = []
    floats, assumed = 0, []
    declared = DeclaredColumns(spec.data)
    for feature in declared_kinds(spec.features):
        for number, (output, form) in enumerate(zip(feature.outputs, feature.forms(declared), strict=True)):
            ids = declared_ids(feature, number, declared)
            if output not in read_features:
                continue
            if ids is not None:
                tables.append(_table(ids, output, cardinalities, fitted))
            elif form == "vector":
                widths[output] = fitted.get(output, _ASSUMED_VECTOR_WIDTH)
                floats += widths[output]
                if output not in fitted:
                    assumed.append(
                        f"Vector '{output}' counts {_ASSUMED_VECTOR_WIDTH} floats: its width is known after a fit."
                    )
            else:
                floats += 1
    assumed += [
        f"'{table.name}' is a list: every sample counts {table.lookups} look-ups, the most it may have."
        for table in tables if table.lookups > 1
    ]  # fmt: skip
    bottom, top = section.perceptrons(max(1, section.inner_floats(floats, widths)), len(tables))
    return ModelShape(
        tuple(tables), max(1, floats), section.embedding_dim, bottom, top, section.batch_size, tuple(assumed)
    )


def _table(ids: DeclaredIds, name: str, cardinalities: Mapping[str, int], fitted: Mapping[str, int]) -> EmbeddingTable:
    lookups = _ASSUMED_TAGS if ids.per_row is None else ids.per_row
    if not ids.counted_column:
        return EmbeddingTable(name, ids.max_ids, lookups, "declared")
    if ids.counted_column in cardinalities:
        # Id 0, unknown or rare, is added to the values.
        return EmbeddingTable(name, min(cardinalities[ids.counted_column] + 1, ids.max_ids), lookups, "given")
    if name in fitted:
        return EmbeddingTable(name, fitted[name], lookups, "fitted")
    return EmbeddingTable(name, ids.max_ids, lookups, "bound")


def _check_columns(cardinalities: Mapping[str, int], spec: Spec) -> None:
    declared = DeclaredColumns(spec.data)
    vocabulary_columns = {
        limits.column
        for feature in declared_kinds(spec.features)
        if isinstance(feature, IdOutputs)
        for limits in feature.vocabularies(declared)
    }
    for column in cardinalities:
        if column not in vocabulary_columns:
            raise ShortlistError(
                f"cardinalities: '{column}' is no column with a vocabulary{did_you_mean(column, vocabulary_columns)}"
                f"; there are {', '.join(sorted(vocabulary_columns)) or 'none'}"
            )
