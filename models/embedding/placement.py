"""Where the embedding table of a training lies: all of it on the device, its hot rows there, or nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from models.embedding.layout import Layout
from models.embedding_section import EmbeddingSection
from models.planning.accelerators import Precision
from models.planning.plan import FLOAT, step_bytes
from models.planning.plan_inputs import Shape, Table
from models.planning.sharding import RESERVED
from shortlist.contracts import ShortlistError

_LONGEST_LIST: Final = 64
"""Ids that a list is assumed to hold at most: what `max_values` of a vocabulary is when nothing is declared."""
_GB: Final = 1e9


class PlacementError(ShortlistError):
    """A training needs more memory than there is."""


class Memory(NamedTuple):
    """Bytes that a training may take."""

    device_total: int
    device_free: int
    host_free: int


class MemoryDemand(NamedTuple):
    """What a training needs memory for."""

    shape: Shape
    precision: Precision
    bytes_beside: int = 0
    """Kept per embedding row on the device beside its weights and accumulator."""

    @property
    def rows(self) -> int:
        """Embedding rows of all tables."""
        return sum(table.rows for table in self.shape.tables)

    @property
    def row_bytes(self) -> int:
        """Bytes of an embedding row on the device: weights, accumulator, and what is kept beside them."""
        return (self.shape.width + 1) * FLOAT + self.bytes_beside

    @property
    def batch_rows(self) -> int:
        """Distinct embedding rows that a batch may look up; with fewer in a cache, it may find no room."""
        return min(self.rows, self.shape.batch * self.shape.lookups)

    def room(self, memory: Memory) -> int:
        """Return the embedding rows for which a device has room beside a step."""
        step = step_bytes(self.shape, self.shape.batch, self.precision)
        usable = memory.device_free - RESERVED * memory.device_total - step
        return max(0, int(usable // self.row_bytes))


def cached_rows(demand: MemoryDemand, declared: int | None, memory: Memory | None) -> int | None:
    """Return how many embedding rows are kept on the device; None: all.

    Args:
        demand: What the training needs.
        declared: `cached_rows`; None: as many as there is room for.
        memory: What there is; None: the device is the host, where what is declared is done.

    Raises:
        PlacementError: The device has no room for a step and the rows that a batch looks up, or for what is declared;
            or the host has none for the whole table. Says how much is missing, and what would fit.
    """
    wanted = demand.rows if declared is None else min(declared, demand.rows)
    if memory is not None:
        room = demand.room(memory)
        if declared is None and room < demand.rows:
            wanted = room
            if room < demand.batch_rows:
                raise _no_room(demand, memory, demand.batch_rows, "the rows that a batch may look up")
        elif wanted > room:
            raise _no_room(demand, memory, wanted, "cached_rows")
        if wanted < demand.rows:
            _check_host(demand, memory)
    return None if wanted == demand.rows else wanted


def memory_demand(layout: Layout, section: EmbeddingSection, precision: Precision, bytes_beside: int) -> MemoryDemand:
    """Return what the training of a layout needs."""
    tables = [Table(one.name, one.size or 0, 1, "fitted") for one in layout.singles]
    tables += [Table(one.name, one.size or 0, _LONGEST_LIST, "fitted") for one in layout.lists]
    inner = section.inner_floats(layout.floats, layout.widths)
    bottom, top = section.perceptrons(inner, len(tables))
    shape = Shape(tuple(tables), layout.floats, section.embedding_dim, bottom, top, section.batch_size)
    return MemoryDemand(shape, precision, bytes_beside)


def _no_room(demand: MemoryDemand, memory: Memory, wanted: int, what: str) -> PlacementError:
    step = step_bytes(demand.shape, demand.shape.batch, demand.precision)
    needed = wanted * demand.row_bytes + step + RESERVED * memory.device_total
    missing = needed - memory.device_free
    fits = "; ".join(_what_fits(demand, memory, wanted))
    return PlacementError(
        f"embedding table: {what} ({wanted:,} of {demand.rows:,}, {wanted * demand.row_bytes / _GB:,.2f} GB with their"
        f" accumulators), a step of {demand.shape.batch:,} rows ({step / _GB:,.2f} GB) and a reserve of"
        f" {RESERVED * memory.device_total / _GB:,.2f} GB need {needed / _GB:,.2f} GB; the device has"
        f" {memory.device_free / _GB:,.2f} GB free: {missing / _GB:,.2f} GB are missing."
        f" What would fit: {fits or 'a larger device'}."
    )


def _what_fits(demand: MemoryDemand, memory: Memory, wanted: int) -> Iterator[str]:
    """Give the changes, one key each, with which there is room."""
    room = demand.room(memory)
    if demand.batch_rows <= room < wanted:
        yield f"cached_rows: {room}"
    for width in range(demand.shape.width - 4, 3, -4):
        narrower = demand._replace(shape=_of_width(demand.shape, width))
        if wanted <= narrower.room(memory):
            yield f"embedding_dim: {width}"
            break
    batch = demand.shape.batch // 2
    while batch >= 16:
        smaller = demand._replace(shape=replace(demand.shape, batch=batch))
        if min(wanted, smaller.batch_rows) <= smaller.room(memory):
            yield f"batch_size: {batch}"
            break
        batch //= 2


def _of_width(shape: Shape, width: int) -> Shape:
    bottom, top = (*shape.bottom[:-1], width), (shape.top[0] - shape.width + width, *shape.top[1:])
    return replace(shape, width=width, bottom=bottom, top=top)


def _check_host(demand: MemoryDemand, memory: Memory) -> None:
    needed = demand.rows * demand.row_bytes
    if needed <= memory.host_free:
        return
    width = int((memory.host_free / demand.rows - demand.bytes_beside) / FLOAT - 1) // 4 * 4
    narrower = f", or embedding_dim: {width}" if width >= 4 else ""
    raise PlacementError(
        f"embedding table: the device has no room for all {demand.rows:,} embedding rows, and the host has none either:"
        f" they take {needed / _GB:,.2f} GB with their accumulators, {memory.host_free / _GB:,.2f} GB are free:"
        f" {(needed - memory.host_free) / _GB:,.2f} GB are missing. Declare fewer buckets or smaller"
        f" vocabularies{narrower}."
    )
