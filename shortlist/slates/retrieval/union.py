"""Fusion of several sources' lists: each item once, with its rank in every source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shortlist.slates.retrieval.catalogue import Rows
from shortlist.slates.retrieval.source import RankedItems, Scores, group_rows, top_positions

RANK_OFFSET: Final = 60
"""Constant of reciprocal rank fusion (Cormack et al., 2009): an item of rank r counts 1 / (60 + r) per source."""
NO_RANK: Final = 0
"""Rank of an item in a source that did not return it."""


@dataclass(frozen=True)
class Candidates:
    """The candidates of every query, best first; B queries, N candidates, S sources.

    Attributes:
        items: Shape (B, N); -1 where there are fewer.
        scores: Fused scores, shape (B, N).
        ranks: Rank of every candidate in every source, from 1; 0: the source did not return it. Shape (B, N, S).
        sources: Names of the sources.
    """

    items: Rows
    scores: Scores
    ranks: NDArray[np.int32]
    sources: tuple[str, ...]


def fuse_candidates(
    lists: Sequence[tuple[str, RankedItems]], max_candidates: int, reserved: Mapping[str, int] | None = None
) -> Candidates:
    """Return the candidates of several sources: deduplicated, and ordered by reciprocal rank fusion.

    Equal sums are ordered by row number, so the same lists give the same candidates.

    Args:
        lists: Name and list of every source, for the same queries; each list holds an item once.
        max_candidates: Number of candidates per query.
        reserved: Number of first items of a source that stay candidates whatever their sum, by its name.

    >>> near = RankedItems(np.array([[4, 7]], np.int32), np.array([[0.9, 0.1]], np.float32))
    >>> popular = RankedItems(np.array([[7, 2]], np.int32), np.array([[30, 20]], np.float32))
    >>> candidates = fuse_candidates([("near", near), ("popular", popular)], 3)
    >>> candidates.items.tolist(), candidates.ranks.tolist()
    ([[7, 4, 2]], [[[2, 1], [1, 0], [0, 2]]])
    >>> new = RankedItems(np.array([[5, 6]], np.int32), np.array([[0.9, 0.1]], np.float32))
    >>> fuse_candidates([("near", near), ("popular", popular), ("new", new)], 2, {"new": 1}).items.tolist()
    [[7, 5]]
    """
    names = tuple(name for name, _ in lists)
    all_items = np.concatenate([ranked.items for _, ranked in lists], axis=1)
    places = _places(tuple(ranked.items.shape[1] for _, ranked in lists))
    reserved_ranks = np.array([reserved.get(name, 0) for name in names]) if reserved else None
    queries = len(all_items)
    candidates = Candidates(
        np.full((queries, max_candidates), -1, np.int32),
        np.zeros((queries, max_candidates), np.float32),
        np.zeros((queries, max_candidates, len(names)), np.int32),
        names,
    )
    for query_number, query_items in enumerate(all_items):
        items, fused, ranks = _fuse_query(query_items, places, len(names), max_candidates, reserved_ranks)
        candidates.items[query_number, : len(items)] = items
        candidates.scores[query_number, : len(items)] = fused
        candidates.ranks[query_number, : len(items)] = ranks
    return candidates


_Places = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]


def _fuse_query(
    query_items: Rows, places: _Places, sources: int, max_candidates: int, reserved_ranks: NDArray[np.int64] | None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the candidates of one query: items, fused scores, ranks in every source."""
    source, rank, reciprocal_ranks = places
    item_positions = np.flatnonzero(query_items >= 0)
    items, positions, groups = group_rows(query_items[item_positions])
    list_positions = item_positions[positions]
    fused = np.bincount(groups, reciprocal_ranks[list_positions])
    ranks = np.zeros(len(items) * sources, np.int32)
    ranks[groups * sources + source[list_positions]] = rank[list_positions]
    order = top_positions(fused, max_candidates)  # equal sums by row number
    if reserved_ranks is not None and len(items) > max_candidates:
        is_reserved = np.bincount(groups, rank[list_positions] <= reserved_ranks[source[list_positions]]) > 0
        item_groups = np.sort(top_positions(fused + is_reserved, max_candidates))  # a sum is below 1
        order = item_groups[top_positions(fused[item_groups], max_candidates)]
    return items[order], fused[order], ranks.reshape(-1, sources)[order]


@lru_cache(maxsize=16)
def _places(widths: tuple[int, ...]) -> _Places:
    """Return the source, rank and reciprocal rank of every position of concatenated lists; cached per widths.

    >>> _places((2, 1))[:2]
    (array([0, 0, 1]), array([1, 2, 1]))
    """
    rank = np.concatenate([np.arange(1, width + 1) for width in widths])
    return np.repeat(np.arange(len(widths)), widths), rank, 1.0 / (RANK_OFFSET + rank)
