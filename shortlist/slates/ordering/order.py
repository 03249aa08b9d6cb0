"""The ordering loop, which fills a slate place by place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from hashlib import blake2b
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from shortlist.slates.ordering.base import Exploration, Likeness, Utilities
from shortlist.slates.ordering.likeness import likeness_by
from shortlist.spec.ordering import Ordering
from shortlist.system.row_expressions import compile_expression, parse_expression

_REPLAYS: Final = 32
"""Draws that are replayed for the probabilities of a drawn slate's places."""


class PlacePropensities(NamedTuple):
    """Probability of each item of a slate at its place, over all slates of the request; shape (n_placed,) each."""

    probabilities: np.ndarray
    errors: np.ndarray
    """0 where the probability is exact, the standard error of replayed draws, or, in a slate that was not drawn, half
    the width of the bounds within which it lies."""


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
    place_propensities: Callable[[], PlacePropensities]
    """Function that computes the probability of each placed candidate at its place."""
    best_rows: Callable[[], np.ndarray]
    """Function that returns the rows in the order without draws, int64."""


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
    for part in (ordering.diversity, ordering.explore):
        if part is not None:
            part.check(types)


def columns_read(ordering: Ordering) -> tuple[str, ...]:
    """Return the columns of candidates that a section reads, each once."""
    formula = compile_expression(ordering.value).columns
    further = [part.reads for part in (ordering.diversity, ordering.explore) if part is not None]
    return tuple(dict.fromkeys(chain(formula, *(rule.reads for rule in ordering.rules), *further)))


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
        slate, usable_rows = order(candidates.filter(usable), ordering, k, request), np.flatnonzero(usable)
        return replace(
            slate,
            rows=usable_rows[slate.rows],
            without_value=without_value,
            best_rows=lambda: usable_rows[slate.best_rows()],
        )
    if ordering.diversity is not None and len(values):
        likeness = likeness_by(candidates[ordering.diversity.by]) if likeness is None else likeness
    filling = _Filling(candidates, ordering, values, likeness, min(k, len(values)))
    draws = None
    if ordering.explore is not None:
        draws = np.random.Generator(np.random.Philox(key=_seed(request)))
        draws = draws if draws.random() < ordering.explore.share else None
    rows, conditional, drawn = filling.fill(draws)
    return OrderedSlate(
        rows,
        values[rows],
        conditional,
        explored=draws is not None,
        without_value=0,
        place_propensities=lambda: filling.place_propensities(rows, drawn, None if draws is None else request),
        best_rows=lambda: rows if draws is None else filling.best_rows,
    )


@dataclass(frozen=True)
class _Filling:
    """Fills the places of one request's slate, as often as asked."""

    candidates: pl.DataFrame
    ordering: Ordering
    values: np.ndarray
    likeness: Likeness | None
    k: int

    def fill(
        self, draws: np.random.Generator | None, watched: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the placed rows; their probabilities given those above; and these where the slate is drawn.

        Args:
            draws: Generator of the draws; None: the best order.
            watched: Rows whose probability at their place is returned last, in the place of those of the placed rows.
        """
        ordering, explore = self.ordering, self.ordering.explore
        pins = {place: row for place, row in self._pins.items() if place <= self.k}
        limits = [limit for rule in ordering.rules if (limit := rule.limit(self.candidates)) is not None]
        for place, row in pins.items():
            for limit in limits:
                limit.add(row, place)
        free = np.ones(len(self.values), np.bool_)
        free[list(pins.values())] = False
        utilities: Utilities = _Value(self.values)
        if ordering.diversity is not None and self.likeness is not None:
            utilities = ordering.diversity.utilities(self.likeness, self.values)
        # Probability of the places so far if they are drawn, and whether they are in the best order.
        drawn_probability, best_so_far = 1.0, True
        rows: list[int] = []
        propensities: list[float] = []
        drawn: list[float] = []
        while len(rows) < self.k:
            place = len(rows) + 1
            (allowed,) = reduce(np.logical_and, (limit.allowed(place) for limit in limits), free).nonzero()
            # Where caps leave no candidate, pinned items of later places move up.
            if pins and (place in pins or not len(allowed)):
                row, propensity = pins.pop(min(pins)), 1.0
                drawn.append(float(watched is None or row == watched[place - 1]))
            elif not len(allowed):
                break
            else:
                allowed_utilities = utilities.marginal[allowed]
                best = int(allowed_utilities.argmax())
                index, propensity = best, 1.0
                if explore is not None:
                    probabilities = self._draw_probabilities(allowed, allowed_utilities)
                    if draws is not None:
                        index = _draw(probabilities, draws)
                    probability_above = explore.share * drawn_probability + (1.0 - explore.share) * best_so_far
                    drawn_probability *= float(probabilities[index])
                    best_so_far = best_so_far and index == best
                    probability = explore.share * drawn_probability + (1.0 - explore.share) * best_so_far
                    # Zero above: the best slate of an exploration that never shows it.
                    propensity = probability / probability_above if probability_above else 0.0
                    drawn.append(
                        float(
                            probabilities[index]
                            if watched is None
                            else probabilities[allowed == watched[place - 1]].sum()
                        )
                    )
                row = int(allowed[index])
                free[row] = False
                for limit in limits:
                    limit.add(row, place)
            rows.append(row)
            propensities.append(propensity)
            if watched is not None and len(rows) == len(watched):
                break
            if len(rows) < self.k:
                utilities.add(row)
        return np.array(rows, np.int64), np.array(propensities), np.array(drawn)

    def place_propensities(self, rows: np.ndarray, drawn: np.ndarray, request: str | None) -> PlacePropensities:
        """Return the probability of each placed row at its place.

        Args:
            rows: The placed rows.
            drawn: Probability of each, given those above, where the slate is drawn.
            request: Id of the request, which seeds the replays; None: the slate was not drawn.
        """
        explore = self.ordering.explore
        if explore is None or not len(rows):
            return PlacePropensities(np.ones(len(rows)), np.zeros(len(rows)))
        if request is None:
            # Drawing the item at its place is at least as likely as drawing all places above as well.
            least = explore.share * np.cumprod(drawn) + 1 - explore.share
            return PlacePropensities((1 + least) / 2, (1 - least) / 2)
        replays = np.random.Generator(np.random.Philox(key=_seed(f"{request} again")))
        drawn_mean, drawn_error = self._drawn_places(rows, drawn, replays)
        best_rows = self.best_rows
        is_best = np.zeros(len(rows))
        is_best[: len(best_rows)] = rows[: len(best_rows)] == best_rows[: len(rows)]
        return PlacePropensities(
            explore.share * drawn_mean + (1 - explore.share) * is_best, explore.share * drawn_error
        )

    def _drawn_places(
        self, rows: np.ndarray, drawn: np.ndarray, draws: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the probability of each placed row at its place where the slate is drawn, and the error of each.

        By the closed form of an exploration that has one and is not limited; else as the mean of the probabilities in
        replayed draws, each given what it drew above. A row that all replays have placed before has the draw itself as
        one more of them: what is shown has no probability of 0.
        """
        explore, ordering = self.ordering.explore, self.ordering
        assert explore is not None
        if (
            ordering.diversity is None
            and explore.new_items is None
            and not self._pins
            and all(rule.limit(self.candidates) is None for rule in ordering.rules)
        ):
            exact = explore.place_probabilities(self.values, rows, self.k)
            if exact is not None:
                return exact[np.arange(len(rows)), np.arange(len(rows))], np.zeros(len(rows))
        replays = np.zeros((_REPLAYS, len(rows)))
        for replay in replays:
            _, _, replayed = self.fill(draws, rows)
            replay[: len(replayed)] = replayed
        mean, error = replays.mean(axis=0), replays.std(axis=0, ddof=1) / np.sqrt(_REPLAYS)
        with_draw = drawn / (_REPLAYS + 1)
        return np.where(mean > 0, mean, with_draw), np.where(mean > 0, error, with_draw)

    @cached_property
    def best_rows(self) -> np.ndarray:
        """The rows that are placed where nothing is drawn."""
        rows, *_ = self.fill(None)
        return rows

    @cached_property
    def _draw_probabilities(self) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        explore: Exploration | None = self.ordering.explore
        assert explore is not None
        return explore.draw_probabilities(self.candidates)

    @cached_property
    def _pins(self) -> dict[int, int]:
        return {place: row for rule in self.ordering.rules for place, row in rule.pinned(self.candidates).items()}


def _draw(probabilities: np.ndarray, draws: np.random.Generator) -> int:
    cumulative = np.add.accumulate(probabilities)
    index = int(cumulative.searchsorted(draws.random() * cumulative[-1], side="right"))
    # By rounding, the draw may lie beyond the last candidate with a positive probability.
    return index if index < len(probabilities) else int(np.flatnonzero(probabilities)[-1])


def _seed(request: str) -> int:
    return int.from_bytes(blake2b(request.encode(), digest_size=16).digest())
