"""Oblivious trees as arrays that score rows and are written to files, without CatBoost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import polars as pl
from safetensors.numpy import load_file, save_file

from models.catboost.lookup import Combination, Lookup, ids_and_floats, is_missing
from models.missing_directions import TreeNodes, choose_directions
from shortlist.ranking.inputs import TableFeature
from shortlist.storage.artefacts import read_json, write_json

WEIGHTS: Final = "trees.safetensors"
LOOKUPS: Final = "lookups.json"
_BLOCK_ROWS: Final = 8_192
_ARRAYS: Final = ("depths", "columns", "borders", "leaves", "missing_is_above", "base")


class Tree(NamedTuple):
    """One tree; see `ObliviousTrees`."""

    columns: np.ndarray
    borders: np.ndarray
    leaves: np.ndarray
    missing_is_above: np.ndarray


class Nodes(NamedTuple):
    """The nodes of a tree of some depth, by their numbers: first the inner nodes, level by level, then the leaves."""

    level: np.ndarray
    """Level of each inner node."""
    left: np.ndarray
    """Node after each inner node for rows that are not above its border."""
    right: np.ndarray
    """Node for the others."""


@dataclass(frozen=True)
class ObliviousTrees:
    """Trees whose levels compare one number each.

    A tree of depth D has 2^D leaves; bit l of a leaf's number says whether the number of level l is above its border.
    The nodes of level l are numbered by the bits of the levels before, after all nodes of those levels.

    Attributes:
        depths: Depth of each tree, int64, shape (trees,).
        columns: Number that each level compares: a float in the order of `float_matrix`, or a column of the lookups
            after them; int64, shape (levels of all trees,).
        borders: Largest number that is not above, float32, shape (levels of all trees,).
        leaves: Log-odds of the leaves of all trees, float32.
        missing_is_above: Whether a row that lacks the number is above, for the inner nodes of all trees, bool.
        base: Log-odds before any tree, float32, shape (1,).
        lookups: What is looked up by ids.
    """

    depths: np.ndarray
    columns: np.ndarray
    borders: np.ndarray
    leaves: np.ndarray
    missing_is_above: np.ndarray
    base: np.ndarray
    lookups: tuple[Lookup, ...]

    def log_odds(self, frame: pl.DataFrame, features: Sequence[TableFeature]) -> np.ndarray:
        """Return the log-odds of rows, float32, added tree by tree as in the exported graph.

        Args:
            frame: Rows of a feature table.
            features: The features that the model reads.

        Raises:
            DataError: A value is infinite, or an id is null or not in its feature's table.
        """
        total = np.full(frame.height, self.base[0], np.float32)
        for first in range(0, frame.height, _BLOCK_ROWS):
            rows = frame[first : first + _BLOCK_ROWS]
            floats, ids = ids_and_floats(rows, features)
            numbers = [*floats.values(), *(row for lookup in self.lookups for row in lookup.columns(floats | ids))]
            missing = [is_missing(column) for column in numbers]
            holds_missing = [bool(rows_without.any()) for rows_without in missing]
            for tree in self:
                leaf_of = np.zeros(rows.height, np.int64)
                for level, (column, border) in enumerate(zip(tree.columns, tree.borders, strict=True)):
                    is_above = numbers[column] > border
                    if holds_missing[column]:
                        is_above |= missing[column] & tree.missing_is_above[2**level - 1 + leaf_of]
                    leaf_of |= is_above.astype(np.int64) << level
                total[first : first + _BLOCK_ROWS] += tree.leaves[leaf_of]
        return total

    def with_missing_directions(self, floats: frozenset[int], width: int, weights: np.ndarray) -> ObliviousTrees:
        """Return the trees with directions of their own for rows that miss some numbers; see `choose_directions`.

        All columns of a lookup are missing in the same rows, and count as one number.

        Args:
            floats: Numbers of the floats that hardly any training row misses.
            width: Number of all floats.
            weights: Weight of the training rows in the leaves of all trees.
        """
        numbers = [*range(width)]
        for number, lookup in enumerate(self.lookups):
            numbers += [width + number] * lookup.values.shape[1]
        rare = floats | {width + number for number, lookup in enumerate(self.lookups) if lookup.rarely_unknown}
        ends = np.cumsum(2**self.depths)[:-1]
        trees = [
            _tree_nodes(tree, np.array(numbers)[tree.columns], leaf_weights)
            for tree, leaf_weights in zip(self, np.split(weights, ends), strict=True)
        ]
        is_above = [tree.missing_is_above.copy() for tree in self]
        for nodes_above, goes_below in zip(is_above, choose_directions(trees, rare), strict=True):
            for node, is_below in goes_below.items():
                nodes_above[node] = not is_below
        return replace(self, missing_is_above=np.concatenate([np.empty(0, bool), *is_above]))

    def __iter__(self) -> Iterator[Tree]:
        """Yield the trees in their order."""
        levels = np.cumsum(self.depths)[:-1]
        leaves, inner = (np.cumsum(2**self.depths - start)[:-1] for start in (0, 1))
        parts = (
            np.split(self.columns, levels), np.split(self.borders, levels), np.split(self.leaves, leaves),
            np.split(self.missing_is_above, inner),
        )  # fmt: skip
        return map(Tree._make, zip(*parts, strict=True))

    def write(self, folder: Path) -> None:
        """Write the arrays and the lookups to a folder."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        for number, lookup in enumerate(self.lookups):
            arrays |= {f"{number}.keys": lookup.keys, f"{number}.values": lookup.values}
        save_file(arrays, folder / WEIGHTS)
        lookups = [
            {
                **asdict(lookup.combination),
                "rarely_unknown": sorted(lookup.rarely_unknown),
                "columns": lookup.values.shape[1],
            }
            for lookup in self.lookups
        ]
        write_json(folder / LOOKUPS, {"lookups": lookups})

    @classmethod
    def read(cls, folder: Path) -> ObliviousTrees:
        """Return the trees that `write` wrote to a folder."""
        arrays = load_file(folder / WEIGHTS)
        lookups = tuple(
            Lookup(
                Combination(
                    tuple(saved["ids"]), tuple(saved["sizes"]), tuple(map(tuple, saved["comparisons"])),
                    tuple(map(tuple, saved["matches"])),
                ),
                frozenset(saved["rarely_unknown"]), arrays[f"{number}.keys"], arrays[f"{number}.values"],
            )
            for number, saved in enumerate(read_json(folder / LOOKUPS)["lookups"])
        )  # fmt: skip
        return cls(**{name: arrays[name] for name in _ARRAYS}, lookups=lookups)


def nodes_of(depth: int) -> Nodes:
    """Return the nodes of a tree of some depth.

    >>> nodes = nodes_of(2)
    >>> nodes.left.tolist(), nodes.right.tolist()
    ([1, 3, 4], [2, 5, 6])
    """
    levels = np.arange(depth)
    level = np.repeat(levels, 2**levels)
    position = np.arange(2**depth - 1) - (2**level - 1)
    left = 2 ** (level + 1) - 1 + position
    return Nodes(level, left, left + 2**level)


def _tree_nodes(tree: Tree, numbers: np.ndarray, weights: np.ndarray) -> TreeNodes:
    """Return a tree in the form of `choose_directions`; what is not above goes left."""
    nodes, leaves = nodes_of(len(numbers)), [-1] * len(weights)
    zeros = [0.0] * len(nodes.level)
    return TreeNodes(
        [*nodes.left.tolist(), *leaves], [*nodes.right.tolist(), *leaves], [*numbers[nodes.level].tolist(), *leaves],
        [*zeros, *tree.leaves.tolist()], [*zeros, *weights.tolist()],
    )  # fmt: skip
