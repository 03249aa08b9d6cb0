"""What an ordering rule, a measure of diversity and a way to explore have to say; the loop knows no kind by name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import polars as pl
from pydantic import Field

from shortlist.contracts import did_you_mean
from shortlist.spec.base import Section
from shortlist.system.row_expressions import ExpressionError


class PlaceLimit(Protocol):
    """Which candidates may take the next place, given those that are placed."""

    def allowed(self, place: int) -> np.ndarray:
        """Return bool, shape (n_candidates,): whether each may take a place, counted from 1."""
        ...

    def add(self, row: int, place: int) -> None:
        """Count a candidate that was placed."""
        ...


class ShownSlate(NamedTuple):
    """A slate that was made, as rules look at it afterwards."""

    candidates: pl.DataFrame
    """One row for each that might have been shown and has a value."""
    rows: Sequence[int]
    """Those that are shown, in order."""
    pinned: Mapping[int, int]
    """Declared place by row, of all pinned candidates that are shown."""
    k: int
    """Places that were asked for."""
    limited: bool
    """Whether a rule limits who may be shown. Where that leaves nobody, pinned items of later places move up."""


class OrderingRule(Section):
    """A rule of the spec's `ordering.rules`. A kind overrides what it needs."""

    def check(self, types: Mapping[str, pl.DataType]) -> None:
        """Check the rule against the columns of candidates.

        Raises:
            ShortlistError: A column is missing or of a type that the rule cannot use.
        """

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns of candidates that it reads."""
        return ()

    def adjust(self, candidates: pl.DataFrame, values: np.ndarray) -> np.ndarray:
        """Return the candidates' values as this rule changes them, float64, shape (n_candidates,)."""
        return values

    @property
    def fixed(self) -> Mapping[int, int | str]:
        """Items that have a fixed place in every slate, by place, counted from 1."""
        return {}

    def pinned(self, candidates: pl.DataFrame) -> Mapping[int, int]:
        """Return rows of candidates that have a fixed place, by place, counted from 1."""
        return {}

    def limit(self, candidates: pl.DataFrame) -> PlaceLimit | None:
        """Return a limit to who may take which place; None: this rule has none."""
        return None

    def broken(self, shown: ShownSlate) -> str | None:
        """Return what a slate breaks, as a sentence; None: nothing. A kind looks in another way than slates are made.

        Pinned items keep their places beyond a limit, and count for it.
        """
        limit = self.limit(shown.candidates)
        for place, row in enumerate(shown.rows if limit is not None else (), start=1):
            assert limit is not None
            if row not in shown.pinned and not limit.allowed(place)[row]:
                return f"place {place} goes beyond a {getattr(self, 'kind', 'rule')}"
            limit.add(row, place)
        return None


class Likeness(Protocol):
    """Likeness of each candidate to one of them."""

    def to(self, row: int) -> np.ndarray:
        """Return float64, shape (n_candidates,), from 0 (unlike) to 1; 1 to itself, 0 where either has no value."""
        ...


class Utilities(Protocol):
    """What each candidate would add to the slate, changed by every one that is placed."""

    @property
    def now(self) -> np.ndarray:
        """Float64, shape (n_candidates,)."""
        ...

    def add(self, row: int) -> None:
        """Take account of a candidate that was placed."""
        ...


class Diversity(Section):
    """A way to keep a slate from being alike; its kinds differ in how value and likeness are combined."""

    by: str
    """Column of candidates by which two are alike: a vector (cosine), tags (share in common), or a single value."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns of candidates that it reads."""
        return (self.by,)

    def check(self, types: Mapping[str, pl.DataType]) -> None:
        """Check that candidates have the column.

        Raises:
            ExpressionError: They do not.
        """
        require_columns("diversity.by", self.reads, types)

    @abstractmethod
    def utilities(self, likeness: Likeness, values: np.ndarray) -> Utilities:
        """Return the utilities of an empty slate.

        Args:
            likeness: Of the candidates, by the column `by`.
            values: Float64, shape (n_candidates,), finite.
        """


class Exploration(Section):
    """A way to give others than the best a chance, with a probability that is known."""

    share: float = Field(default=1.0, gt=0, le=1)
    """Of slates that are drawn at all; the others are in the best order."""

    @abstractmethod
    def probabilities(self, utilities: np.ndarray) -> np.ndarray:
        """Return the probability with which each of the allowed candidates takes the next place.

        Args:
            utilities: Float64, shape (n_allowed,), finite, n_allowed at least 1.

        Returns:
            Float64, shape (n_allowed,), sums to 1.
        """


def codes_of(column: pl.Series) -> np.ndarray:
    """Return a number for each value, shape (n_candidates,): equal ones for equal values, 0 for null.

    >>> codes_of(pl.Series(["b", None, "a", "b"])).tolist()
    [1, 0, 2, 1]
    """
    # A look-up for each: Polars' `rank` waits for its threads, which takes longer for a few hundred.
    known: dict[object, int] = {None: 0}
    return np.array([known.setdefault(value, len(known)) for value in column.to_list()], np.intp)


def require_columns(rule: str, columns: Sequence[str], types: Mapping[str, pl.DataType]) -> None:
    """Refuse a rule that reads a column which candidates do not have.

    Raises:
        ExpressionError: It does.
    """
    for name in columns:
        if name not in types:
            raise ExpressionError(
                f"{rule} reads '{name}', which is no column of candidates{did_you_mean(name, types)};"
                f" there are {', '.join(types)}"
            )
