"""The embedding table that a training gets: on the device, cached there, or spread over processes."""

from __future__ import annotations

from typing import Final

from models.dlrm.cached_embeddings import CachedTable
from models.dlrm.embedding_section import EmbeddingSection
from models.dlrm.fused_table import FusedTable
from models.dlrm.layout import Layout
from models.dlrm.memory import free_memory
from models.dlrm.placement import cached_rows, memory_demand
from models.dlrm.precision import precision_of
from models.dlrm.sharded import ShardedTable
from models.planning.accelerators import Precision
from models.process_group import ProcessGroup

_COUNTED: Final = 8
"""Bytes per row that `models.dlrm.admission` takes beside the table, as far as it is on the device."""


def rows_on_device(layout: Layout, section: EmbeddingSection, device: str) -> int | None:
    """Return how many embedding rows are kept on the device; None: all.

    Args:
        layout: The features.
        section: The model's section.
        device: "cpu" or "cuda".

    Raises:
        PlacementError: There is too little memory; says how much is missing, and what would fit.
    """
    precision: Precision = "bf16" if (exact := precision_of(section, device)) == "fp16" else exact
    beside = _COUNTED if any(one.hashed for one in layout.tables) else 0
    demand = memory_demand(layout, section, precision, beside)
    return cached_rows(demand, section.cached_rows, free_memory() if device == "cuda" else None)


def drawn_table(layout: Layout, width: int, slots: int | None, group: ProcessGroup | None) -> FusedTable | ShardedTable:
    """Return a fresh table, in host memory still; its rows are the same ones wherever they will lie.

    Args:
        layout: The features.
        width: Floats of a row.
        slots: Rows that the device keeps; None: all.
        group: The processes that the rows are spread over; None: this one has all.
    """
    if group is not None:
        return ShardedTable(layout, width, group.rank, group.world)
    return FusedTable(layout, width) if slots is None else CachedTable(layout, width, slots)
