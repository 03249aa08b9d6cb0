"""How good lists of items are: recall, hit rate, nDCG, reciprocal rank, novelty and coverage, in numpy.

ranx and RecTools give the same numbers (`make bench-metrics`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shortlist.evaluation.metrics import Floats
from shortlist.evaluation.ranking import NDCG_AT

Items = npt.NDArray[np.int32]


class Relevant(NamedTuple):
    """What each query's user took."""

    query: npt.NDArray[np.int64]
    """Number of the query, shape (R,)."""
    items: Items
    """Row of the item, each once per query, shape (R,); -1: an item that no list can hold."""


class ListMetrics(NamedTuple):
    """One number per query, shape (B,); NaN for a query without relevant items."""

    items: Floats
    """Items of the list."""
    recall: Floats
    """Share of the relevant items in the list."""
    hit_rate_at_10: Floats
    """1 if one of the first ten is relevant."""
    ndcg_at_10: Floats
    reciprocal_rank: Floats
    """1 / rank of the first relevant item; 0 if there is none."""
    novelty: Floats
    """Mean self-information of the first ten, in bits; NaN for an empty list."""


def list_metrics(lists: Items, relevant: Relevant, popularity: Floats) -> ListMetrics:
    """Return the metrics of every query's list.

    Gains are 0 or 1; nDCG is that of Järvelin and Kekäläinen (2002) with the discount log2(rank + 1), its ideal all
    relevant items first. Self-information is -log2 of the share of users who took the item before (Zhou et al., 2010).

    Args:
        lists: Items of every query, best first, each once, shape (B, N); -1 where there are fewer.
        relevant: What the users took.
        popularity: Share of users who took each item before, shape (items,); above 0.

    >>> lists = np.array([[4, 2, 7]], np.int32)
    >>> found = list_metrics(lists, Relevant(np.array([0, 0]), np.array([2, 9], np.int32)), np.full(10, 0.25))
    >>> found.recall.tolist(), found.reciprocal_rank.tolist(), found.novelty.tolist()
    ([0.5], [0.5], [2.0])
    """
    queries = len(lists)
    stride = max(int(lists.max(initial=0)), int(relevant.items.max(initial=0))) + 1
    takeable = relevant.items >= 0
    taken = relevant.query[takeable] * stride + relevant.items[takeable]
    numbers = np.arange(queries)[:, None] * stride + lists
    hits = np.isin(numbers, taken) & (lists >= 0)
    wanted = np.bincount(relevant.query, minlength=queries).astype(np.float64)
    wanted[wanted == 0] = np.nan
    first = hits[:, :NDCG_AT]
    discounts = 1 / np.log2(np.arange(NDCG_AT) + 2)
    ideal = np.concatenate([[np.nan], np.cumsum(discounts)])
    best = ideal[np.nan_to_num(np.minimum(wanted, NDCG_AT)).astype(np.int64)]
    found = hits.any(axis=1)
    shown = lists[:, :NDCG_AT]
    known = shown >= 0
    bits = np.where(known, -np.log2(popularity[np.maximum(shown, 0)]), 0.0).sum(axis=1)
    missing = np.where(np.isnan(wanted), np.nan, 0.0)
    return ListMetrics(
        items=(lists >= 0).sum(axis=1).astype(np.float64),
        recall=hits.sum(axis=1) / wanted,
        hit_rate_at_10=first.any(axis=1).astype(np.float64) + missing,
        ndcg_at_10=first @ discounts[: first.shape[1]] / best,
        reciprocal_rank=np.where(found, 1 / (hits.argmax(axis=1) + 1), 0.0) + missing,
        novelty=np.where(known.any(axis=1), bits / np.maximum(known.sum(axis=1), 1), np.nan),
    )


def coverage(lists: Items, catalogue: int) -> float:
    """Return which share of a catalogue's items stands in one of the lists.

    Args:
        lists: As of `list_metrics`.
        catalogue: Items that there are.
    """
    return len(np.unique(lists[lists >= 0])) / catalogue
