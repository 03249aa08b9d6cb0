"""The ordering loop, which fills a slate place by place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from hashlib import blake2b
from itertools import chain

import numpy as np
import polars as pl

from shortlist.slates.ordering.base import Likeness, Utilities
from shortlist.slates.ordering.likeness import likeness_by
from shortlist.spec.ordering import Ordering
from shortlist.system.row_expressions import compile_expression, parse_expression


@dataclass(frozen=True)
class OrderedSlate:
    """Candidates in the order in which they are shown."""

    rows: np.ndarray
    """Rows of candidates, int64, shape (n_placed,); fewer than requested where caps or missing values leave fewer."""
    values: np.ndarray
    """Values after boosts, float64, shape (n_placed,)."""
    propensities: np.ndarray
    """Probability of each placed candidate, given those above it, float64, shape (n_placed,). Their product is the
    probability of the whole slate. 1 for pinned items and without exploration."""
    explored: bool
    """Whether places were drawn."""
    without_value: int
    """Number of candidates left out because their value is null or not finite."""


@dataclass
class _Value:
    """Utilities that do not change: no diversity is declared."""

    marginal: np.ndarray

    def add(self, row: int) -> None:
        pass


def check_ordering(ordering: Ordering, types: Mapping[str, pl.DataType]) -> None:
    """Check a section against the columns of candidates.

    Args:
        ordering: The section.
        types: Types of the columns, `score` among them.

    Raises:
        ExpressionError: A formula, a condition or a rule does not fit them.
    """
    parse_expression(ordering.value, types, "number")
    for rule in ordering.rules:
        rule.check(types)
    if ordering.diversity is not None:
        ordering.diversity.check(types)


def columns_read(ordering: Ordering) -> tuple[str, ...]:
    """Return the columns of candidates that a section reads, each once."""
    formula = compile_expression(ordering.value).columns
    diversity = () if ordering.diversity is None else ordering.diversity.reads
    return tuple(dict.fromkeys(chain(formula, *(rule.reads for rule in ordering.rules), diversity)))


def compute_values(candidates: pl.DataFrame, ordering: Ordering) -> np.ndarray:
    """Return the values of candidates by the formula and the boosts, float64, shape (n_candidates,); NaN for null."""
    formula = compile_expression(ordering.value).evaluate_numbers(candidates)
    return reduce(lambda changed, rule: rule.adjust(candidates, changed), ordering.rules, formula)


def order(
    candidates: pl.DataFrame, ordering: Ordering, k: int, request: str, likeness: Likeness | None = None
) -> OrderedSlate:
    """Return the slate of a request; the same request and candidates give exactly the same slate.

    Pinned items keep their places, count for caps from the start, and for diversity once their place is reached.

    Args:
        candidates: One row per candidate: `score` and the other columns that the section reads. May be empty.
        ordering: The section, checked against the columns.
        k: Number of places.
        request: Id of the request, which seeds the draws.
        likeness: Likeness of the candidates by the column of `ordering.diversity`; None: it is computed.
    """
    values = compute_values(candidates, ordering)
    usable = np.isfinite(values)
    without_value = int(len(values) - usable.sum())
    if without_value:
        slate = order(candidates.filter(usable), ordering, k, request)
        return OrderedSlate(
            np.flatnonzero(usable)[slate.rows], slate.values, slate.propensities, slate.explored, without_value
        )
    utilities: Utilities = _Value(values)
    if ordering.diversity is not None and len(values):
        alike = likeness_by(candidates[ordering.diversity.by]) if likeness is None else likeness
        utilities = ordering.diversity.utilities(alike, values)
    draws = None if ordering.explore is None else np.random.Generator(np.random.Philox(key=_seed(request)))
    return _fill(candidates, ordering, values, utilities, k, draws)


def _fill(
    candidates: pl.DataFrame, ordering: Ordering, values: np.ndarray, utilities: Utilities, k: int,
    draws: np.random.Generator | None,
) -> OrderedSlate:  # fmt: skip
    k = min(k, len(values))
    pins = {
        place: row for rule in ordering.rules for place, row in rule.pinned(candidates).items() if place <= k
    }  # fmt: skip
    limits = [limit for rule in ordering.rules if (limit := rule.limit(candidates)) is not None]
    for place, row in pins.items():
        for limit in limits:
            limit.add(row, place)
    free = np.ones(len(values), np.bool_)
    free[list(pins.values())] = False
    explore = ordering.explore
    explored = explore is not None and draws is not None and draws.random() < explore.share
    # Probability of the places so far if they are drawn, and whether they are in the best order.
    drawn_probability, best_so_far = 1.0, True
    rows: list[int] = []
    propensities: list[float] = []
    while len(rows) < k:
        place = len(rows) + 1
        allowed = np.flatnonzero(reduce(np.logical_and, (limit.allowed(place) for limit in limits), free))
        # Where caps leave no candidate, pinned items of later places move up.
        if pins and (place in pins or not len(allowed)):
            row, propensity = pins.pop(min(pins)), 1.0
        elif not len(allowed):
            break
        else:
            allowed_utilities = utilities.marginal[allowed]
            best = int(np.argmax(allowed_utilities))
            index, propensity = best, 1.0
            if explore is not None:
                probabilities = explore.probabilities(allowed_utilities)
                if explored and draws is not None:
                    index = _draw(probabilities, draws)
                probability_above = explore.share * drawn_probability + (1.0 - explore.share) * best_so_far
                drawn_probability *= float(probabilities[index])
                best_so_far = best_so_far and index == best
                propensity = (
                    explore.share * drawn_probability + (1.0 - explore.share) * best_so_far
                ) / probability_above
            row = int(allowed[index])
            free[row] = False
            for limit in limits:
                limit.add(row, place)
        utilities.add(row)
        rows.append(row)
        propensities.append(propensity)
    placed = np.array(rows, np.int64)
    return OrderedSlate(placed, values[placed], np.array(propensities), explored, 0)


def _draw(probabilities: np.ndarray, draws: np.random.Generator) -> int:
    cumulative = np.cumsum(probabilities)
    index = int(np.searchsorted(cumulative, draws.random() * cumulative[-1], side="right"))
    # By rounding, the draw may lie beyond the last candidate with a positive probability.
    return min(index, int(np.flatnonzero(probabilities)[-1]))


def _seed(request: str) -> int:
    return int.from_bytes(blake2b(request.encode(), digest_size=16).digest())
