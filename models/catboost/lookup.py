"""What oblivious trees compare in place of ids: numbers that are looked up by an id, or by a combination."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from shortlist.ranking.inputs import TableFeature
from shortlist.ranking.matrix import float_matrix, float_names, fused_rows

MISSING_KEY: Final = -1
"""Key of a row that lacks a part of the combination; other keys are not negative."""


@dataclass(frozen=True)
class Combination:
    """The ids and comparisons that make up a key.

    Attributes:
        ids: Names of features of kind id, at least one.
        sizes: Number of ids of each.
        comparisons: Names of floats, each with a border: 1 for a value above it, else 0.
        matches: Names of features of kind id, each with one id: 1 for a row with it, else 0.
    """

    ids: tuple[str, ...]
    sizes: tuple[int, ...]
    comparisons: tuple[tuple[str, float], ...] = ()
    matches: tuple[tuple[str, int], ...] = ()

    @property
    def is_single(self) -> bool:
        """Whether the key is an id itself."""
        return len(self.ids) == 1 and not self.comparisons and not self.matches

    @property
    def radices(self) -> tuple[int, ...]:
        """Number of values of each part of a key, in the order in which parts are appended."""
        return (*self.sizes, *(2 for _ in (*self.comparisons, *self.matches)))

    @property
    def names(self) -> frozenset[str]:
        """Names of all features and floats in the key."""
        return frozenset((*self.ids, *(name for name, _ in self.comparisons), *(name for name, _ in self.matches)))

    def keys(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the key of each row, int64, shape (rows,).

        Args:
            columns: The ids and floats by name, shape (rows,).
        """
        keys = np.zeros(len(columns[self.ids[0]]), np.int64)
        parts = [
            *(columns[name] for name in self.ids),
            *(columns[name] > np.float32(border) for name, border in self.comparisons),
            *(columns[name] == id_ for name, id_ in self.matches),
        ]
        for part, radix in zip(parts, self.radices, strict=True):
            keys = keys * radix + part
        return keys

    def parts(self, keys: np.ndarray) -> list[np.ndarray]:
        """Return the ids, comparisons and matches that make up keys, each of their shape."""
        parts: list[np.ndarray] = []
        for radix in reversed(self.radices):
            keys, part = np.divmod(keys, radix)
            parts.append(part)
        return parts[::-1]


@dataclass(frozen=True)
class Lookup:
    """Numbers by key.

    Attributes:
        combination: What the key consists of.
        rarely_unknown: Names of its ids and floats that hardly any training row lacks: rows that lack one have NaN.
        keys: Keys with numbers of their own, ascending, int64, shape (K,). Empty where the key is an id itself: all ids
            have numbers.
        values: The numbers, float32, shape (K + 1, columns); the last row is for all other keys. Where the key is an
            id: shape (ids, columns).
    """

    combination: Combination
    rarely_unknown: frozenset[str]
    keys: np.ndarray
    values: np.ndarray

    def columns(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the numbers of each row, float32, shape (columns, rows).

        Args:
            columns: See `Combination.keys`.
        """
        keys = self.combination.keys(columns)
        if not self.combination.is_single:
            for name in self.rarely_unknown:
                keys[is_missing(columns[name])] = MISSING_KEY
            keys = find_positions(self.keys, keys)
        return np.ascontiguousarray(self.values[keys].T)


def ids_and_floats(
    frame: pl.DataFrame, features: Sequence[TableFeature]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the floats of rows by name, null as NaN, and their ids by name, shape (rows,) each.

    Args:
        frame: Rows of a feature table.
        features: Features of kind dense, vector or id.

    Raises:
        DataError: A value is infinite, or an id is null or not in its feature's table.
    """
    numbers, categories = float_features(features), id_features(features)
    floats = np.ascontiguousarray(float_matrix(frame, numbers).T)
    ids = np.ascontiguousarray(fused_rows(frame, categories, [0] * len(categories)).T)
    return (
        dict(zip(float_names(numbers), floats, strict=True)),
        {feature.name: column for feature, column in zip(categories, ids, strict=True)},
    )


def float_features(features: Sequence[TableFeature]) -> list[TableFeature]:
    """Return the features that trees compare as they are."""
    return [feature for feature in features if feature.kind != "id"]


def id_features(features: Sequence[TableFeature]) -> list[TableFeature]:
    """Return the features that are categories."""
    return [feature for feature in features if feature.kind == "id"]


def is_missing(column: np.ndarray) -> np.ndarray:
    """Return where a column of ids is unknown (0), or one of floats is missing (NaN)."""
    return np.asarray(np.isnan(column) if column.dtype.kind == "f" else column == 0)


def find_positions(keys: np.ndarray, searched_keys: np.ndarray) -> np.ndarray:
    """Return the position of each searched key among ascending keys; their number where it is not there.

    >>> find_positions(np.array([2, 5]), np.array([5, 4, 2])).tolist()
    [1, 2, 0]
    """
    if not len(keys):
        return np.zeros(searched_keys.shape, np.int64)
    positions = np.minimum(np.searchsorted(keys, searched_keys), len(keys) - 1)
    return np.where(keys[positions] == searched_keys, positions, len(keys))
