"""The sizes that a network's costs depend on: its tables and its widths."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EmbeddingTable:
    """One embedding table.

    Attributes:
        name: Name of the feature.
        rows: Number of ids, 0 included.
        lookups: Rows read per sample; for a list, the most it may have.
        source: Source of `rows`: `given`, `fitted`, `declared` (buckets), or `bound` (an upper bound).
    """

    name: str
    rows: int
    lookups: int
    source: str


@dataclass(frozen=True)
class ModelShape:
    """The sizes that a network's costs depend on.

    Attributes:
        tables: Embedding tables, in the order of the features.
        floats: Width of the dense input.
        width: Floats of an embedding row.
        bottom: Widths of the bottom perceptron, input and output included.
        top: Widths of the top perceptron, input and output included.
        batch: Rows per step.
        assumed: Assumptions about sizes that are known only after a fit; one sentence each.
    """

    tables: tuple[EmbeddingTable, ...]
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
