"""Rows of a feature table as sparse vectors: standardised floats, then hashed one-hot ids and bins of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from scipy import sparse

from shortlist.ranking.inputs import TableFeature
from shortlist.ranking.matrix import float_matrix, fused_lists, fused_rows

EMPTY_LIST: Final = 2**31 - 1
"""Id of an empty list; larger than all others."""


@dataclass(frozen=True)
class OneHot:
    """The encoding of rows as sparse vectors.

    Attributes:
        features: The features; a list of ids counts as the mean of its one-hot vectors, an empty one as an id of its
            own.
        mean: Mean of every float.
        scale: Factor of a float's distance from its mean; null becomes 0, the mean.
        buckets: Number of hash buckets for ids and bins.
        edges: Ends of the bins of every number (not of vectors), ascending, shape (numbers, bins - 1); null has a bin
            of its own. None: numbers have no bins.
    """

    features: tuple[TableFeature, ...]
    mean: np.ndarray
    scale: np.ndarray
    buckets: int
    edges: np.ndarray | None = None

    @property
    def width(self) -> int:
        """Length of a vector."""
        return len(self.mean) + self.buckets

    def encode(self, frame: pl.DataFrame) -> sparse.csr_matrix:
        """Return the encoded rows of a frame, shape (rows, floats + buckets), float32."""
        floats = float_matrix(frame, select_floats(self.features))
        standard = np.nan_to_num((floats - self.mean) * self.scale, nan=0.0)
        buckets = self._encode_columns(frame)
        columns = np.empty((frame.height, standard.shape[1] + buckets.shape[1]), np.int32)
        values = np.ones(columns.shape, np.float32)
        columns[:, : standard.shape[1]], values[:, : standard.shape[1]] = np.arange(standard.shape[1]), standard
        columns[:, standard.shape[1] :] = buckets + np.int32(standard.shape[1])
        starts = np.arange(frame.height + 1, dtype=np.int32) * np.int32(columns.shape[1])
        rows = sparse.csr_matrix((values.ravel(), columns.ravel(), starts), shape=(frame.height, self.width))
        lists = [feature for feature in self.features if feature.kind == "ids"]
        no_floats = sparse.csr_matrix((frame.height, standard.shape[1]), dtype=np.float32)
        for number, feature in enumerate(lists, start=1):
            rows += sparse.hstack([no_floats, self._encode_list(frame, feature, number)], format="csr")
        return rows

    def _encode_columns(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the buckets of single ids, then those of the numbers' bins, shape (rows, ids + bins)."""
        columns = [self._encode_id_columns(frame)] + ([] if self.edges is None else [self._encode_bin_columns(frame)])
        return np.concatenate(columns, axis=1)

    def _encode_id_columns(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the bucket of each single id, shape (rows, ids)."""
        singles = [feature for feature in self.features if feature.kind == "id"]
        ids = fused_rows(frame, singles, [0] * len(singles))
        return hash_ids(ids, np.arange(len(singles)), self.buckets)

    def _encode_bin_columns(self, frame: pl.DataFrame) -> np.ndarray:
        """Return the bucket of each number's bin, shape (rows, numbers)."""
        assert self.edges is not None
        numbers = [feature for feature in self.features if feature.kind == "dense"]
        values = float_matrix(frame, numbers)
        bins = np.empty(values.shape, np.int64)
        for number, edges in enumerate(self.edges):
            bins[:, number] = np.searchsorted(edges, values[:, number], side="right") + 1
        bins[np.isnan(values)] = 0
        columns = np.arange(len(numbers)) + len(self.features)  # differ from the columns of ids
        return hash_ids(bins, columns, self.buckets)

    def _encode_list(self, frame: pl.DataFrame, feature: TableFeature, number: int) -> sparse.csr_matrix:
        ids, starts = fused_lists(frame, feature, 0)
        lengths = np.diff(starts)
        ids = np.insert(ids, starts[:-1][lengths == 0], EMPTY_LIST)
        lengths = np.maximum(lengths, 1)
        buckets = hash_ids(ids, np.array([-number]), self.buckets)
        return self._one_hot(buckets, np.append(0, np.cumsum(lengths)), np.repeat(1 / lengths, lengths))

    def unknown_buckets(self) -> np.ndarray:
        """Return the bucket of what is unknown, of each group of buckets of which a row has one: ids, bins, lists."""
        singles, numbers, lists = (
            sum(feature.kind == kind for feature in self.features) for kind in ("id", "dense", "ids")
        )
        columns = np.arange(singles)
        if self.edges is not None:
            columns = np.append(columns, np.arange(numbers) + len(self.features))
        unknown = np.append(np.zeros(columns.size, np.int64), np.full(lists, EMPTY_LIST))
        return hash_ids(unknown, np.append(columns, -np.arange(1, lists + 1)), self.buckets)

    def sum_terms(
        self, frame: pl.DataFrame, coefficients: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the sum of the terms of each group over the rows of a frame, and of the rows in which it is unknown.

        Args:
            frame: Rows of a feature table.
            coefficients: Coefficients of the buckets.
            weights: Weight of each row in both sums.
        """
        buckets = self._encode_columns(frame)
        lists = [feature for feature in self.features if feature.kind == "ids"]
        list_blocks = [self._encode_list(frame, feature, number) for number, feature in enumerate(lists, start=1)]
        terms = [weights @ coefficients[buckets], [weights @ (block @ coefficients) for block in list_blocks]]
        unknown = self.unknown_buckets()
        is_unknown = weights @ (buckets == unknown[: buckets.shape[1]])
        are_empty = [
            weights @ block[:, [bucket]].toarray()[:, 0]
            for block, bucket in zip(list_blocks, unknown[buckets.shape[1] :], strict=True)
        ]
        return np.concatenate(terms), np.append(is_unknown, are_empty)

    def _one_hot(self, buckets: np.ndarray, starts: np.ndarray, values: np.ndarray | float) -> sparse.csr_matrix:
        cell_values = np.broadcast_to(np.float32(values), buckets.shape)
        return sparse.csr_matrix((cell_values, buckets, starts), shape=(len(starts) - 1, self.buckets))


def bin_edges(values: np.ndarray, bins: int) -> np.ndarray:
    """Return the quantiles at which the bins of every column end, shape (columns, bins - 1), float32; NaN is ignored.

    >>> bin_edges(np.array([[1.0], [2.0], [3.0], [np.nan]], np.float32), 2).tolist()
    [[2.0]]
    """
    if not values.shape[1]:
        return np.empty((0, bins - 1), np.float32)
    filled = np.where(np.isnan(values).all(axis=0), 0.0, values)
    return np.nanquantile(filled, np.linspace(0, 1, bins + 1)[1:-1], axis=0).T.astype(np.float32)


def select_floats(features: Sequence[TableFeature]) -> list[TableFeature]:
    """Return the features that are floats."""
    return [feature for feature in features if feature.kind in ("dense", "vector")]


def hash_ids(ids: np.ndarray, column: np.ndarray, buckets: int) -> np.ndarray:
    """Return the hash bucket of each id, int32, in the shape of the ids; it depends on the column too.

    Args:
        ids: Integers, shape (rows, columns), or (rows,) for one column, or (columns,).
        column: Number of each column.
        buckets: Number of buckets.

    >>> hash_ids(np.array([7, 7]), np.array([0, 1]), 1000).tolist()
    [487, 804]
    """
    from models.hash_kernels import hash_rows

    hashed = np.empty(ids.shape, np.int32)
    if ids.size:
        shape = -1, len(column)
        hash_rows(ids.reshape(shape), column.astype(np.uint64), np.uint64(buckets), hashed.reshape(shape))
    return hashed
