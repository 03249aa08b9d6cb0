"""Rows of a feature table as contiguous arrays that torch can read in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import polars as pl
import torch

from models.embedding.layout import Layout
from models.embedding.weighted_labels import with_weights
from models.inputs import FeatureColumn, weights_of
from models.matrix import float_matrix, fused_lists, fused_rows
from shortlist.contracts import Columns


class Lookups(NamedTuple):
    """Which rows of the fused table make up which slots; a slot is one feature of one row of the batch.

    Slots come in this order: all single ids row by row, then every list feature as a block of batch rows. Places of a
    history are single ids; a network may need those with an event alone, which then are a block behind the single ids.
    """

    rows_L: torch.Tensor
    """Rows of the fused table, slot by slot, int32."""
    starts: torch.Tensor
    """Where each slot's rows begin, int32, shape (slots + 1,)."""
    shares_L: torch.Tensor | None
    """Weight of each row in its slot, 1 / length; None when every slot has one row."""


class Batch(NamedTuple):
    """A step's worth of rows."""

    labels_B: torch.Tensor
    """Where there are further labels shape (B, H), the label first."""
    dense_BF: torch.Tensor
    lookups: Lookups
    lists_B: torch.Tensor | None = None
    """Number of every row's list, int64, from 0, rising; None: every row is learnt by itself."""

    @property
    def rows(self) -> int:
        """Number of rows, B."""
        return len(self.labels_B)

    def narrowed(self, needed: Callable[[Lookups, torch.Tensor], Lookups]) -> Batch:
        """Return the batch with what a network needs of its look-ups, see `EmbeddingNetwork.needed`."""
        return self._replace(lookups=needed(self.lookups, self.dense_BF))

    def to(self, device: str) -> Batch:
        """Return the batch on a device; a GPU is not waited for."""
        moved = Lookups(*(None if one is None else _sent(one, device) for one in self.lookups))  # type: ignore[arg-type]
        lists_B = None if self.lists_B is None else _sent(self.lists_B, device)
        return Batch(_sent(self.labels_B, device), _sent(self.dense_BF, device), moved, lists_B)


class Size(NamedTuple):
    """How many rows there are, and at most how many ids the lists of each multi-valued feature hold in all."""

    rows: int
    values: tuple[int, ...]

    def bytes(self, layout: Layout) -> int:
        """Return what a chunk of this size takes, in memory or on disk."""
        of_row = 4 * (1 + len(layout.labels) + layout.floats + layout.slots) + 2 * 8 * len(layout.lists)
        return self.rows * of_row + 4 * sum(self.values)


Allocate = Callable[[tuple[int, ...], type[np.generic]], np.ndarray]
"""allocate(shape, type) -> an array, whose content does not matter: in memory, or on disk."""


@dataclass(frozen=True)
class Chunk:
    """Decoded rows: labels (N,), dense floats (N, F) with NaN for null, fused rows of single ids (N, S), and lists.

    With further labels, there are labels (N, H).

    Labels may carry weights, see `weighted_labels`.
    """

    labels: np.ndarray
    dense: np.ndarray
    singles: np.ndarray
    lists: tuple[Ragged, ...]

    @classmethod
    def empty(cls, size: Size, layout: Layout, allocate: Allocate = np.empty) -> Chunk:
        """Return a chunk to decode into."""
        lists = tuple(
            Ragged(allocate((count,), np.int32), allocate((size.rows,), np.int64), allocate((size.rows,), np.int64))
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
        """Return the rows of a frame; labels are NaN when it has none.

        Raises:
            DataError: A value cannot be read by the model.
        """
        counts = tuple(int(frame[one.name].list.len().sum()) for one in layout.lists)
        chunk = cls.empty(Size(frame.height, counts), layout)
        chunk.decode(frame, layout, Size(0, (0,) * len(counts)))
        return chunk

    def decode(self, frame: pl.DataFrame, layout: Layout, place: Size) -> None:
        """Write the rows of a frame, and the ids of their lists, behind as many as `place` says.

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
        for lists, feature, start, first in zip(self.lists, layout.lists, starts, place.values, strict=True):
            values, edges = fused_lists(frame, feature, start)
            lists.values[first : first + len(values)] = values
            lists.starts[rows], lists.ends[rows] = first + edges[:-1], first + edges[1:]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.labels)

    def holds(self, size: Size) -> bool:
        """Return whether so many rows, with so many ids in their lists, could be decoded into it."""
        rooms = zip(self.lists, size.values, strict=True)
        return self.rows >= size.rows and all(len(one.values) >= count for one, count in rooms)

    @property
    def bytes(self) -> int:
        """Memory it takes."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def arrays(self) -> Iterator[np.ndarray]:
        """All there is of the rows; lists must follow one another."""
        yield from (self.labels, self.dense, self.singles)
        for one in self.lists:
            yield from (one.in_a_row, one.starts, one.ends)

    def sliced(self, first: int, last: int) -> Chunk:
        """Return neighbouring rows, in the same memory."""
        rows = slice(first, last)
        lists = tuple(one.sliced(first, last) for one in self.lists)
        return Chunk(self.labels[rows], self.dense[rows], self.singles[rows], lists)

    def taken(self, order: np.ndarray) -> Chunk:
        """Return some of the rows in another order, copied once."""
        lists = tuple(one.taken(order) for one in self.lists)
        return Chunk(_taken(self.labels, order), _taken(self.dense, order), _taken(self.singles, order), lists)

    def batch(self, first: int, last: int) -> Batch:
        """Return neighbouring rows as tensors that share this chunk's memory; their lists must follow one another."""
        part = self.sliced(first, last)
        return Batch(torch.from_numpy(part.labels), torch.from_numpy(part.dense), part._lookups())

    def _lookups(self) -> Lookups:
        singles = self.singles.reshape(-1)
        if not self.lists:
            return Lookups(torch.from_numpy(singles), _one_each(len(singles)), None)
        length_of_slot = np.concatenate(
            [np.ones(len(singles), np.int64), *(one.ends - one.starts for one in self.lists)]
        )
        rows = np.concatenate([singles, *(one.in_a_row for one in self.lists)])
        starts = np.concatenate([np.zeros(1, np.int32), np.cumsum(length_of_slot, dtype=np.int32)])
        shares = np.repeat(1 / np.maximum(length_of_slot, 1).astype(np.float32), length_of_slot)
        return Lookups(torch.from_numpy(rows), torch.from_numpy(starts), torch.from_numpy(shares))


def _history(frame: pl.DataFrame, layout: Layout, history: FeatureColumn) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a sequence, shape (N, events), and its lengths; places without an event read an id's row."""
    start = layout.starts[layout.target]
    values, edges = fused_lists(frame, history, start)
    there = np.arange(layout.events) < np.diff(edges)[:, None]
    rows = np.full(there.shape, start, np.int32)
    rows[there] = values
    return rows, there.sum(axis=1)


def _labels(frame: pl.DataFrame, layout: Layout) -> np.ndarray:
    """Return the labels of rows, shape (N,) or (N, H), with their weights."""
    weights = weights_of(frame)
    if not layout.labels:
        return with_weights(frame[Columns.LABEL].to_numpy(), weights)
    labels_NH = frame.select(Columns.LABEL, *layout.labels).to_numpy()
    return with_weights(labels_NH, None if weights is None else weights[:, None])


@lru_cache(maxsize=4)
def _one_each(slots: int) -> torch.Tensor:
    """Return the starts of slots with one row each; nobody writes to it, so batches of a size share it."""
    return torch.arange(slots + 1, dtype=torch.int32)


def _sent(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Return a tensor on a device; torch keeps pinned memory until the copy from it is done."""
    if device == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _taken(rows: np.ndarray, order: np.ndarray) -> np.ndarray:
    # Row by row straight into the result: 21 M Criteo rows/s on one core, `rows[order]` 6.5 M. The mode only says what
    # becomes of places outside, of which there are none; with the default, numpy fills a second array and copies it.
    return np.take(rows, order, axis=0, out=np.empty_like(rows, shape=(len(order), *rows.shape[1:])), mode="clip")


@dataclass(frozen=True)
class Ragged:
    """A list of fused rows per row; row i's are `values[starts[i]:ends[i]]`."""

    values: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    @classmethod
    def packed(cls, values: np.ndarray, edges: np.ndarray) -> Ragged:
        """Return lists that follow one another; `edges`, shape (rows + 1,), is where they begin and end."""
        return cls(values, edges[:-1], edges[1:])

    def taken(self, order: np.ndarray) -> Ragged:
        """Return the lists in another order, one after the other."""
        firsts = self.starts[order]
        lengths = self.ends[order] - firsts
        edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        source = np.repeat(firsts - edges[:-1], lengths) + np.arange(edges[-1])
        return Ragged.packed(self.values[source], edges)

    def sliced(self, first: int, last: int) -> Ragged:
        """Return the lists of some neighbouring rows."""
        return Ragged(self.values, self.starts[first:last], self.ends[first:last])

    @property
    def in_a_row(self) -> np.ndarray:
        """The ids of all lists, which must follow one another in memory."""
        return self.values[self.starts[0] : self.ends[-1]] if len(self.starts) else self.values[:0]
