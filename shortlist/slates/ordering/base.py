"""Interfaces of ordering rules, diversity measures and explorations; the ordering loop knows no kind by name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import polars as pl
from pydantic import Field

from shortlist.contracts import did_you_mean
from shortlist.spec.base import Section
from shortlist.system.row_expressions import ExpressionError, compile_expression, parse_expression


class PlaceLimit(Protocol):
    """Limit on which candidates may take the next place, given those that are placed."""

    def allowed(self, place: int) -> np.ndarray:
        """Return whether each candidate may take a place, counted from 1: bool, shape (n_candidates,)."""
        ...

    def add(self, row: int, place: int) -> None:
        """Count a candidate that was placed."""
        ...


class ShownSlate(NamedTuple):
    """A finished slate, for checks of the rules."""

    candidates: pl.DataFrame
    """One row per allowed candidate with a value."""
    rows: Sequence[int]
    """Rows of the candidates that are shown, in order."""
    pinned: Mapping[int, int]
    """Declared place by row, of all pinned candidates that are shown."""
    k: int
    """Number of places that were requested."""
    limited: bool
    """Whether a rule limits which candidates may be shown. Where none is left, pinned items of later places move up."""


class OrderingRule(Section):
    """A rule of the spec's `ordering.rules`; kinds override the methods that they need."""

    def check(self, types: Mapping[str, pl.DataType]) -> None:
        """Check the rule against the columns of candidates.

        Raises:
            ShortlistError: A column is missing or of a type that the rule cannot use.
        """

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns of candidates that the rule reads."""
        return ()

    def adjust(self, candidates: pl.DataFrame, values: np.ndarray) -> np.ndarray:
        """Return the candidates' values after this rule, float64, shape (n_candidates,)."""
        return values

    @property
    def fixed(self) -> Mapping[int, int | str]:
        """Items with a fixed place in every slate, by place, counted from 1."""
        return {}

    def pinned(self, candidates: pl.DataFrame) -> Mapping[int, int]:
        """Return rows of candidates with a fixed place, by place, counted from 1."""
        return {}

    def limit(self, candidates: pl.DataFrame) -> PlaceLimit | None:
        """Return the rule's limit on places; None: it has none."""
        return None

    def find_violation(self, slate: ShownSlate) -> str | None:
        """Return how a slate breaks the rule, as a sentence; None: it does not. Kinds check by another algorithm.

        Pinned items keep their places beyond a limit, and count towards it.
        """
        limit = self.limit(slate.candidates)
        for place, row in enumerate(slate.rows if limit is not None else (), start=1):
            assert limit is not None
            if row not in slate.pinned and not limit.allowed(place)[row]:
                return f"place {place} goes beyond a {getattr(self, 'kind', 'rule')}"
            limit.add(row, place)
        return None


class Likeness(Protocol):
    """Likeness of candidates to each other."""

    def similarities(self, row: int) -> np.ndarray:
        """Return the likeness of all candidates to one: float64, shape (n_candidates,), from 0 to 1.

        It is 1 for the candidate itself, and 0 where either has no value.
        """
        ...


class Utilities(Protocol):
    """Utility that each candidate would add to the slate, updated with every candidate that is placed."""

    @property
    def marginal(self) -> np.ndarray:
        """Marginal utilities, float64, shape (n_candidates,)."""
        ...

    def add(self, row: int) -> None:
        """Update the utilities for a candidate that was placed."""
        ...


class Diversity(Section):
    """A diversity measure of slates; kinds differ in how they combine value and likeness."""

    by: str
    """Column of candidates that likeness is computed from: a vector (cosine), tags (Jaccard), or a single value."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns of candidates that the diversity reads."""
        return (self.by,)

    def check(self, types: Mapping[str, pl.DataType]) -> None:
        """Check that candidates have the column.

        Raises:
            ExpressionError: The column is missing.
        """
        require_columns("diversity.by", self.reads, types)

    @abstractmethod
    def utilities(self, likeness: Likeness, values: np.ndarray) -> Utilities:
        """Return the utilities of an empty slate.

        Args:
            likeness: Likeness of the candidates by the column `by`.
            values: Values of the candidates, float64, shape (n_candidates,), finite.
        """


class NewItems(Section):
    """New items, and their minimum exposure."""

    where: str = Field(min_length=1)
    """Condition on the columns of candidates, in SQL, such as `days_listed < 7`."""
    min_share: float = Field(gt=0, le=1)
    """Least probability that a place of a drawn slate goes to one of them while one is allowed there."""

    def raised(self, probabilities: np.ndarray, is_new: np.ndarray) -> np.ndarray:
        """Return probabilities in which those of new items sum to `min_share` or more.

        The ratios within the two groups stay as they are; where new items have none, they share it alike.

        Args:
            probabilities: Of the allowed candidates, float64, shape (n_allowed,), sum to 1.
            is_new: Whether each is new, bool, same shape.
        """
        share_of_new = float(probabilities[is_new].sum())
        if share_of_new >= self.min_share or not is_new.any() or is_new.all():
            return probabilities
        raised = probabilities * np.where(is_new, 0.0, (1.0 - self.min_share) / (1.0 - share_of_new))
        if share_of_new > 0:
            raised[is_new] = probabilities[is_new] * (self.min_share / share_of_new)
        else:
            raised[is_new] = self.min_share / is_new.sum()
        return raised


class Exploration(Section):
    """An exploration: places are drawn with known probabilities, so that others than the best are shown."""

    share: float = Field(default=1.0, gt=0, le=1)
    """Share of slates whose places are drawn; the others are in the best order."""
    max_cost: float | None = Field(default=None, gt=0, le=1)
    """Largest share of the slates' expected label that drawing may cost, over all slates; the gate `slates` holds above
    it, and monitoring pages a person where live slates are above it. null: no limit."""
    new_items: NewItems | None = None
    """Minimum exposure of new items; null: no minimum."""

    @abstractmethod
    def probabilities(self, utilities: np.ndarray) -> np.ndarray:
        """Return the probability with which each of the allowed candidates takes the next place.

        Args:
            utilities: Utilities of the allowed candidates, float64, shape (n_allowed,), finite, n_allowed at least 1.

        Returns:
            Float64, shape (n_allowed,), sums to 1.
        """

    def check(self, types: Mapping[str, pl.DataType]) -> None:
        """Check the condition of new items against the columns of candidates.

        Raises:
            ExpressionError: It does not fit them.
        """
        if self.new_items is not None:
            parse_expression(self.new_items.where, types, "condition")

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns of candidates that the exploration reads."""
        return () if self.new_items is None else compile_expression(self.new_items.where).columns

    def draw_probabilities(self, candidates: pl.DataFrame) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """Return the function that gives the probabilities of a place.

        It takes the rows of the allowed candidates and their utilities, and returns the probability with which each
        takes the place; shape (n_allowed,) each.

        Args:
            candidates: One row per candidate.
        """
        new_items = self.new_items
        if new_items is None:
            return lambda _, utilities: self.probabilities(utilities)
        is_new = compile_expression(new_items.where).evaluate_condition(candidates)
        return lambda allowed, utilities: new_items.raised(self.probabilities(utilities), is_new[allowed])

    def place_probabilities(self, values: np.ndarray, rows: np.ndarray, places: int) -> np.ndarray | None:
        """Return the probability of some candidates at each place of drawn slates, over all draws.

        Args:
            values: Values of all candidates, whose utilities do not change, float64, shape (n_candidates,).
            rows: Rows of the candidates that are asked for.
            places: Number of places.

        Returns:
            Float64, shape (len(rows), places); None for a kind without a closed form.
        """
        return None


def value_codes(column: pl.Series) -> np.ndarray:
    """Return a code for each value, shape (n_candidates,): equal values have equal codes, null has 0.

    >>> value_codes(pl.Series(["b", None, "a", "b"])).tolist()
    [1, 0, 2, 1]
    """
    # Without Polars' `rank`, which waits for its threads: that takes longer for a few hundred values.
    if column.dtype.is_integer() and not column.null_count():
        return np.unique(column.to_numpy(), return_inverse=True)[1].astype(np.intp) + 1
    code_by_value: dict[object, int] = {None: 0}
    return np.array([code_by_value.setdefault(value, len(code_by_value)) for value in column.to_list()], np.intp)


def require_columns(rule: str, columns: Sequence[str], types: Mapping[str, pl.DataType]) -> None:
    """Raise for a rule that reads a column which candidates do not have.

    Raises:
        ExpressionError: A column is missing.
    """
    for name in columns:
        if name not in types:
            raise ExpressionError(
                f"{rule} reads '{name}', which is no column of candidates{did_you_mean(name, types)};"
                f" there are {', '.join(types)}"
            )
