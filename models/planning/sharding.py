"""How embedding tables are spread over devices that are too small for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from models.planning.accelerators import ACCELERATORS, Accelerator, Precision
from models.planning.plan import FLOAT, state_bytes, step_bytes, table_bytes
from models.planning.plan_inputs import Shape, Table
from shortlist.contracts import ShortlistError

RESERVED: Final = 0.15
"""Share of a device's memory that is left alone; what TorchRec's planner reserves by default."""
_NARROWEST: Final = 32
"""Least width of a column shard, in floats: 128 bytes, a cache line of a GPU."""
_MOST_DEVICES: Final = 4096

MOST_ROWS: Final = 2**31 - 1
"""Rows that the fused table of `models.embedding.layout` can number."""

Kind = Literal["whole", "table-wise", "column-wise", "row-wise", "copied"]


@dataclass(frozen=True)
class TablePlacement:
    """Where one table lies.

    Attributes:
        table: The table.
        kind: `whole`: on the only device; `table-wise`: on one of several; `column-wise`, `row-wise`: in pieces;
            `copied`: on every device.
        devices: Which ones, by number.
    """

    table: Table
    kind: Kind
    devices: tuple[int, ...]


@dataclass(frozen=True)
class Sharding:
    """A spread that fits."""

    devices: int
    placements: tuple[TablePlacement, ...]
    fullest_bytes: float
    """Tables and state on the fullest device."""
    usable_bytes: float
    """What a device has for them."""


def usable_bytes(shape: Shape, device: Accelerator, precision: Precision, devices: int) -> float:
    """Return what a device has for tables and their state, beside its share of a step."""
    rows = -(-shape.batch // devices)
    return device.memory_bytes * (1 - RESERVED) - step_bytes(shape, rows, precision)


def smallest_sharding(shape: Shape, device: Accelerator, precision: Precision) -> Sharding:
    """Return the spread over the fewest devices, a power of two, that fits.

    Largest tables first (Graham, 1969), each whole on the emptiest device; one that no device has room for is cut by
    columns while the pieces stay wide enough, else by rows over all devices. The ways of cutting are TorchRec's
    (Ivchenko et al., 2022).

    Raises:
        ShortlistError: Not even the most devices hold it, or a step alone is more than a device has.
    """
    devices = 1
    while devices <= _MOST_DEVICES:
        usable = usable_bytes(shape, device, precision, devices)
        found = _placed(shape, devices, usable) if usable > 0 else None
        if found is not None:
            return found
        devices *= 2
    raise ShortlistError(
        f"{_MOST_DEVICES} x {device.name} do not hold these tables and a step of {shape.batch:,} rows; lower"
        " the model's batch_size, embedding_dim, or the tables' max_size or buckets"
    )


def row_wise_devices(shape: Shape, device: Accelerator, precision: Precision) -> int | None:
    """Return the fewest devices, a power of two, when every table is spread by rows; None: not even the most.

    That is how our own workers do it (`models.embedding.sharded`).
    """
    total = sum(_size(table, shape.width) for table in shape.tables)
    for exponent in range(_MOST_DEVICES.bit_length()):
        if total / (1 << exponent) <= usable_bytes(shape, device, precision, (1 << exponent)):
            return 1 << exponent
    return None


def too_many_ids(shape: Shape) -> str | None:
    """Return a sentence when the fused table cannot number all rows; None when it can."""
    rows = sum(table.rows for table in shape.tables)
    if rows <= MOST_ROWS:
        return None
    return (
        f"{rows:,} ids in all; the fused table holds at most {MOST_ROWS:,}: {rows - MOST_ROWS:,} too many."
        " Declare fewer buckets or smaller vocabularies."
    )


def unplaceable_tables(shape: Shape, device: Accelerator, precision: Precision) -> list[str]:
    """Return a sentence for every size of table that one device cannot hold: what is missing, and what would fit."""
    usable = max(0.0, usable_bytes(shape, device, precision, 1))
    alike: dict[int, list[Table]] = {}
    for table in shape.tables:
        if _size(table, shape.width) > usable:
            alike.setdefault(table.rows, []).append(table)
    return [_misfit(tables, shape, device, usable, precision) for tables in alike.values()]


def _misfit(tables: list[Table], shape: Shape, device: Accelerator, usable: float, precision: Precision) -> str:
    size = _size(tables[0], shape.width)
    names = f"'{tables[0].name}'" + (f" and {len(tables) - 1} as large" if len(tables) > 1 else "")
    rows = int(usable // ((shape.width + 1) * FLOAT))
    width = int((usable / tables[0].rows / FLOAT - 1) // 4) * 4
    larger = [
        one.name
        for one in ACCELERATORS.values()
        if precision in one.peaks and size <= usable_bytes(shape, one, precision, 1)
    ]
    ways = [f"at most {rows:,} rows"] if rows else []
    ways += [f"embedding_dim {width}"] if width >= 4 else []
    ways += [f"one {' or '.join(larger)}"] if larger else []
    ways += [f"the table in pieces on {-(-size // int(usable))} x {device.name}"] if usable else []
    return (
        f"{names} needs {size / 1e9:,.1f} GB with its optimizer state; one {device.name} has {usable / 1e9:,.1f} GB for"
        f" tables beside a step of {shape.batch:,} rows: {(size - usable) / 1e9:,.1f} GB are missing."
        f" What would fit: {'; '.join(ways) or 'a smaller batch_size'}."
    )


def _size(table: Table, width: int) -> int:
    return table_bytes(table, width) + state_bytes(table)


def _placed(shape: Shape, devices: int, usable: float) -> Sharding | None:
    free = [usable] * devices
    placements = []
    for table in sorted(shape.tables, key=lambda one: _size(one, shape.width), reverse=True):
        placement = _place(table, shape.width, free)
        if placement is None:
            return None
        placements.append(placement)
    return Sharding(devices, tuple(placements), usable - min(free), usable)


def _place(table: Table, width: int, free: list[float]) -> TablePlacement | None:
    """Put a table where there is room, and take the room; None where there is none."""
    size = _size(table, width)
    emptiest = sorted(range(len(free)), key=lambda device: (-free[device], device))
    if free[emptiest[0]] >= size:
        free[emptiest[0]] -= size
        return TablePlacement(table, "whole" if len(free) == 1 else "table-wise", (emptiest[0],))
    pieces = 2
    while pieces <= min(len(free), width // _NARROWEST):
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
