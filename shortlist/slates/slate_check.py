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
    scored = found_candidates.rows.with_columns(
        pl.Series(name, column_scores, pl.Float64) for name, column_scores in scores.items()
    )
    values = compute_values(scored, stages.ordering)
    usable = np.isfinite(values) & ~scored[Columns.ITEM].is_in(slate.removed.items.implode()).to_numpy()
    candidates = scored.filter(usable)
    problems = (
        *_iter_removal_problems(stages, request, found_candidates, slate),
        *_iter_problems(stages, request, candidates, slate),
    )
    if problems or not len(slate.items):
        return SlateCheck(problems, None)
    shown_slate = _shown_slate(stages, request, candidates, slate)
    probabilities = slate_probabilities(
        candidates, values[usable], stages.ordering, shown_slate.rows, shown_slate.pinned
    )
    return SlateCheck(tuple(_iter_propensity_problems(slate.propensities, probabilities)), probabilities)


def _iter_problems(stages: Recommender, request: SlateRequest, candidates: pl.DataFrame, slate: Slate) -> Iterator[str]:
    items = slate.items
    if items.n_unique() != len(items):
        yield "an item is shown twice"
    if not items.is_in(candidates[Columns.ITEM].implode()).all():
        yield "an item is shown that is no candidate"
        return
    shown_slate = _shown_slate(stages, request, candidates, slate)
    filter_request = _filter_request(stages, request)
    for rule in stages.filters.rules:
        if count := rule.count_violations(candidates[list(shown_slate.rows)], filter_request):
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
    by_filter = pl.Series(slate.removed.filters, dtype=pl.String())
    for rule in stages.filters.rules:
        items = slate.removed.items.filter(by_filter == rule.name)
        removed = found_candidates.rows.filter(pl.col(Columns.ITEM).is_in(items.implode()))
        if rule.count_violations(removed, _filter_request(stages, request)) != len(items):
            yield f"filter '{rule.name}' removed what it keeps"


def _filter_request(stages: Recommender, request: SlateRequest) -> FilterRequest:
    past = request.history if request.latest is None else request.latest
    return FilterRequest(request.now, past, stages.lists)


def _shown_slate(stages: Recommender, request: SlateRequest, candidates: pl.DataFrame, slate: Slate) -> ShownSlate:
    places = dict(zip(candidates[Columns.ITEM], range(candidates.height), strict=True))
    rows = [places[item] for item in slate.items]
    pins = {row: place for rule in stages.ordering.rules for place, row in rule.pinned(candidates).items()}
    slate_length = min(request.k, candidates.height)
    pinned = {row: place for row, place in pins.items() if place <= slate_length and row in rows}
    limited = any(rule.limit(candidates) is not None for rule in stages.ordering.rules)
    return ShownSlate(candidates, rows, pinned, request.k, limited)


def _iter_propensity_problems(logged: np.ndarray, probabilities: SlateProbabilities) -> Iterator[str]:
    is_right = np.isclose(np.cumprod(logged), probabilities.of_slate, rtol=1e-6, atol=0.0)
    if not is_right.all():
        yield f"the propensity of place {int(np.argmin(is_right)) + 1} is not the probability with which it was filled"
