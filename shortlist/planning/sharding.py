"""Sharding of embedding tables over several devices."""

from __future__ import annotations

from typing import Final

from shortlist.planning.accelerators import ACCELERATORS, Accelerator, Precision
from shortlist.planning.model_shape import EmbeddingTable, ModelShape
from shortlist.planning.plan import FLOAT, state_bytes, step_bytes, table_bytes

RESERVED: Final = 0.15
"""Share of a device's memory that is reserved, the default of TorchRec's planner."""
MAX_DEVICES: Final = 4096

MAX_ROWS: Final = 2**31 - 1
"""Most rows of the fused table of `models.embedding.reading.layout`."""


def usable_bytes(shape: ModelShape, device: Accelerator, precision: Precision, devices: int) -> float:
    """Return the bytes of a device for tables and their state, beside its share of a step."""
    rows = -(-shape.batch // devices)
    return device.memory_bytes * (1 - RESERVED) - step_bytes(shape, rows, precision)


def row_wise_devices(shape: ModelShape, device: Accelerator, precision: Precision) -> int | None:
    """Return the fewest devices, a power of two, when every table is split by rows; None: the most are too few.

    Workers of a distributed training split tables in this way (`models.embedding.table.sharded`).
    """
    total = sum(_size(table, shape.width) for table in shape.tables)
    for exponent in range(MAX_DEVICES.bit_length()):
        if total / (1 << exponent) <= usable_bytes(shape, device, precision, (1 << exponent)):
            return 1 << exponent
    return None


def too_many_ids(shape: ModelShape) -> str | None:
    """Return a sentence when there are more rows than the fused table can number; else None."""
    rows = sum(table.rows for table in shape.tables)
    if rows <= MAX_ROWS:
        return None
    return (
        f"{rows:,} ids in all; the fused table holds at most {MAX_ROWS:,}: {rows - MAX_ROWS:,} too many."
        " Declare fewer buckets or smaller vocabularies."
    )


def unplaceable_tables(shape: ModelShape, device: Accelerator, precision: Precision) -> list[str]:
    """Return a sentence for every size of table that one device cannot hold, with the settings that would fit."""
    usable = max(0.0, usable_bytes(shape, device, precision, 1))
    tables_by_rows: dict[int, list[EmbeddingTable]] = {}
    for table in shape.tables:
        if _size(table, shape.width) > usable:
            tables_by_rows.setdefault(table.rows, []).append(table)
    return [_describe_unplaceable(tables, shape, device, usable, precision) for tables in tables_by_rows.values()]


def _describe_unplaceable(
    tables: list[EmbeddingTable], shape: ModelShape, device: Accelerator, usable: float, precision: Precision
) -> str:
    size = _size(tables[0], shape.width)
    names = f"'{tables[0].name}'" + (f" and {len(tables) - 1} as large" if len(tables) > 1 else "")
    rows = int(usable // ((shape.width + 1) * FLOAT))
    width = int((usable / tables[0].rows / FLOAT - 1) // 4) * 4
    larger = [
        accelerator.name
        for accelerator in ACCELERATORS.values()
        if precision in accelerator.peaks and size <= usable_bytes(shape, accelerator, precision, 1)
    ]
    suggestions = [f"at most {rows:,} rows"] if rows else []
    suggestions += [f"embedding_dim {width}"] if width >= 4 else []
    suggestions += [f"one {' or '.join(larger)}"] if larger else []
    suggestions += [f"the table in pieces on {-(-size // int(usable))} x {device.name}"] if usable else []
    return (
        f"{names} needs {size / 1e9:,.1f} GB with its optimizer state; one {device.name} has {usable / 1e9:,.1f} GB for"
        f" tables beside a step of {shape.batch:,} rows: {(size - usable) / 1e9:,.1f} GB are missing."
        f" What would fit: {'; '.join(suggestions) or 'a smaller batch_size'}."
    )


def _size(table: EmbeddingTable, width: int) -> int:
    return table_bytes(table, width) + state_bytes(table)
