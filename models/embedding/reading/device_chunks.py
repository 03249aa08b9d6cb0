"""Rows of a feature table as tensors of a device, equal to those of `chunks` on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch

from models.device_reading import DeviceColumns
from models.embedding.reading.chunks import Batch, Chunk, Lookups
from models.embedding.reading.layout import Layout

_SECTOR_FLOATS: Final = 8
"""A GPU fetches 32 bytes at a time."""


class RowOrder(NamedTuple):
    """Row numbers on the host and on the device; the host's give lengths of lists without waiting for the device."""

    host: np.ndarray
    device: torch.Tensor

    @classmethod
    def on_device(cls, host: np.ndarray, device: str) -> RowOrder:
        """Return an order, without waiting for the copy to a GPU."""
        tensor = torch.from_numpy(host)
        pinned = tensor.pin_memory() if device == "cuda" else tensor
        return cls(host, pinned.to(device, non_blocking=True))

    def part(self, first: int, last: int) -> RowOrder:
        """Return a range of the order."""
        return RowOrder(self.host[first:last], self.device[first:last])


@dataclass(frozen=True)
class DeviceRagged:
    """A list of fused rows per row, contiguous."""

    values: torch.Tensor
    lengths: torch.Tensor
    """Length of each row's list, int64."""
    host_lengths: np.ndarray
    """The lengths on the host, whose sum needs no wait for the device."""

    def reordered(self, order: RowOrder) -> DeviceRagged:
        """Return the lists in another order."""
        host_lengths = self.host_lengths[order.host]
        starts = (self.lengths.cumsum(0) - self.lengths)[order.device]
        lengths = self.lengths[order.device]
        offsets, count = starts - (lengths.cumsum(0) - lengths), int(host_lengths.sum())
        source = torch.repeat_interleave(offsets, lengths, output_size=count)
        source += torch.arange(count, device=source.device)
        return DeviceRagged(self.values[source], lengths, host_lengths)


@dataclass(frozen=True)
class DeviceChunk:
    """Decoded rows on one device: labels (N,), dense floats (N, F), fused rows of single ids (N, S), and lists."""

    labels: torch.Tensor
    dense: torch.Tensor
    singles: torch.Tensor
    lists: tuple[DeviceRagged, ...]

    @classmethod
    def decoded(cls, columns: DeviceColumns, layout: Layout) -> DeviceChunk:
        """Return the rows of columns, on the columns' device.

        Raises:
            DataError: A value cannot be read by the model.
        """
        labels = columns.labels()
        blocks = [columns.floats(feature) for feature in layout.dense]
        dense = torch.cat(blocks, dim=1) if blocks else labels.new_zeros(columns.rows, 1)
        firsts = layout.starts[: len(layout.singles)]
        ids = [columns.ids(feature) + first for feature, first in zip(layout.singles, firsts, strict=True)]
        singles = torch.stack(ids, dim=1) if ids else labels.new_zeros((columns.rows, 0), dtype=torch.int32)
        lists = []
        for feature, first in zip(layout.lists, layout.starts[len(layout.singles) :], strict=True):
            values, lengths = columns.lists(feature)
            lists.append(DeviceRagged(values + first, lengths, lengths.cpu().numpy()))
        return cls(labels, pad_rows(dense), singles, tuple(lists))

    @classmethod
    def from_host(cls, chunk: Chunk) -> DeviceChunk:
        """Return rows of the host, in the same memory; lists must be contiguous."""
        lists = tuple(
            DeviceRagged(
                torch.from_numpy(ragged.contiguous_values),
                torch.from_numpy(ragged.ends - ragged.starts),
                ragged.ends - ragged.starts,
            )
            for ragged in chunk.lists
        )
        labels, dense, singles = map(torch.from_numpy, (chunk.labels, chunk.dense, chunk.singles))
        return cls(labels, dense, singles, lists)

    @classmethod
    def concatenate(cls, chunks: Sequence[DeviceChunk]) -> DeviceChunk:
        """Return the rows of several chunks as one chunk."""
        if len(chunks) == 1:
            return chunks[0]
        lists = tuple(
            DeviceRagged(
                torch.cat([part.values for part in parts]),
                torch.cat([part.lengths for part in parts]),
                np.concatenate([part.host_lengths for part in parts]),
            )
            for parts in zip(*(chunk.lists for chunk in chunks), strict=True)
        )
        labels, dense, singles = (
            torch.cat([getattr(chunk, name) for chunk in chunks]) for name in ("labels", "dense", "singles")
        )
        return cls(labels, pad_rows(dense), singles, lists)

    @property
    def rows(self) -> int:
        """Number of rows, N."""
        return len(self.labels)

    @property
    def tensors(self) -> Iterator[torch.Tensor]:
        """All tensors of the rows on the device."""
        yield from (self.labels, self.dense, self.singles)
        for ragged in self.lists:
            yield from (ragged.values, ragged.lengths)

    @property
    def bytes(self) -> int:
        """Bytes on the device, the padding of `dense` included."""
        return sum(tensor.stride(0) * len(tensor) * tensor.element_size() for tensor in self.tensors)

    def moved(self, device: str) -> DeviceChunk:
        """Return the rows on a device, without waiting for a copy from pinned memory."""
        return self._map_tensors(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> DeviceChunk:
        """Return the rows in pinned host memory, from which a GPU copies them while it computes."""
        return self._map_tensors(lambda tensor: tensor.cpu().contiguous().pin_memory())

    def reordered(self, order: RowOrder) -> DeviceChunk:
        """Return rows in another order."""
        lists = tuple(ragged.reordered(order) for ragged in self.lists)
        labels, dense, singles = (
            tensor.index_select(0, order.device) for tensor in (self.labels, self.dense, self.singles)
        )
        return DeviceChunk(labels, dense, singles, lists)

    def batch(self) -> Batch:
        """Return the rows as the batch of a step."""
        singles = self.singles.reshape(-1)
        if not self.lists:
            starts = torch.arange(len(singles) + 1, dtype=torch.int32, device=singles.device)
            return Batch(self.labels, self.dense, Lookups(singles, starts, None))
        lengths = torch.cat([torch.ones_like(singles, dtype=torch.int64), *(ragged.lengths for ragged in self.lists)])
        rows = torch.cat([singles, *(ragged.values for ragged in self.lists)])
        starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).int()
        shares = torch.repeat_interleave(1 / lengths.clamp(min=1).float(), lengths, output_size=len(rows))
        return Batch(self.labels, self.dense, Lookups(rows, starts, shares))

    def _map_tensors(self, move: Callable[[torch.Tensor], torch.Tensor]) -> DeviceChunk:
        lists = tuple(
            DeviceRagged(move(ragged.values), move(ragged.lengths), ragged.host_lengths) for ragged in self.lists
        )
        return DeviceChunk(move(self.labels), move(self.dense), move(self.singles), lists)


def pad_rows(dense: torch.Tensor) -> torch.Tensor:
    """Return rows padded to multiples of 16 bytes, where they are wider than a sector.

    Rows are read in random order. A row of 13 floats touches 2.5 sectors of 32 bytes on average at a stride of 52
    bytes, and 2 at a stride of 64. Rows of 26 ids, 104 bytes, touch 4 either way and are not padded.
    """
    width = dense.shape[1]
    if width <= _SECTOR_FLOATS or width % 4 == 0:
        return dense
    wide = dense.new_empty(len(dense), -(-width // 4) * 4)
    wide[:, :width] = dense
    return wide[:, :width]
