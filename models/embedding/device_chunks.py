"""Rows of a feature table as tensors of a device: what `chunks` is on the host, row by row the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch

from models.device_reading import DeviceColumns
from models.embedding.chunks import Batch, Chunk, Lookups
from models.embedding.layout import Layout

_SECTOR_FLOATS: Final = 8
"""A GPU fetches 32 bytes at a time."""


class RowOrder(NamedTuple):
    """Which rows to take, on the host and on the device; the host's says how long lists are, without a wait."""

    host: np.ndarray
    device: torch.Tensor

    @classmethod
    def of(cls, host: np.ndarray, device: str) -> RowOrder:
        """Return an order, whose way to a GPU is not waited for."""
        tensor = torch.from_numpy(host)
        pinned = tensor.pin_memory() if device == "cuda" else tensor
        return cls(host, pinned.to(device, non_blocking=True))

    def part(self, first: int, last: int) -> RowOrder:
        """Return a part of the order."""
        return RowOrder(self.host[first:last], self.device[first:last])


@dataclass(frozen=True)
class DeviceRagged:
    """A list of fused rows per row, one after the other."""

    values: torch.Tensor
    lengths: torch.Tensor
    """Of each row's list, int64."""
    on_host: np.ndarray
    """The lengths again: to ask the device for their sum is to wait for it."""

    def taken(self, order: RowOrder) -> DeviceRagged:
        """Return the lists in another order."""
        on_host = self.on_host[order.host]
        starts = (self.lengths.cumsum(0) - self.lengths)[order.device]
        lengths = self.lengths[order.device]
        moves, count = starts - (lengths.cumsum(0) - lengths), int(on_host.sum())
        source = torch.repeat_interleave(moves, lengths, output_size=count)
        source += torch.arange(count, device=source.device)
        return DeviceRagged(self.values[source], lengths, on_host)


@dataclass(frozen=True)
class DeviceChunk:
    """Decoded rows on one device: labels (N,), dense floats (N, F), fused rows of single ids (N, S), and lists."""

    labels: torch.Tensor
    dense: torch.Tensor
    singles: torch.Tensor
    lists: tuple[DeviceRagged, ...]

    @classmethod
    def decoded(cls, columns: DeviceColumns, layout: Layout) -> DeviceChunk:
        """Return the rows of columns, on their device.

        Raises:
            DataError: A value cannot be read by the model.
        """
        labels = columns.labels()
        blocks = [columns.floats(feature) for feature in layout.dense]
        dense = torch.cat(blocks, dim=1) if blocks else labels.new_zeros(columns.rows, 1)
        firsts = layout.starts[: len(layout.singles)]
        ids = [columns.ids(one) + first for one, first in zip(layout.singles, firsts, strict=True)]
        singles = torch.stack(ids, dim=1) if ids else labels.new_zeros((columns.rows, 0), dtype=torch.int32)
        lists = []
        for feature, first in zip(layout.lists, layout.starts[len(layout.singles) :], strict=True):
            values, lengths = columns.lists(feature)
            lists.append(DeviceRagged(values + first, lengths, lengths.cpu().numpy()))
        return cls(labels, padded(dense), singles, tuple(lists))

    @classmethod
    def of(cls, chunk: Chunk) -> DeviceChunk:
        """Return rows of the host, in the same memory; their lists must follow one another."""
        lists = tuple(
            DeviceRagged(torch.from_numpy(one.in_a_row), torch.from_numpy(one.ends - one.starts), one.ends - one.starts)
            for one in chunk.lists
        )
        labels, dense, singles = map(torch.from_numpy, (chunk.labels, chunk.dense, chunk.singles))
        return cls(labels, dense, singles, lists)

    @classmethod
    def joined(cls, chunks: Sequence[DeviceChunk]) -> DeviceChunk:
        """Return the rows of several chunks, one after the other."""
        if len(chunks) == 1:
            return chunks[0]
        lists = tuple(
            DeviceRagged(
                torch.cat([one.values for one in parts]),
                torch.cat([one.lengths for one in parts]),
                np.concatenate([one.on_host for one in parts]),
            )
            for parts in zip(*(chunk.lists for chunk in chunks), strict=True)
        )
        labels, dense, singles = (
            torch.cat([getattr(chunk, name) for chunk in chunks]) for name in ("labels", "dense", "singles")
        )
        return cls(labels, padded(dense), singles, lists)

    @property
    def rows(self) -> int:
        """Number of rows, N."""
        return len(self.labels)

    @property
    def tensors(self) -> Iterator[torch.Tensor]:
        """All there is of the rows on the device."""
        yield from (self.labels, self.dense, self.singles)
        for one in self.lists:
            yield from (one.values, one.lengths)

    @property
    def bytes(self) -> int:
        """Memory it takes on the device, the padding of `dense` included."""
        return sum(one.stride(0) * len(one) * one.element_size() for one in self.tensors)

    def moved(self, device: str) -> DeviceChunk:
        """Return the rows on a device; a copy from pinned memory is not waited for."""
        return self._each(lambda one: one.to(device, non_blocking=True))

    def pinned(self) -> DeviceChunk:
        """Return the rows in pinned host memory, from where a GPU fetches them while it computes."""
        return self._each(lambda one: one.cpu().contiguous().pin_memory())

    def taken(self, order: RowOrder) -> DeviceChunk:
        """Return some of the rows in another order."""
        lists = tuple(one.taken(order) for one in self.lists)
        labels, dense, singles = (one.index_select(0, order.device) for one in (self.labels, self.dense, self.singles))
        return DeviceChunk(labels, dense, singles, lists)

    def batch(self) -> Batch:
        """Return the rows as a step's."""
        singles = self.singles.reshape(-1)
        if not self.lists:
            starts = torch.arange(len(singles) + 1, dtype=torch.int32, device=singles.device)
            return Batch(self.labels, self.dense, Lookups(singles, starts, None))
        lengths = torch.cat([torch.ones_like(singles, dtype=torch.int64), *(one.lengths for one in self.lists)])
        rows = torch.cat([singles, *(one.values for one in self.lists)])
        starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int()
        shares = torch.repeat_interleave(1 / lengths.clamp(min=1).float(), lengths, output_size=len(rows))
        return Batch(self.labels, self.dense, Lookups(rows, starts, shares))

    def _each(self, moved: Callable[[torch.Tensor], torch.Tensor]) -> DeviceChunk:
        lists = tuple(DeviceRagged(moved(one.values), moved(one.lengths), one.on_host) for one in self.lists)
        return DeviceChunk(moved(self.labels), moved(self.dense), moved(self.singles), lists)


def padded(dense: torch.Tensor) -> torch.Tensor:
    """Return rows that begin at multiples of 16 bytes, where they are wider than what a GPU fetches at once.

    A row of 13 floats is taken in random order: at every 52 bytes it lies in 2 or 3 sectors of 32 bytes, 2.5 on
    average; at every 64 in 2. Rows of 26 ids, 104 bytes, touch 4 either way and stay as they are.
    """
    width = dense.shape[1]
    if width <= _SECTOR_FLOATS or width % 4 == 0:
        return dense
    wide = dense.new_empty(len(dense), -(-width // 4) * 4)
    wide[:, :width] = dense
    return wide[:, :width]
