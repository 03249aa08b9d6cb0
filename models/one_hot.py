"""Rows of a feature table as sparse vectors: standardised floats, then hashed one-hot ids and bins of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy import sparse

from models.inputs import FeatureColumn
from models.matrix import float_matrix, fused_lists, fused_rows


@dataclass(frozen=True)
class OneHot:
    """How rows become vectors.

    Attributes:
        features: The features; a list of ids counts as the mean of its one-hot vectors.
        mean: Mean of every float.
        scale: What its distance from the mean is multiplied by; null becomes 0, the mean.
        buckets: Places for ids and bins; two of them may share one.
        edges: Where the bins of every number (not of vectors) end, rising, shape (numbers, bins - 1); null has a bin of
            its own. None: numbers have no bins.
    """

    features: tuple[FeatureColumn, ...]
    mean: np.ndarray
    scale: np.ndarray
    buckets: int
    edges: np.ndarray | None = None

    def rows(self, frame: pl.DataFrame) -> sparse.csr_matrix:
        """Return a frame's rows, shape (rows, floats + buckets), float32."""
        floats = float_matrix(frame, floats_of(self.features))
        standard = np.nan_to_num((floats - self.mean) * self.scale, nan=0.0)
        blocks = [sparse.csr_matrix(standard), self._singles(frame)]
        lists = [one for one in self.features if one.kind == "ids"]
        blocks += [self._list(frame, feature, number) for number, feature in enumerate(lists, start=1)]
        blocks += [] if self.edges is None else [self._bins(frame)]
        ids = sum(blocks[2:], start=blocks[1])
        return sparse.hstack([blocks[0], ids], format="csr", dtype=np.float32)

    def _singles(self, frame: pl.DataFrame) -> sparse.csr_matrix:
        singles = [one for one in self.features if one.kind == "id"]
        ids = fused_rows(frame, singles, [0] * len(singles))
        starts = np.arange(frame.height + 1) * len(singles)
        return self._one_hot(bucket_of(ids, np.arange(len(singles)), self.buckets).ravel(), starts, 1.0)

    def _bins(self, frame: pl.DataFrame) -> sparse.csr_matrix:
        assert self.edges is not None
        numbers = [one for one in self.features if one.kind == "dense"]
        values = float_matrix(frame, numbers)
        bins = np.empty(values.shape, np.int64)
        for place, edges in enumerate(self.edges):
            bins[:, place] = np.searchsorted(edges, values[:, place], side="right") + 1
        bins[np.isnan(values)] = 0
        columns = np.arange(len(numbers)) + len(self.features)  # of no id's column
        starts = np.arange(frame.height + 1) * len(numbers)
        return self._one_hot(bucket_of(bins, columns, self.buckets).ravel(), starts, 1.0)

    def _list(self, frame: pl.DataFrame, feature: FeatureColumn, number: int) -> sparse.csr_matrix:
        ids, starts = fused_lists(frame, feature, 0)
        lengths = np.diff(starts)
        shares = np.repeat(1 / np.maximum(lengths, 1), lengths)
        return self._one_hot(bucket_of(ids, np.array([-number]), self.buckets), starts, shares)

    def _one_hot(self, buckets: np.ndarray, starts: np.ndarray, values: np.ndarray | float) -> sparse.csr_matrix:
        data = np.broadcast_to(np.float32(values), buckets.shape)
        return sparse.csr_matrix((data, buckets, starts), shape=(len(starts) - 1, self.buckets))


def bin_edges(values: np.ndarray, bins: int) -> np.ndarray:
    """Return the quantiles at which the bins of every column end, shape (columns, bins - 1), float32; nulls are NaN.

    >>> bin_edges(np.array([[1.0], [2.0], [3.0], [np.nan]], np.float32), 2).tolist()
    [[2.0]]
    """
    if not values.shape[1]:
        return np.empty((0, bins - 1), np.float32)
    known = np.where(np.isnan(values).all(axis=0), 0.0, values)
    return np.nanquantile(known, np.linspace(0, 1, bins + 1)[1:-1], axis=0).T.astype(np.float32)


def floats_of(features: Sequence[FeatureColumn]) -> list[FeatureColumn]:
    """Return the features that are numbers."""
    return [one for one in features if one.kind in ("dense", "vector")]


def bucket_of(ids: np.ndarray, column: np.ndarray, buckets: int) -> np.ndarray:
    """Return a bucket per id of a column; the same id of another column gets another one (SplitMix64, Steele 2014).

    >>> bucket_of(np.array([7, 7]), np.array([0, 1]), 1000).tolist()
    [487, 804]
    """
    mixed = ids.astype(np.uint64) + (column.astype(np.int64) + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    buckets_of_ids: np.ndarray = (mixed ^ (mixed >> np.uint64(31))) % np.uint64(buckets)
    return buckets_of_ids.astype(np.int32)
