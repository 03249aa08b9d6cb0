"""Check of a slate against the spec: every filter, ordering rule and propensity, from the answer alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from shortlist.contracts import Columns
from shortlist.slates.filters.base import FilterRequest
from shortlist.slates.ordering.base import ShownSlate
from shortlist.slates.ordering.order import compute_values
from shortlist.slates.probabilities import SlateProbabilities, slate_probabilities
from shortlist.slates.recommender import Recommender, Slate, SlateCandidates, SlateRequest

Scores = Mapping[str, np.ndarray]
"""Scores by column, `score` among them; each of shape (n_candidates,)."""


class SlateCheck(NamedTuple):
    """Problems of a slate, and its probabilities."""

    problems: tuple[str, ...]
    """Problems, each as a sentence; empty: none."""
    probabilities: SlateProbabilities | None
    """Probabilities of the slate; None for an empty slate, and for one with problems other than propensities."""


def check_slate(
    stages: Recommender, request: SlateRequest, found_candidates: SlateCandidates, slate: Slate, scores: Scores
) -> SlateCheck:
    """Return the problems and probabilities of a slate.

    Args:
        stages: Stages that made the slate.
        request: The answered request.
        found_candidates: Candidates of the request.
        slate: The slate.
        scores: Scores of the candidates.
    """
    scored = found_candidates.rows.hstack(
        [pl.Series(name, np.asarray(column_scores, np.float64)) for name, column_scores in scores.items()]
    )
    values = compute_values(scored, stages.ordering)
    usable = np.isfinite(values)
    if len(slate.removed.items):
        usable &= ~scored[Columns.ITEM].is_in(slate.removed.items.implode()).to_numpy()
    candidates = scored if usable.all() else scored.filter(usable)
    shown_slate = _shown_slate(stages, request, candidates, slate)
    problems = (
        *_iter_removal_problems(stages, request, found_candidates, slate),
        *_iter_problems(stages, request, slate, shown_slate),
    )
    if problems or shown_slate is None or not len(slate.items):
        return SlateCheck(problems, None)
    likeness = found_candidates.likeness if usable.all() else None  # of these candidates only
    probabilities = slate_probabilities(
        candidates, values[usable], stages.ordering, shown_slate.rows, shown_slate.pinned, likeness
    )
    return SlateCheck(tuple(_iter_propensity_problems(slate.propensities, probabilities)), probabilities)


def _iter_problems(
    stages: Recommender, request: SlateRequest, slate: Slate, shown_slate: ShownSlate | None
) -> Iterator[str]:
    items = slate.items
    if len({*items.to_list()}) != len(items):
        yield "an item is shown twice"
    if shown_slate is None:
        yield "an item is shown that is no candidate"
        return
    filter_request, shown_rows = _filter_request(stages, request), shown_slate.candidates[list(shown_slate.rows)]
    for rule in stages.filters.rules:
        if count := rule.count_violations(shown_rows, filter_request):
            yield f"{count} items are shown that filter '{rule.name}' removes"
    if len(items) > request.k:
        yield f"{len(items)} items are shown; {request.k} were asked for"
    yield from (problem for rule in stages.ordering.rules if (problem := rule.find_violation(shown_slate)) is not None)
    if not bool(np.all((slate.propensities > 0) & (slate.propensities <= 1 + 1e-9))):
        yield "a propensity is not between 0 and 1"


def _iter_removal_problems(
    stages: Recommender, request: SlateRequest, found_candidates: SlateCandidates, slate: Slate
) -> Iterator[str]:
    """Yield filters that removed items before ordering which they keep."""
    if not len(slate.removed.items):
        return
    by_filter = pl.Series(slate.removed.filters, dtype=pl.String())
    for rule in stages.filters.rules:
        items = slate.removed.items.filter(by_filter == rule.name)
        removed = found_candidates.rows.filter(pl.col(Columns.ITEM).is_in(items.implode()))
        if rule.count_violations(removed, _filter_request(stages, request)) != len(items):
            yield f"filter '{rule.name}' removed what it keeps"


def _filter_request(stages: Recommender, request: SlateRequest) -> FilterRequest:
    past = request.history if request.latest is None else request.latest
    return FilterRequest(request.now, past, stages.lists)


def _shown_slate(
    stages: Recommender, request: SlateRequest, candidates: pl.DataFrame, slate: Slate
) -> ShownSlate | None:
    """Return the slate by the rows of candidates; None where an item is no candidate."""
    places = {item: row for row, item in enumerate(candidates[Columns.ITEM].to_list())}
    items = slate.items.to_list()
    if not {*items} <= places.keys():
        return None
    rows = [places[item] for item in items]
    pins = {row: place for rule in stages.ordering.rules for place, row in rule.pinned(candidates).items()}
    slate_length = min(request.k, candidates.height)
    pinned = {row: place for row, place in pins.items() if place <= slate_length and row in rows}
    limited = any(rule.limit(candidates) is not None for rule in stages.ordering.rules)
    return ShownSlate(candidates, rows, pinned, request.k, limited)


def _iter_propensity_problems(logged: np.ndarray, probabilities: SlateProbabilities) -> Iterator[str]:
    is_right = np.isclose(np.cumprod(logged), probabilities.of_slate, rtol=1e-6, atol=0.0)
    if not is_right.all():
        yield f"the propensity of place {int(np.argmin(is_right)) + 1} is not the probability with which it was filled"
