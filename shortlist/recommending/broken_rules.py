"""Whether a slate keeps what the spec promises: every filter, rule and probability, checked on the answer alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from shortlist.contracts import Columns
from shortlist.filters.apply import apply_filters
from shortlist.filters.base import FilterRequest
from shortlist.ordering.base import OrderingRule
from shortlist.recommending.recommender import FoundCandidates, Recommender, Slate, SlateRequest


def broken_rules(
    stages: Recommender, request: SlateRequest, found: FoundCandidates, slate: Slate
) -> tuple[str, ...]:  # fmt: skip
    """Return what is wrong with a slate, each as a sentence; empty: nothing.

    Args:
        stages: That made it.
        request: That was answered.
        found: Its candidates.
        slate: The answer.
    """
    return tuple(_broken(stages, request, found, slate))


def _broken(stages: Recommender, request: SlateRequest, found: FoundCandidates, slate: Slate) -> Iterator[str]:
    items = slate.items
    if items.n_unique() != len(items):
        yield "an item is shown twice"
    rows = [place for item in items if (place := found.rows[Columns.ITEM].index_of(item)) is not None]
    if len(rows) != len(items):
        yield "an item is shown that is no candidate"
        return
    shown = found.rows[rows]
    known = FilterRequest(request.now, request.history, stages.lists)
    yield from (
        f"{count} items are shown that filter '{name}' removes"
        for name, count in apply_filters(shown, stages.filters.rules, known).counts.items()
        if count
    )
    if len(items) > request.k:
        yield f"{len(items)} items are shown; {request.k} were asked for"
    pinned = {row for rule in stages.ordering.rules for row in rule.pinned(found.rows).values()}
    for rule in stages.ordering.rules:
        yield from _broken_rule(rule, found.rows, rows, pinned, full=len(rows) == request.k)
    chances = slate.propensities
    if len(chances) and not bool(np.all((chances > 0) & (chances <= 1 + 1e-9))):
        yield "a propensity is not between 0 and 1"


def _broken_rule(
    rule: OrderingRule, candidates: pl.DataFrame, rows: list[int], pinned: set[int], *, full: bool
) -> Iterator[str]:
    for place, row in rule.pinned(candidates).items():
        # In a short slate pinned items of later places move up.
        if full and place <= len(rows) and rows[place - 1] != row:
            yield f"the item that is pinned to place {place} is not there"
    limit = rule.limit(candidates)
    if limit is None:
        return
    for place, row in enumerate(rows, start=1):
        if row not in pinned and not limit.allowed(place)[row]:
            yield f"place {place} goes beyond a {getattr(rule, 'kind', 'rule')}"
            return
        limit.add(row, place)
