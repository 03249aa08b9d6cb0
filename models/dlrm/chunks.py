"""Rows of a feature table as contiguous arrays that torch can read in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import polars as pl
import torch

from models.dlrm.layout import Layout
from models.matrix import float_matrix, fused_lists, fused_rows
from shortlist.contracts import Columns


class Lookups(NamedTuple):
    """Which rows of the fused table make up which slots; a slot is one feature of one row of the batch.

    Slots come in this order: all single ids row by row, then every list feature as a block of batch rows.
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
    dense_BF: torch.Tensor
    lookups: Lookups

    @property
    def rows(self) -> int:
        """Number of rows, B."""
        return len(self.labels_B)

    def to(self, device: str) -> Batch:
        """Return the batch on a device."""
        moved = Lookups(*(None if one is None else one.to(device) for one in self.lookups))  # type: ignore[arg-type]
        return Batch(self.labels_B.to(device), self.dense_BF.to(device), moved)


@dataclass(frozen=True)
class Ragged:
    """A list of fused rows per row."""

    values: np.ndarray
    starts: np.ndarray

    def taken(self, order: np.ndarray) -> Ragged:
        """Return the lists in another order."""
        lengths = np.diff(self.starts)[order]
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        source = np.repeat(self.starts[:-1][order] - starts[:-1], lengths) + np.arange(starts[-1])
        return Ragged(self.values[source], starts)

    def sliced(self, first: int, last: int) -> Ragged:
        """Return the lists of some neighbouring rows."""
        start, end = self.starts[first], self.starts[last]
        return Ragged(self.values[start:end], self.starts[first : last + 1] - start)


@dataclass(frozen=True)
class Chunk:
    """Decoded rows: labels (N,), dense floats (N, F) with NaN for null, fused rows of single ids (N, S), and lists."""

    labels: np.ndarray
    dense: np.ndarray
    singles: np.ndarray
    lists: tuple[Ragged, ...]

    @classmethod
    def decoded(cls, frame: pl.DataFrame, layout: Layout) -> Chunk:
        """Return the rows of a frame; labels are NaN when it has none.

        Raises:
            DataError: A value cannot be read by the model.
        """
        dense = float_matrix(frame, layout.dense) if layout.dense else np.zeros((frame.height, 1), np.float32)
        has_label = Columns.LABEL in frame.columns
        labels = frame[Columns.LABEL].to_numpy() if has_label else np.full(frame.height, np.nan)
        singles = fused_rows(frame, layout.singles, layout.starts[: len(layout.singles)])
        pairs = zip(layout.lists, layout.starts[len(layout.singles) :], strict=True)
        lists = tuple(Ragged(*fused_lists(frame, feature, start)) for feature, start in pairs)
        return cls(labels.astype(np.float32), dense, singles, lists)

    @classmethod
    def joined(cls, chunks: Sequence[Chunk]) -> Chunk:
        """Return the rows of several chunks, one after the other."""
        if len(chunks) == 1:
            return chunks[0]
        return cls(
            np.concatenate([chunk.labels for chunk in chunks]),
            np.concatenate([chunk.dense for chunk in chunks]),
            np.concatenate([chunk.singles for chunk in chunks]),
            tuple(_joined(lists) for lists in zip(*(chunk.lists for chunk in chunks), strict=True)),
        )

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.labels)

    @property
    def bytes(self) -> int:
        """Memory it takes."""
        lists = sum(one.values.nbytes + one.starts.nbytes for one in self.lists)
        return self.labels.nbytes + self.dense.nbytes + self.singles.nbytes + lists

    def taken(self, order: np.ndarray) -> Chunk:
        """Return the rows in another order."""
        lists = tuple(one.taken(order) for one in self.lists)
        return Chunk(_taken(self.labels, order), _taken(self.dense, order), _taken(self.singles, order), lists)

    def batch(self, first: int, last: int) -> Batch:
        """Return neighbouring rows as tensors that share this chunk's memory."""
        labels, dense = torch.from_numpy(self.labels[first:last]), torch.from_numpy(self.dense[first:last])
        return Batch(labels, dense, self._lookups(first, last))

    def _lookups(self, first: int, last: int) -> Lookups:
        singles = self.singles[first:last].reshape(-1)
        if not self.lists:
            return Lookups(torch.from_numpy(singles), _one_each(len(singles)), None)
        rows, lengths = [singles], [np.ones(len(singles), np.int64)]
        for one in (lists.sliced(first, last) for lists in self.lists):
            rows.append(one.values)
            lengths.append(np.diff(one.starts))
        length_of_slot = np.concatenate(lengths)
        starts = np.concatenate([np.zeros(1, np.int32), np.cumsum(length_of_slot, dtype=np.int32)])
        shares = np.repeat(1 / np.maximum(length_of_slot, 1).astype(np.float32), length_of_slot)
        return Lookups(torch.from_numpy(np.concatenate(rows)), torch.from_numpy(starts), torch.from_numpy(shares))


@lru_cache(maxsize=4)
def _one_each(slots: int) -> torch.Tensor:
    """Return the starts of slots with one row each; nobody writes to it, so batches of a size share it."""
    return torch.arange(slots + 1, dtype=torch.int32)


def _taken(rows: np.ndarray, order: np.ndarray) -> np.ndarray:
    # Row by row straight into the result: 21 M Criteo rows/s on one core, `rows[order]` 6.5 M. The mode only says what
    # becomes of places outside, of which there are none; with the default, numpy fills a second array and copies it.
    return np.take(rows, order, axis=0, out=np.empty_like(rows, shape=(len(order), *rows.shape[1:])), mode="clip")


def _joined(lists: Sequence[Ragged]) -> Ragged:
    ends = np.cumsum([0, *(one.starts[-1] for one in lists)])
    starts = [one.starts[:-1] + end for one, end in zip(lists, ends, strict=False)]
    return Ragged(np.concatenate([one.values for one in lists]), np.concatenate([*starts, ends[-1:]]))
