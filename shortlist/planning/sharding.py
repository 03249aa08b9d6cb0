"""Sharding of embedding tables over several devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from shortlist.contracts import ShortlistError
from shortlist.planning.accelerators import ACCELERATORS, Accelerator, Precision
from shortlist.planning.model_shape import EmbeddingTable, ModelShape
from shortlist.planning.plan import FLOAT, state_bytes, step_bytes, table_bytes

RESERVED: Final = 0.15
"""Share of a device's memory that is reserved, the default of TorchRec's planner."""
_MIN_SHARD_WIDTH: Final = 32
"""Least width of a column shard, in floats: 128 bytes, a cache line of a GPU."""
_MAX_DEVICES: Final = 4096

MAX_ROWS: Final = 2**31 - 1
"""Most rows of the fused table of `models.embedding.reading.layout`."""

Kind = Literal["whole", "table-wise", "column-wise", "row-wise"]


@dataclass(frozen=True)
class TablePlacement:
    """Placement of one table.

    Attributes:
        table: The table.
        kind: `whole`: on the only device; `table-wise`: on one of several; `column-wise`, `row-wise`: in
            pieces.
        devices: Numbers of the devices.
    """

    table: EmbeddingTable
    kind: Kind
    devices: tuple[int, ...]


@dataclass(frozen=True)
class Sharding:
    """A sharding that fits."""

    devices: int
    placements: tuple[TablePlacement, ...]
    fullest_bytes: float
    """Tables and state on the fullest device."""
    usable_bytes: float
    """Bytes of a device for tables and state."""


def usable_bytes(shape: ModelShape, device: Accelerator, precision: Precision, devices: int) -> float:
    """Return the bytes of a device for tables and their state, beside its share of a step."""
    rows = -(-shape.batch // devices)
    return device.memory_bytes * (1 - RESERVED) - step_bytes(shape, rows, precision)


def smallest_sharding(shape: ModelShape, device: Accelerator, precision: Precision) -> Sharding:
    """Return the sharding over the fewest devices, a power of two, that fits.

    Largest tables first (Graham, 1969), each whole on the emptiest device; a table too large for a device is split by
    columns while the pieces stay wide enough, else by rows over all devices, as in TorchRec (Ivchenko et al., 2022).

    Raises:
        ShortlistError: The most devices cannot hold the tables, or a step alone does not fit on a device.
    """
    devices = 1
    while devices <= _MAX_DEVICES:
        usable = usable_bytes(shape, device, precision, devices)
        sharding = _place_tables(shape, devices, usable) if usable > 0 else None
        if sharding is not None:
            return sharding
        devices *= 2
    raise ShortlistError(
        f"{_MAX_DEVICES} x {device.name} do not hold these tables and a step of {shape.batch:,} rows; lower"
        " the model's batch_size, embedding_dim, or the tables' max_size or buckets"
    )


def row_wise_devices(shape: ModelShape, device: Accelerator, precision: Precision) -> int | None:
    """Return the fewest devices, a power of two, when every table is split by rows; None: the most are too few.

    Workers of a distributed training split tables in this way (`models.embedding.table.sharded`).
    """
    total = sum(_size(table, shape.width) for table in shape.tables)
    for exponent in range(_MAX_DEVICES.bit_length()):
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


def _place_tables(shape: ModelShape, devices: int, usable: float) -> Sharding | None:
    free = [usable] * devices
    placements = []
    for table in sorted(shape.tables, key=lambda table: _size(table, shape.width), reverse=True):
        placement = _place_table(table, shape.width, free)
        if placement is None:
            return None
        placements.append(placement)
    return Sharding(devices, tuple(placements), usable - min(free), usable)


def _place_table(table: EmbeddingTable, width: int, free: list[float]) -> TablePlacement | None:
    """Place a table and reduce the free bytes; return None where it does not fit."""
    size = _size(table, width)
    emptiest = sorted(range(len(free)), key=lambda device: (-free[device], device))
    if free[emptiest[0]] >= size:
        free[emptiest[0]] -= size
        return TablePlacement(table, "whole" if len(free) == 1 else "table-wise", (emptiest[0],))
    pieces = 2
    while pieces <= min(len(free), width // _MIN_SHARD_WIDTH):
        piece = table_bytes(table, width) / pieces + state_bytes(table)
        if width % (4 * pieces) == 0 and free[emptiest[pieces - 1]] >= piece:
            for device in emptiest[:pieces]:
                free[device] -= piece
            return TablePlacement(table, "column-wise", tuple(emptiest[:pieces]))
        pieces *= 2
    piece = size / len(free)
    if len(free) == 1 or free[emptiest[-1]] < piece:
        return None
    for device in range(len(free)):
        free[device] -= piece
    return TablePlacement(table, "row-wise", tuple(range(len(free))))
