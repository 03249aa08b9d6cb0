"""Rows of a feature table as contiguous arrays that torch can read in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import polars as pl
import torch

from models.embedding.reading.layout import Layout
from models.embedding.reading.weighted_labels import with_weights
from shortlist.contracts import Columns
from shortlist.ranking.inputs import TableFeature, weights_of
from shortlist.ranking.matrix import float_matrix, fused_lists, fused_rows


class Lookups(NamedTuple):
    """The rows of the fused table per slot; a slot is one feature of one row of the batch.

    Order of the slots: all single ids row by row, then every list feature as a block of batch rows. Places of a history
    are single ids; a network may read only those with an event, which are then a block behind the single ids.
    """

    rows_L: torch.Tensor
    """Rows of the fused table, slot by slot, int32."""
    starts: torch.Tensor
    """Where each slot's rows begin, int32, shape (slots + 1,)."""
    shares_L: torch.Tensor | None
    """Weight of each row in its slot, 1 / length; None when every slot has one row."""


class Batch(NamedTuple):
    """The rows of one training step."""

    labels_B: torch.Tensor
    """Labels; with further labels shape (B, H), the label first."""
    dense_BF: torch.Tensor
    lookups: Lookups
    lists_B: torch.Tensor | None = None
    """List number of every row, int64, from 0, ascending; None: no order is learnt."""

    @property
    def rows(self) -> int:
        """Number of rows, B."""
        return len(self.labels_B)

    def with_lookups_for(self, select_lookups: Callable[[Lookups, torch.Tensor], Lookups]) -> Batch:
        """Return the batch with what a network reads of its look-ups, see `EmbeddingNetwork.select_lookups`."""
        return self._replace(lookups=select_lookups(self.lookups, self.dense_BF))

    def to(self, device: str) -> Batch:
        """Return the batch on a device, without waiting for a GPU."""
        moved = Lookups(*(None if tensor is None else _copy_to_device(tensor, device) for tensor in self.lookups))  # type: ignore[arg-type]
        lists_B = None if self.lists_B is None else _copy_to_device(self.lists_B, device)
        return Batch(_copy_to_device(self.labels_B, device), _copy_to_device(self.dense_BF, device), moved, lists_B)


class ChunkSize(NamedTuple):
    """Number of rows, and an upper bound of the ids in all lists of each multi-valued feature."""

    rows: int
    values: tuple[int, ...]

    def bytes(self, layout: Layout) -> int:
        """Return the bytes of a chunk of this size, in memory or on disk."""
        bytes_per_row = 4 * (1 + len(layout.labels) + layout.floats + layout.slots) + 2 * 8 * len(layout.lists)
        return self.rows * bytes_per_row + 4 * sum(self.values)


Allocate = Callable[[tuple[int, ...], type[np.generic]], np.ndarray]
"""allocate(shape, type) -> an uninitialised array, in memory or on disk."""


@dataclass(frozen=True)
class Chunk:
    """Decoded rows: labels (N,), dense floats (N, F) with NaN for null, fused rows of single ids (N, S), and lists.

    With further labels, labels are (N, H). Labels may contain weights, see `weighted_labels`.
    """

    labels: np.ndarray
    dense: np.ndarray
    singles: np.ndarray
    lists: tuple[RaggedRows, ...]

    @classmethod
    def empty(cls, size: ChunkSize, layout: Layout, allocate: Allocate = np.empty) -> Chunk:
        """Return an uninitialised chunk to decode into."""
        lists = tuple(
            RaggedRows(allocate((count,), np.int32), allocate((size.rows,), np.int64), allocate((size.rows,), np.int64))
            for count in size.values
        )
        return cls(
            allocate((size.rows, 1 + len(layout.labels)) if layout.labels else (size.rows,), np.float32),
            allocate((size.rows, layout.floats), np.float32),
            allocate((size.rows, layout.slots), np.int32),
            lists,
        )

    @classmethod
    def decoded(cls, frame: pl.DataFrame, layout: Layout) -> Chunk:
        """Return the rows of a frame; labels are NaN where the frame has none.

        Raises:
            DataError: A value cannot be read by the model.
        """
        counts = tuple(int(frame[feature.name].list.len().sum()) for feature in layout.lists)
        chunk = cls.empty(ChunkSize(frame.height, counts), layout)
        chunk.decode(frame, layout, ChunkSize(0, (0,) * len(counts)))
        return chunk

    def decode(self, frame: pl.DataFrame, layout: Layout, place: ChunkSize) -> None:
        """Write the rows of a frame, and the ids of their lists, from `start` on.

        Raises:
            DataError: A value cannot be read by the model.
        """
        rows = slice(place.rows, place.rows + frame.height)
        self.labels[rows] = _labels(frame, layout) if Columns.LABEL in frame.columns else np.nan
        plain, ids = layout.plain_floats, len(layout.singles)
        if layout.dense:
            float_matrix(frame, layout.dense, self.dense[rows, :plain])
        else:
            self.dense[rows, :plain] = 0
        fused_rows(frame, layout.singles, layout.starts[:ids], self.singles[rows, :ids])
        if layout.history is not None:
            self.singles[rows, ids:], self.dense[rows, plain] = _history(frame, layout, layout.history)
        starts = layout.starts[len(layout.singles) :]
        for lists, feature, first_table_row, first in zip(self.lists, layout.lists, starts, place.values, strict=True):
            values, edges = fused_lists(frame, feature, first_table_row)
            lists.values[first : first + len(values)] = values
            lists.starts[rows], lists.ends[rows] = first + edges[:-1], first + edges[1:]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.labels)

    def holds(self, size: ChunkSize) -> bool:
        """Return whether a number of rows, with their ids in lists, fits into the chunk."""
        rooms = zip(self.lists, size.values, strict=True)
        return self.rows >= size.rows and all(len(ragged.values) >= count for ragged, count in rooms)

    @property
    def bytes(self) -> int:
        """Bytes of the chunk."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def arrays(self) -> Iterator[np.ndarray]:
        """All arrays of the rows; lists must be contiguous."""
        yield from (self.labels, self.dense, self.singles)
        for ragged in self.lists:
            yield from (ragged.contiguous_values, ragged.starts, ragged.ends)

    def sliced(self, first: int, last: int) -> Chunk:
        """Return a range of rows, in the same memory."""
        rows = slice(first, last)
        lists = tuple(ragged.sliced(first, last) for ragged in self.lists)
        return Chunk(self.labels[rows], self.dense[rows], self.singles[rows], lists)

    def reordered(self, order: np.ndarray) -> Chunk:
        """Return rows in another order, copied once."""
        lists = tuple(ragged.reordered(order) for ragged in self.lists)
        return Chunk(
            _take_rows(self.labels, order), _take_rows(self.dense, order), _take_rows(self.singles, order), lists
        )

    def batch(self, first: int, last: int) -> Batch:
        """Return a range of rows as tensors that share this chunk's memory; lists must be contiguous."""
        part = self.sliced(first, last)
        return Batch(torch.from_numpy(part.labels), torch.from_numpy(part.dense), part._lookups())

    def _lookups(self) -> Lookups:
        singles = self.singles.reshape(-1)
        if not self.lists:
            return Lookups(torch.from_numpy(singles), _single_row_starts(len(singles)), None)
        length_of_slot = np.concatenate(
            [np.ones(len(singles), np.int64), *(ragged.ends - ragged.starts for ragged in self.lists)]
        )
        rows = np.concatenate([singles, *(ragged.contiguous_values for ragged in self.lists)])
        starts = np.concatenate([np.zeros(1, np.int32), np.cumsum(length_of_slot, dtype=np.int32)])
        shares = np.repeat(1 / np.maximum(length_of_slot, 1).astype(np.float32), length_of_slot)
        return Lookups(torch.from_numpy(rows), torch.from_numpy(starts), torch.from_numpy(shares))


def _history(frame: pl.DataFrame, layout: Layout, history: TableFeature) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a sequence, shape (N, events), and its lengths; places without an event have the first id."""
    start = layout.starts[layout.target]
    values, edges = fused_lists(frame, history, start)
    is_event = np.arange(layout.events) < np.diff(edges)[:, None]
    rows = np.full(is_event.shape, start, np.int32)
    rows[is_event] = values
    return rows, is_event.sum(axis=1)


def _labels(frame: pl.DataFrame, layout: Layout) -> np.ndarray:
    """Return the labels of rows, shape (N,) or (N, H), combined with weights."""
    weights = weights_of(frame)
    if not layout.labels:
        return with_weights(frame[Columns.LABEL].to_numpy(), weights)
    labels_NH = frame.select(Columns.LABEL, *layout.labels).to_numpy()
    return with_weights(labels_NH, None if weights is None else weights[:, None])


@lru_cache(maxsize=4)
def _single_row_starts(slots: int) -> torch.Tensor:
    """Return the starts of slots with one row each; batches of a size share it, it is never written to."""
    return torch.arange(slots + 1, dtype=torch.int32)


def _copy_to_device(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Return a tensor on a device; torch keeps pinned memory until the copy is done."""
    if device == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _take_rows(rows: np.ndarray, order: np.ndarray) -> np.ndarray:
    # Row by row into the output: 21 M Criteo rows/s on one core, `rows[order]` 6.5 M. The mode only concerns numbers
    # out of range, of which there are none; with the default mode, numpy fills a second array and copies it.
    return np.take(rows, order, axis=0, out=np.empty_like(rows, shape=(len(order), *rows.shape[1:])), mode="clip")


@dataclass(frozen=True)
class RaggedRows:
    """A list of fused rows per row; those of row i are the `values` from `starts` to `ends` at i."""

    values: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    @classmethod
    def packed(cls, values: np.ndarray, edges: np.ndarray) -> RaggedRows:
        """Return contiguous lists; `edges`, shape (rows + 1,), are their starts and ends."""
        return cls(values, edges[:-1], edges[1:])

    def reordered(self, order: np.ndarray) -> RaggedRows:
        """Return the lists in another order, contiguous."""
        firsts = self.starts[order]
        lengths = self.ends[order] - firsts
        edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        source = np.repeat(firsts - edges[:-1], lengths) + np.arange(edges[-1])
        return RaggedRows.packed(self.values[source], edges)

    def sliced(self, first: int, last: int) -> RaggedRows:
        """Return the lists of a range of rows."""
        return RaggedRows(self.values, self.starts[first:last], self.ends[first:last])

    @property
    def contiguous_values(self) -> np.ndarray:
        """The ids of all lists, which must be contiguous in memory."""
        return self.values[self.starts[0] : self.ends[-1]] if len(self.starts) else self.values[:0]
