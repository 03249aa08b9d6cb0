"""Whether a slate keeps the rules of the spec: every filter, rule and probability, checked on the answer alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from shortlist.contracts import Columns
from shortlist.filters.base import FilterRequest
from shortlist.ordering.base import ShownSlate
from shortlist.ordering.order import values_of
from shortlist.recommending.chances import Chances, chances_of
from shortlist.recommending.recommender import FoundCandidates, Recommender, Slate, SlateRequest

Scores = Mapping[str, np.ndarray]
"""By column, `score` among them; each of shape (n_candidates,)."""


class Checked(NamedTuple):
    """What is wrong with a slate, and how likely it was."""

    broken: tuple[str, ...]
    """Each as a sentence; empty: nothing."""
    chances: Chances | None
    """None for a slate of which more is wrong than its probabilities, and for an empty one."""


def broken_rules(
    stages: Recommender, request: SlateRequest, found: FoundCandidates, slate: Slate, scores: Scores
) -> Checked:
    """Return what is wrong with a slate.

    Args:
        stages: That made it.
        request: That was answered.
        found: Its candidates.
        slate: The answer.
        scores: Of the candidates.
    """
    every = found.rows.with_columns(pl.Series(name, own, pl.Float64) for name, own in scores.items())
    values = values_of(every, stages.ordering)
    usable = np.isfinite(values) & ~every[Columns.ITEM].is_in(slate.removed.items.implode()).to_numpy()
    candidates = every.filter(usable)
    broken = (*_kept_late(stages, request, found, slate), *_broken(stages, request, candidates, slate))
    if broken or not len(slate.items):
        return Checked(broken, None)
    shown = _shown(stages, request, candidates, slate)
    chances = chances_of(candidates, values[usable], stages.ordering, shown.rows, shown.pinned)
    return Checked(tuple(_wrong_propensity(slate.propensities, chances)), chances)


def _broken(stages: Recommender, request: SlateRequest, candidates: pl.DataFrame, slate: Slate) -> Iterator[str]:
    items = slate.items
    if items.n_unique() != len(items):
        yield "an item is shown twice"
    if not items.is_in(candidates[Columns.ITEM].implode()).all():
        yield "an item is shown that is no candidate"
        return
    shown = _shown(stages, request, candidates, slate)
    known = _known(stages, request)
    for declared in stages.filters.rules:
        if count := declared.broken(candidates[list(shown.rows)], known):
            yield f"{count} items are shown that filter '{declared.name}' removes"
    if len(items) > request.k:
        yield f"{len(items)} items are shown; {request.k} were asked for"
    yield from (problem for rule in stages.ordering.rules if (problem := rule.broken(shown)) is not None)
    if not bool(np.all((slate.propensities > 0) & (slate.propensities <= 1 + 1e-9))):
        yield "a propensity is not between 0 and 1"


def _kept_late(stages: Recommender, request: SlateRequest, found: FoundCandidates, slate: Slate) -> Iterator[str]:
    """Look whether what was removed before ordering had to be."""
    by_filter = pl.Series(slate.removed.filters, dtype=pl.String())
    for declared in stages.filters.rules:
        items = slate.removed.items.filter(by_filter == declared.name)
        removed = found.rows.filter(pl.col(Columns.ITEM).is_in(items.implode()))
        if declared.broken(removed, _known(stages, request)) != len(items):
            yield f"filter '{declared.name}' removed what it keeps"


def _known(stages: Recommender, request: SlateRequest) -> FilterRequest:
    past = request.history if request.latest is None else request.latest
    return FilterRequest(request.now, past, stages.lists)


def _shown(stages: Recommender, request: SlateRequest, candidates: pl.DataFrame, slate: Slate) -> ShownSlate:
    places = dict(zip(candidates[Columns.ITEM], range(candidates.height), strict=True))
    rows = [places[item] for item in slate.items]
    pins = {row: place for rule in stages.ordering.rules for place, row in rule.pinned(candidates).items()}
    most = min(request.k, candidates.height)
    pinned = {row: place for row, place in pins.items() if place <= most and row in rows}
    limited = any(rule.limit(candidates) is not None for rule in stages.ordering.rules)
    return ShownSlate(candidates, rows, pinned, request.k, limited)


def _wrong_propensity(logged: np.ndarray, chances: Chances) -> Iterator[str]:
    right = np.isclose(np.cumprod(logged), chances.of_slate, rtol=1e-6, atol=0.0)
    if not right.all():
        yield f"the propensity of place {int(np.argmin(right)) + 1} is not the probability with which it was filled"
