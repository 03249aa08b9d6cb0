"""The embedding table that fits the free memory of device and host."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch

from models.embedding.reading.layout import Layout
from models.embedding.table.cached_embeddings import CachedTable
from models.embedding.table.fused_table import FusedTable
from models.embedding.table.placement import Memory, cached_rows, memory_demand
from models.embedding.table.precision import precision_of
from models.embedding.table.sharded import ShardedTable
from models.embedding_section import EmbeddingSection
from shortlist.planning.accelerators import Precision
from shortlist.ranking.process_group import ProcessGroup

_CGROUP: Final = Path("/sys/fs/cgroup")
_MEMINFO: Final = Path("/proc/meminfo")


def free_memory() -> Memory:
    """Return the available memory of the current CUDA device and of the host."""
    free, total = torch.cuda.mem_get_info()
    return Memory(total, free, free_host_bytes())


def free_host_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Return the available bytes of host memory, limited by the machine and by this container.

    Args:
        meminfo: The kernel's file on the machine's memory.
        cgroup: Folder of the container's limits (version 2); the files are missing where there is no limit.
    """
    free = 1024 * _read_number("MemAvailable:", meminfo)
    limit = cgroup / "memory.max"
    if limit.exists() and (limit_text := limit.read_text().strip()) != "max":
        # As the kubelet counts: inactive file pages can be reclaimed at any time.
        used_bytes = int((cgroup / "memory.current").read_text()) - _read_number(
            "inactive_file", cgroup / "memory.stat"
        )
        free = min(free, int(limit_text) - used_bytes)
    return free


def _read_number(name: str, file: Path) -> int:
    lines = (line.split() for line in file.read_text().splitlines())
    return int(next(fields[1] for fields in lines if fields[0] == name))


_COUNTER_BYTES: Final = 8
"""Bytes per row of the counters of `models.embedding.table.admission` on the device."""


def rows_on_device(layout: Layout, section: EmbeddingSection, device: str) -> int | None:
    """Return how many embedding rows are kept on the device; None: all.

    Args:
        layout: The features.
        section: The model's section.
        device: "cpu" or "cuda".

    Raises:
        PlacementError: There is too little memory; the message says how much is missing, and what would fit.
    """
    precision: Precision = (
        "bf16" if (declared_precision := precision_of(section, device)) == "fp16" else declared_precision
    )
    extra_row_bytes = _COUNTER_BYTES if any(feature.hashed for feature in layout.tables) else 0
    demand = memory_demand(layout, section, precision, extra_row_bytes)
    return cached_rows(demand, section.cached_rows, free_memory() if device == "cuda" else None)


def make_table(layout: Layout, width: int, slots: int | None, group: ProcessGroup | None) -> FusedTable | ShardedTable:
    """Return a fresh table, in host memory; its rows are the same for every placement.

    Args:
        layout: The features.
        width: Floats of a row.
        slots: Rows that the device keeps; None: all.
        group: The processes that share the rows; None: this process has all rows.
    """
    if group is not None:
        return ShardedTable(layout, width, group.rank, group.world)
    return FusedTable(layout, width) if slots is None else CachedTable(layout, width, slots)
