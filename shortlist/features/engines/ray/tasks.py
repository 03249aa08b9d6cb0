"""What a Ray worker does: it runs one task on the contents of its blocks, and says how much memory that took."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from shortlist.system.partitions import Work


def execute(work: Work, task: tuple[Any, ...], blocks: Sequence[Any] | None, outputs: int | None) -> list[Any]:
    """Return the blocks of a task, and after them its peak of private memory in MiB.

    Frames travel as Arrow tables, which workers of a machine share without copying them.

    Args:
        work: The function.
        task: Its arguments.
        blocks: References of the blocks that it reads; None: it reads none.
        outputs: Number of blocks that it returns; None: what it returns is one.
    """
    returned = work(*task) if blocks is None else work(*task, read_blocks(blocks))
    values = [returned] if outputs is None else list(returned)
    assert len(values) == (outputs or 1), f"{work.__name__} returned {len(values)} blocks of {outputs}"
    return [*map(pack, values), peak_memory_mib()]


def read_blocks(references: Sequence[Any]) -> Iterator[Any]:
    """Yield the contents of blocks one after the other."""
    import ray

    for reference in references:
        yield unpack(ray.get(reference))


def pack(value: Any) -> Any:
    """Return a value with its frames as Arrow tables."""
    if isinstance(value, pl.DataFrame):
        return value.to_arrow()
    return type(value)(map(pack, value)) if type(value) in (list, tuple) else value


def unpack(value: Any) -> Any:
    """Return what `pack` got."""
    if isinstance(value, pa.Table):
        return pl.DataFrame(value)
    return type(value)(map(unpack, value)) if type(value) in (list, tuple) else value


def peak_memory_mib() -> int:
    """Return the peak of this process's memory in MiB, without what it shares with others (the object store)."""
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status = Path("/proc/self/status").read_text(encoding="ascii")
    shared_kib = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("RssShmem:")), 0)
    return max(0, peak_kib - shared_kib) >> 10
