"""Decides whether the whole embedding table of a training fits on the device, or only a cache of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from models.embedding.reading.layout import Layout
from models.embedding_section import EmbeddingSection
from shortlist.contracts import ShortlistError
from shortlist.planning.accelerators import Precision
from shortlist.planning.model_shape import EmbeddingTable, ModelShape
from shortlist.planning.plan import FLOAT, step_bytes
from shortlist.planning.sharding import RESERVED

_LONGEST_LIST: Final = 64
"""Assumed most ids of a list, the default of `max_values` of a vocabulary."""
_GB: Final = 1e9


class PlacementError(ShortlistError):
    """A training needs more memory than is available."""


class Memory(NamedTuple):
    """Bytes that a training may take."""

    device_total: int
    device_free: int
    host_free: int


class MemoryDemand(NamedTuple):
    """Sizes that determine the memory of a training."""

    shape: ModelShape
    precision: Precision
    extra_row_bytes: int = 0
    """Bytes per embedding row on the device beside its weights and accumulator."""

    @property
    def rows(self) -> int:
        """Embedding rows of all tables."""
        return sum(table.rows for table in self.shape.tables)

    @property
    def row_bytes(self) -> int:
        """Bytes of an embedding row on the device: weights, accumulator, and extra bytes."""
        return (self.shape.width + 1) * FLOAT + self.extra_row_bytes

    @property
    def batch_rows(self) -> int:
        """Most distinct embedding rows of a batch; a smaller cache may be too small for a batch."""
        return min(self.rows, self.shape.batch * self.shape.lookups)

    def max_rows(self, memory: Memory) -> int:
        """Return the number of embedding rows that fit on a device beside a step."""
        step = step_bytes(self.shape, self.shape.batch, self.precision)
        usable = memory.device_free - RESERVED * memory.device_total - step
        return max(0, int(usable // self.row_bytes))


def cached_rows(demand: MemoryDemand, declared: int | None, memory: Memory | None) -> int | None:
    """Return how many embedding rows are kept on the device; None: all.

    Args:
        demand: Sizes of the training.
        declared: `cached_rows`; None: as many rows as fit.
        memory: Available memory; None: the device is the host, and the declared number is used.

    Raises:
        PlacementError: The device cannot hold a step and the rows of a batch, or the declared rows; or the host cannot
            hold the whole table. The message says how much is missing, and which settings would fit.
    """
    kept_rows = demand.rows if declared is None else min(declared, demand.rows)
    if memory is not None:
        max_rows = demand.max_rows(memory)
        if declared is None and max_rows < demand.rows:
            kept_rows = max_rows
            if max_rows < demand.batch_rows:
                raise _device_too_small_error(demand, memory, demand.batch_rows, "the rows that a batch may look up")
        elif kept_rows > max_rows:
            raise _device_too_small_error(demand, memory, kept_rows, "cached_rows")
        if kept_rows < demand.rows:
            _check_host(demand, memory)
    return None if kept_rows == demand.rows else kept_rows


def memory_demand(
    layout: Layout, section: EmbeddingSection, precision: Precision, extra_row_bytes: int
) -> MemoryDemand:
    """Return the memory demand of a training."""
    tables = [EmbeddingTable(feature.name, feature.size or 0, 1, "fitted") for feature in layout.singles]
    tables += [EmbeddingTable(feature.name, feature.size or 0, _LONGEST_LIST, "fitted") for feature in layout.lists]
    inner = section.inner_floats(layout.floats, layout.widths)
    bottom, top = section.perceptrons(inner, len(tables))
    shape = ModelShape(tuple(tables), layout.floats, section.embedding_dim, bottom, top, section.batch_size)
    return MemoryDemand(shape, precision, extra_row_bytes)


def _device_too_small_error(demand: MemoryDemand, memory: Memory, rows: int, purpose: str) -> PlacementError:
    step = step_bytes(demand.shape, demand.shape.batch, demand.precision)
    required_bytes = rows * demand.row_bytes + step + RESERVED * memory.device_total
    missing = required_bytes - memory.device_free
    fits = "; ".join(_suggest_fitting_settings(demand, memory, rows))
    return PlacementError(
        f"embedding table: {purpose} ({rows:,} of {demand.rows:,}, {rows * demand.row_bytes / _GB:,.2f} GB with their"
        f" accumulators), a step of {demand.shape.batch:,} rows ({step / _GB:,.2f} GB) and a reserve of"
        f" {RESERVED * memory.device_total / _GB:,.2f} GB need {required_bytes / _GB:,.2f} GB; the device has"
        f" {memory.device_free / _GB:,.2f} GB free: {missing / _GB:,.2f} GB are missing."
        f" What would fit: {fits or 'a larger device'}."
    )


def _suggest_fitting_settings(demand: MemoryDemand, memory: Memory, rows: int) -> Iterator[str]:
    """Yield changed settings, one key each, with which the training fits."""
    max_rows = demand.max_rows(memory)
    if demand.batch_rows <= max_rows < rows:
        yield f"cached_rows: {max_rows}"
    for width in range(demand.shape.width - 4, 3, -4):
        narrower = demand._replace(shape=_with_width(demand.shape, width))
        if rows <= narrower.max_rows(memory):
            yield f"embedding_dim: {width}"
            break
    batch = demand.shape.batch // 2
    while batch >= 16:
        smaller = demand._replace(shape=replace(demand.shape, batch=batch))
        if min(rows, smaller.batch_rows) <= smaller.max_rows(memory):
            yield f"batch_size: {batch}"
            break
        batch //= 2


def _with_width(shape: ModelShape, width: int) -> ModelShape:
    bottom, top = (*shape.bottom[:-1], width), (shape.top[0] - shape.width + width, *shape.top[1:])
    return replace(shape, width=width, bottom=bottom, top=top)


def _check_host(demand: MemoryDemand, memory: Memory) -> None:
    required_bytes = demand.rows * demand.row_bytes
    if required_bytes <= memory.host_free:
        return
    width = int((memory.host_free / demand.rows - demand.extra_row_bytes) / FLOAT - 1) // 4 * 4
    narrower = f", or embedding_dim: {width}" if width >= 4 else ""
    raise PlacementError(
        f"embedding table: the device has no room for all {demand.rows:,} embedding rows, and the host has none either:"
        f" they take {required_bytes / _GB:,.2f} GB with their accumulators, {memory.host_free / _GB:,.2f} GB are free:"
        f" {(required_bytes - memory.host_free) / _GB:,.2f} GB are missing. Declare fewer buckets or smaller"
        f" vocabularies{narrower}."
    )
