"""How likely a slate was, worked out again from its candidates' values, place by place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import polars as pl

from shortlist.ordering.likeness import likeness_by
from shortlist.spec.ordering import Ordering


class Chances(NamedTuple):
    """Probabilities of a slate that was made."""

    of_slate: np.ndarray
    """Of its first 1, 2, ... places together, shape (n_shown,); 0 from a place on that its item could not be given."""
    of_best: float
    """That the first place which is not pinned goes to the best candidate; 1 where there is no such place."""
    is_best: bool
    """Whether it did."""


class _Place(NamedTuple):
    """What is true of one place, given those above it; of a pinned item's as it stands here."""

    drawn: float = 1.0
    """Probability of its item where the slate is drawn."""
    best: float = 1.0
    """Likewise of the best candidate."""
    is_best: bool = True


def chances_of(
    candidates: pl.DataFrame, values: np.ndarray, ordering: Ordering, rows: Sequence[int], pinned: Mapping[int, int]
) -> Chances:
    """Return the probabilities of a slate.

    A slate is drawn with the declared share, and in the best order otherwise. So the probability of its first places is
    `share * drawn + (1 - share) * best`, where `drawn` is the product of the places' own probabilities, and `best` is 1
    if the best order begins with them.

    Args:
        candidates: One row for each, those without a value left out.
        values: Theirs, shape (n_candidates,).
        ordering: The section.
        rows: Of the candidates that are shown, in order.
        pinned: Declared place by row, of pinned candidates that are shown.
    """
    places = list(_places(candidates, values, ordering, rows, pinned))
    share = ordering.explore.share if ordering.explore else 0.0
    drawn = np.cumprod([one.drawn for one in places])
    best = np.logical_and.accumulate([one.is_best for one in places])
    first = next((place for place, row in zip(places, rows, strict=True) if row not in pinned), _Place())
    of_slate = share * drawn + (1.0 - share) * best
    return Chances(of_slate, share * first.best + 1.0 - share, first.is_best)


def _places(
    candidates: pl.DataFrame, values: np.ndarray, ordering: Ordering, rows: Sequence[int], pinned: Mapping[int, int]
) -> Iterator[_Place]:
    limits = [limit for rule in ordering.rules if (limit := rule.limit(candidates)) is not None]
    for row, place in pinned.items():
        for limit in limits:
            limit.add(row, place)
    diversity = None
    if ordering.diversity is not None and len(values):
        diversity = ordering.diversity.utilities(likeness_by(candidates[ordering.diversity.by]), values)
    free = np.ones(len(values), np.bool_)
    free[list(pinned)] = False
    for place, row in enumerate(rows, start=1):
        if row in pinned:
            yield _Place()
        else:
            allowed = np.flatnonzero(reduce(np.logical_and, (limit.allowed(place) for limit in limits), free))
            yield _place(ordering, (values if diversity is None else diversity.now)[allowed], allowed == row)
            for limit in limits:
                limit.add(row, place)
        free[row] = False
        if diversity is not None:
            diversity.add(row)


def _place(ordering: Ordering, utilities: np.ndarray, is_shown: np.ndarray) -> _Place:
    if not is_shown.any():
        return _Place(0.0, 0.0, is_best=False)
    best = int(np.argmax(utilities))
    chances = ordering.explore.probabilities(utilities) if ordering.explore else np.ones(len(utilities))
    return _Place(float(chances[is_shown][0]), float(chances[best]), bool(is_shown[best]))
