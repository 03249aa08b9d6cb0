"""Probability of a slate, computed again from its candidates' values, place by place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import polars as pl

from shortlist.slates.ordering.base import Likeness
from shortlist.slates.ordering.likeness import likeness_by
from shortlist.spec.ordering import Ordering


class SlateProbabilities(NamedTuple):
    """Probabilities of a slate that was made."""

    of_slate: np.ndarray
    """Joint probability of the first 1, 2, ... places, shape (n_shown,); 0 from the first place whose item was not
    allowed."""
    of_best: float
    """Probability that the first unpinned place goes to the best candidate; 1 where there is no such place."""
    is_best: bool
    """Whether the best candidate got the first unpinned place."""


class _PlaceProbabilities(NamedTuple):
    """Probabilities of one place, given those above it; the defaults are those of a pinned item."""

    drawn_probability: float = 1.0
    """Probability of its item where the slate is drawn."""
    best: float = 1.0
    """Probability of the best candidate where the slate is drawn."""
    is_best: bool = True


def slate_probabilities(
    candidates: pl.DataFrame, values: np.ndarray, ordering: Ordering, rows: Sequence[int], pinned: Mapping[int, int],
    likeness: Likeness | None = None,
) -> SlateProbabilities:  # fmt: skip
    """Return the probabilities of a slate.

    A slate is drawn with the declared share, and in the best order otherwise. The probability of its first places is
    therefore `share * drawn + (1 - share) * best`, where `drawn` is the product of the places' own probabilities, and
    `best` is 1 if the best order begins with them.

    Args:
        candidates: One row per candidate with a value.
        values: Values of the candidates, shape (n_candidates,).
        ordering: The section.
        rows: Rows of the candidates that are shown, in order.
        pinned: Declared place by row, of pinned candidates that are shown.
        likeness: Likeness of the candidates by the column of `ordering.diversity`; None: it is computed.
    """
    if ordering.diversity is not None and len(values):
        likeness = likeness_by(candidates[ordering.diversity.by]) if likeness is None else likeness
    places = list(_iter_places(candidates, values, ordering, rows, pinned, likeness))
    share = ordering.explore.share if ordering.explore else 0.0
    drawn_probabilities = np.cumprod([place.drawn_probability for place in places])
    best = np.logical_and.accumulate([place.is_best for place in places])
    first = next((place for place, row in zip(places, rows, strict=True) if row not in pinned), _PlaceProbabilities())
    of_slate = share * drawn_probabilities + (1.0 - share) * best
    return SlateProbabilities(of_slate, share * first.best + 1.0 - share, first.is_best)


def _iter_places(
    candidates: pl.DataFrame, values: np.ndarray, ordering: Ordering, rows: Sequence[int], pinned: Mapping[int, int],
    likeness: Likeness | None,
) -> Iterator[_PlaceProbabilities]:  # fmt: skip
    limits = [limit for rule in ordering.rules if (limit := rule.limit(candidates)) is not None]
    for row, place in pinned.items():
        for limit in limits:
            limit.add(row, place)
    diversity = None
    if ordering.diversity is not None and likeness is not None:
        diversity = ordering.diversity.utilities(likeness, values)
    free = np.ones(len(values), np.bool_)
    free[list(pinned)] = False
    draw = ordering.explore.draw_probabilities(candidates) if ordering.explore else None
    for place, row in enumerate(rows, start=1):
        if row in pinned:
            yield _PlaceProbabilities()
        else:
            allowed = np.flatnonzero(reduce(np.logical_and, (limit.allowed(place) for limit in limits), free))
            utilities = (values if diversity is None else diversity.marginal)[allowed]
            draw_probabilities = draw(allowed, utilities) if draw and len(allowed) else np.ones(len(allowed))
            yield _place_probabilities(utilities, draw_probabilities, allowed == row)
            for limit in limits:
                limit.add(row, place)
        free[row] = False
        if diversity is not None:
            diversity.add(row)


def _place_probabilities(
    utilities: np.ndarray, draw_probabilities: np.ndarray, is_shown: np.ndarray
) -> _PlaceProbabilities:
    """Return the probabilities of one place.

    Args:
        utilities: Utilities of the allowed candidates.
        draw_probabilities: Probability of each where the slate is drawn.
        is_shown: Whether each is the shown one.
    """
    if not is_shown.any():
        return _PlaceProbabilities(0.0, 0.0, is_best=False)
    best = int(np.argmax(utilities))
    return _PlaceProbabilities(
        float(draw_probabilities[is_shown][0]), float(draw_probabilities[best]), bool(is_shown[best])
    )
