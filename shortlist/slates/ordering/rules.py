"""Ordering rules: boosts, pins and caps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

import numpy as np
import polars as pl
from pydantic import Field, model_validator

from shortlist.contracts import Columns
from shortlist.slates.ordering.base import OrderingRule, PlaceLimit, ShownSlate, require_columns, value_codes
from shortlist.system.registry import Registry
from shortlist.system.row_expressions import ExpressionError, compile_expression, parse_expression


class Boost(OrderingRule):
    """Change the value of the candidates that fulfil a condition."""

    kind: Literal["boost"]
    """Raises or lowers values."""
    where: str
    """Condition over the columns of candidates: `published_date >= DATE '2026-01-01'`. Null counts as false."""
    factor: Annotated[float, Field(gt=0, le=1_000)] = 1.0
    """Factor of the value. A negative value is divided by it, so that a factor above 1 always raises."""
    add: Annotated[float, Field(ge=-1e9, le=1e9)] = 0.0
    """Number that is added to the value afterwards."""

    @model_validator(mode="after")
    def _check_has_effect(self) -> Self:
        if self.factor == 1.0 and self.add == 0.0:
            raise ValueError("a boost of factor 1 that adds 0 changes nothing; declare factor or add")
        return self

    def check(self, types: Mapping[str, pl.DataType]) -> None:
        """Check the condition."""
        parse_expression(self.where, types, "condition")

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns of the condition."""
        return compile_expression(self.where).columns

    def adjust(self, candidates: pl.DataFrame, values: np.ndarray) -> np.ndarray:
        """Return the values with the boost."""
        fulfils_condition = compile_expression(self.where).evaluate_condition(candidates)
        raised = np.where(values < 0, values / self.factor, values * self.factor) + self.add
        return np.where(fulfils_condition, raised, values)


class Pin(OrderingRule):
    """Give an item a fixed place in every slate that has it among its candidates."""

    kind: Literal["pin"]
    """Fixes an item's place."""
    item: int | str
    """Value of `data.item`."""
    place: Annotated[int, Field(ge=1, le=1_000)]
    """Place in the slate, from 1. Shorter slates leave the item out."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The item."""
        return (Columns.ITEM,)

    def check(self, types: Mapping[str, pl.DataType]) -> None:
        """Check that the item is of the type of `data.item`."""
        wanted_type = "a text" if types[Columns.ITEM] == pl.String() else "a whole number"
        if isinstance(self.item, str) != (types[Columns.ITEM] == pl.String()):
            raise ExpressionError(f"pin: got item {self.item!r}; wanted {wanted_type}, as data.item is")

    @property
    def fixed(self) -> Mapping[int, int | str]:
        """The item at its place."""
        return {self.place: self.item}

    def pinned(self, candidates: pl.DataFrame) -> Mapping[int, int]:
        """Return the item's row by its place; empty where it is no candidate."""
        rows = np.flatnonzero((candidates[Columns.ITEM] == self.item).to_numpy())
        return {self.place: int(rows[0])} if len(rows) else {}

    def find_violation(self, slate: ShownSlate) -> str | None:
        """Check that the item is at its place, or above it where it may have moved up."""
        items = [slate.candidates[Columns.ITEM][row] for row in slate.rows]
        slate_length = min(slate.k, slate.candidates.height)
        if self.place > slate_length or self.item not in slate.candidates[Columns.ITEM]:
            return None
        actual_place = items.index(self.item) + 1 if self.item in items else 0
        if actual_place == self.place or (slate.limited and 0 < actual_place < self.place):
            return None
        return f"the item that is pinned to place {self.place} is not there"


class Cap(OrderingRule):
    """Limit the number of candidates with the same value of a column among the first places."""

    kind: Literal["cap"]
    """Limits how many of one kind are shown."""
    column: str
    """Column of candidates: a creator, a category. Null is not limited."""
    most: Annotated[int, Field(ge=1, le=1_000)]
    """Largest number of candidates with the same value."""
    places: Annotated[int, Field(ge=2, le=10_000)]
    """Number of first places of the slate in which they are counted."""

    @model_validator(mode="after")
    def _check_has_effect(self) -> Self:
        if self.most >= self.places:
            raise ValueError(f"at most {self.most} in {self.places} places limits nothing; wanted most below places")
        return self

    @property
    def reads(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    def check(self, types: Mapping[str, pl.DataType]) -> None:
        """Check that the column has single values."""
        require_columns("cap", self.reads, types)
        if types[self.column].is_nested() or types[self.column].is_float():
            raise ExpressionError(
                f"cap counts equal values of '{self.column}', which is {types[self.column]}; wanted whole numbers,"
                " texts or dates"
            )

    def limit(self, candidates: pl.DataFrame) -> PlaceLimit:
        """Return a limit that counts the values of placed candidates."""
        return _CapCounter(self, candidates[self.column])

    def find_violation(self, slate: ShownSlate) -> str | None:
        """Count the values of the first places; a pinned item counts for its declared place."""
        values = slate.candidates[self.column]
        placed = [(slate.pinned.get(row, place), values[row], row) for place, row in enumerate(slate.rows, start=1)]
        first = [(value, row) for place, value, row in placed if place <= self.places and value is not None]
        counts = Counter(value for value, _ in first)
        unpinned_values = {value for value, row in first if row not in slate.pinned}
        excesses = [f"{counts[value]} of {value}" for value in unpinned_values if counts[value] > self.most]
        return f"a cap of {self.most} by {self.column} is exceeded: {min(excesses)}" if excesses else None


class _CapCounter:
    """Candidates placed so far, by value of the capped column."""

    def __init__(self, rule: Cap, column: pl.Series) -> None:
        self._rule = rule
        self._codes = value_codes(column)
        self._placed = np.zeros(int(self._codes.max(initial=0)) + 1, np.int64)

    def allowed(self, place: int) -> np.ndarray:
        if place > self._rule.places:
            return np.ones(len(self._codes), np.bool_)
        allowed: np.ndarray = (self._placed < self._rule.most)[self._codes]
        return allowed

    def add(self, row: int, place: int) -> None:
        if self._codes[row] and place <= self._rule.places:
            self._placed[self._codes[row]] += 1


ORDERING_RULES: Final = Registry[type[OrderingRule]](
    "ordering_rules",
    {"boost": Boost, "pin": Pin, "cap": Cap},
)
"""Rule classes by kind; a new kind is a class and a line here."""
