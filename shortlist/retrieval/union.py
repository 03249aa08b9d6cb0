"""Several sources' lists as one: each item once, its sources and ranks kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shortlist.retrieval.catalogue import Rows
from shortlist.retrieval.source import Ranked, Scores, grouped, highest

RANK_OFFSET: Final = 60
"""Of reciprocal rank fusion (Cormack et al., 2009): an item of rank r counts 1 / (60 + r) per source."""
NO_RANK: Final = 0
"""Rank of an item in a source that did not give it."""


@dataclass(frozen=True)
class Candidates:
    """The candidates of every query, best first; B queries, N candidates, S sources.

    Attributes:
        items: Shape (B, N); -1 where there are fewer.
        scores: Fused scores, shape (B, N).
        ranks: Rank of every candidate in every source, from 1; 0: that source did not give it. Shape (B, N, S).
        sources: Names of the sources.
    """

    items: Rows
    scores: Scores
    ranks: NDArray[np.int32]
    sources: tuple[str, ...]


def united(lists: Sequence[tuple[str, Ranked]], most: int) -> Candidates:
    """Return the candidates of several sources: deduplicated, ordered by reciprocal rank fusion, at most `most`.

    Equal sums are ordered by row number, so the same lists give the same candidates.

    Args:
        lists: Name and list of every source, of the same queries; each list holds an item once.
        most: Candidates of a query.

    >>> one = Ranked(np.array([[4, 7]], np.int32), np.array([[0.9, 0.1]], np.float32))
    >>> other = Ranked(np.array([[7, 2]], np.int32), np.array([[30, 20]], np.float32))
    >>> found = united([("near", one), ("popular", other)], 3)
    >>> found.items.tolist(), found.ranks.tolist()
    ([[7, 4, 2]], [[[2, 1], [1, 0], [0, 2]]])
    """
    names = tuple(name for name, _ in lists)
    every = np.concatenate([ranked.items for _, ranked in lists], axis=1)
    places = _places(tuple(ranked.items.shape[1] for _, ranked in lists))
    queries = len(every)
    found = Candidates(
        np.full((queries, most), -1, np.int32),
        np.zeros((queries, most), np.float32),
        np.zeros((queries, most, len(names)), np.int32),
        names,
    )
    for line, own in enumerate(every):
        items, fused, ranks = _fused(own, places, len(names), most)
        found.items[line, : len(items)] = items
        found.scores[line, : len(items)] = fused
        found.ranks[line, : len(items)] = ranks
    return found


_Places = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]


def _fused(own: Rows, places: _Places, sources: int, most: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the candidates of one query: items, fused scores, ranks in every source."""
    source, rank, counts_for = places
    there = np.flatnonzero(own >= 0)
    items, entries, groups = grouped(own[there])
    place = there[entries]
    fused = np.bincount(groups, counts_for[place])
    ranks = np.zeros(len(items) * sources, np.int32)
    ranks[groups * sources + source[place]] = rank[place]
    best = highest(fused, most)  # equal sums by row number
    return items[best], fused[best], ranks.reshape(-1, sources)[best]


@lru_cache(maxsize=16)
def _places(widths: tuple[int, ...]) -> _Places:
    """Return, of lists side by side, every place's source and rank, and what an item there counts; requests are alike.

    >>> _places((2, 1))[:2]
    (array([0, 0, 1]), array([1, 2, 1]))
    """
    rank = np.concatenate([np.arange(1, width + 1) for width in widths])
    return np.repeat(np.arange(len(widths)), widths), rank, 1.0 / (RANK_OFFSET + rank)
