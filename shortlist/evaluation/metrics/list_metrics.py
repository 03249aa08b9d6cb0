"""Metrics of lists of items: recall, hit rate, nDCG, reciprocal rank, novelty and coverage, in numpy.

ranx and RecTools give the same numbers (`make bench NAME=list_metrics`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shortlist.evaluation.metrics.pointwise import Floats
from shortlist.evaluation.metrics.ranking import NDCG_AT

Items = npt.NDArray[np.int32]


class Relevant(NamedTuple):
    """Items that each query's user took."""

    query: npt.NDArray[np.int64]
    """Number of the query, shape (R,)."""
    items: Items
    """Row of the item, each once per query, shape (R,); -1: an item that no list can hold."""


class ListMetrics(NamedTuple):
    """One number per query, shape (B,); NaN for a query without relevant items."""

    items: Floats
    """Number of items in the list."""
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
        relevant: Items that the users took.
        popularity: Share of users who took each item before, shape (items,); above 0.

    >>> lists = np.array([[4, 2, 7]], np.int32)
    >>> metrics = list_metrics(lists, Relevant(np.array([0, 0]), np.array([2, 9], np.int32)), np.full(10, 0.25))
    >>> metrics.recall.tolist(), metrics.reciprocal_rank.tolist(), metrics.novelty.tolist()
    ([0.5], [0.5], [2.0])
    """
    queries = len(lists)
    stride = max(int(lists.max(initial=0)), int(relevant.items.max(initial=0))) + 1
    in_catalogue = relevant.items >= 0
    relevant_keys = relevant.query[in_catalogue] * stride + relevant.items[in_catalogue]
    list_keys = np.arange(queries)[:, None] * stride + lists
    hits = np.isin(list_keys, relevant_keys) & (lists >= 0)
    relevant_counts = np.bincount(relevant.query, minlength=queries).astype(np.float64)
    relevant_counts[relevant_counts == 0] = np.nan
    top_hits = hits[:, :NDCG_AT]
    discounts = 1 / np.log2(np.arange(NDCG_AT) + 2)
    ideal = np.concatenate([[np.nan], np.cumsum(discounts)])
    ideal_gains = ideal[np.nan_to_num(np.minimum(relevant_counts, NDCG_AT)).astype(np.int64)]
    has_hit = hits.any(axis=1)
    top_items = lists[:, :NDCG_AT]
    is_item = top_items >= 0
    bits = np.where(is_item, -np.log2(popularity[np.maximum(top_items, 0)]), 0.0).sum(axis=1)
    undefined = np.where(np.isnan(relevant_counts), np.nan, 0.0)
    return ListMetrics(
        items=(lists >= 0).sum(axis=1).astype(np.float64),
        recall=hits.sum(axis=1) / relevant_counts,
        hit_rate_at_10=top_hits.any(axis=1).astype(np.float64) + undefined,
        ndcg_at_10=top_hits @ discounts[: top_hits.shape[1]] / ideal_gains,
        reciprocal_rank=np.where(has_hit, 1 / (hits.argmax(axis=1) + 1), 0.0) + undefined,
        novelty=np.where(is_item.any(axis=1), bits / np.maximum(is_item.sum(axis=1), 1), np.nan),
    )


def coverage(lists: Items, catalogue: int) -> float:
    """Return the share of a catalogue's items that are in one of the lists.

    Args:
        lists: As for `list_metrics`.
        catalogue: Number of items in the catalogue.
    """
    return len(np.unique(lists[lists >= 0])) / catalogue
