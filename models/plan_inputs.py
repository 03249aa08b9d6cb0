"""The shape of a spec's DLRM before it is trained: its tables, with rows as far as they are known, and its widths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shortlist.config.data import Data
from shortlist.config.features import Cross, Cyclic, Feature, Hash, Vector, Vocabulary
from shortlist.config.spec import Spec, select
from shortlist.contracts import ShortlistError, did_you_mean

_ASSUMED_VECTOR_WIDTH = 64
_ASSUMED_TAGS = 64


@dataclass(frozen=True)
class Table:
    """One embedding table.

    Attributes:
        name: Its feature.
        rows: Ids, 0 among them.
        lookups: Rows read per sample; the most a list may have.
        source: Where `rows` comes from: `given`, `fitted`, `declared` (buckets), or `bound` (it is at most this).
    """

    name: str
    rows: int
    lookups: int
    source: str


@dataclass(frozen=True)
class Shape:
    """What a DLRM's costs depend on.

    Attributes:
        tables: In the order of the features.
        floats: Width of the dense input.
        width: Floats of an embedding row.
        bottom: Widths of the bottom perceptron, input and output included.
        top: Widths of the top perceptron, input and output included.
        batch: Rows per step.
        assumed: What was assumed because only a fit knows it; one sentence each.
    """

    tables: tuple[Table, ...]
    floats: int
    width: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    batch: int
    assumed: tuple[str, ...] = ()

    @property
    def lookups(self) -> int:
        """Rows read per sample."""
        return sum(table.lookups for table in self.tables)

    @property
    def vectors(self) -> int:
        """Interacting vectors, N: one per table and the bottom network's output."""
        return len(self.tables) + 1


def shape_of(spec: Spec, cardinalities: Mapping[str, int], fitted: Mapping[str, int]) -> Shape:
    """Return the shape of a spec's DLRM.

    Args:
        spec: The declaration.
        cardinalities: Distinct values by column, frequent enough for an id; comes before what was fitted.
        fitted: Size (of ids) or width (of vectors) by feature, from a feature table.

    Raises:
        ShortlistError: No DLRM is declared, or a cardinality is of a column without a vocabulary.
    """
    section = spec.models.dlrm
    if section is None:
        raise ShortlistError("models.dlrm: not declared; a plan counts embedding tables, and trees have none")
    _check_columns(cardinalities, spec)
    wanted = set(select(section.features, spec.features.names))
    tables: list[Table] = []
    floats, assumed = 0, []
    for feature in spec.features.columns:
        for column, name in _outputs(feature):
            if name not in wanted:
                continue
            if isinstance(feature, Vocabulary | Hash | Cross):
                tables.append(_table(feature, column, name, spec.data, cardinalities, fitted))
            elif isinstance(feature, Vector):
                floats += fitted.get(name, _ASSUMED_VECTOR_WIDTH)
                if name not in fitted:
                    assumed.append(
                        f"Vector '{name}' counts {_ASSUMED_VECTOR_WIDTH} floats: its width is known after a fit."
                    )
            else:
                floats += 1
    assumed += [
        f"'{table.name}' is a list: every sample counts {table.lookups} look-ups, the most it may have."
        for table in tables if table.lookups > 1
    ]  # fmt: skip
    width, vectors = section.embedding_dim, len(tables) + 1
    bottom = (max(1, floats), *section.bottom_mlp, width)
    top = (width + vectors * (vectors - 1) // 2, *section.top_mlp, 1)
    return Shape(tuple(tables), max(1, floats), width, bottom, top, section.batch_size, tuple(assumed))


def _outputs(feature: Feature) -> list[tuple[str, str]]:
    """Return (column, feature) of every output; the column is empty where there are none or several."""
    if isinstance(feature, Cyclic | Cross):
        return [("", name) for name in feature.outputs]
    return list(
        zip(feature.inputs if len(feature.inputs) == len(feature.outputs) else ("",), feature.outputs, strict=True)
    )


def _table(
    feature: Vocabulary | Hash | Cross, column: str, name: str, data: Data,
    cardinalities: Mapping[str, int], fitted: Mapping[str, int],
) -> Table:  # fmt: skip
    is_list = bool(column) and data.by_name[column].type == "tags"
    lookups = 1 if not is_list else feature.max_values if isinstance(feature, Vocabulary) else _ASSUMED_TAGS
    if not isinstance(feature, Vocabulary):
        return Table(name, feature.buckets, lookups, "declared")
    if column in cardinalities:
        # Id 0 is unknown-or-rare, beside those of the values.
        return Table(name, min(cardinalities[column] + 1, feature.max_size), lookups, "given")
    if name in fitted:
        return Table(name, fitted[name], lookups, "fitted")
    return Table(name, feature.max_size, lookups, "bound")


def _check_columns(cardinalities: Mapping[str, int], spec: Spec) -> None:
    known = {column for feature in spec.features.columns if isinstance(feature, Vocabulary) for column in feature.each}
    for column in cardinalities:
        if column not in known:
            raise ShortlistError(
                f"cardinalities: '{column}' is no column with a vocabulary{did_you_mean(column, known)}"
                f"; there are {', '.join(sorted(known)) or 'none'}"
            )
