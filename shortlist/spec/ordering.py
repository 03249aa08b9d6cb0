"""The `ordering` section: how scored candidates become the slate that a user sees."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from shortlist.spec.base import OneOf, Section

Rule = Annotated[Any, OneOf("shortlist.ordering.rules:ORDERING_RULES")]
DiversityKind = Annotated[Any, OneOf("shortlist.ordering.diversity:DIVERSITIES")]
ExplorationKind = Annotated[Any, OneOf("shortlist.ordering.exploration:EXPLORATIONS")]


class Ordering(Section):
    """Value, rules, diversity and exploration, applied in this order."""

    value: str = Field(default="score", min_length=1)
    """What a candidate is worth: a formula in SQL over its score and its columns, such as `score * price`."""
    rules: tuple[Rule, ...] = ()
    """Boosts, fixed places and caps. Boosts are applied one after another."""
    diversity: DiversityKind | None = None
    """How likeness to the candidates above lowers a candidate; null: not at all."""
    explore: ExplorationKind | None = None
    """How others than the best get a chance; null: never."""

    @model_validator(mode="after")
    def _pins_agree(self) -> Self:
        pins = [pin for rule in self.rules for pin in rule.fixed.items()]
        for number, what in enumerate(("place", "item")):
            given, times = next(iter(Counter(pin[number] for pin in pins).most_common(1)), (None, 0))
            if times > 1:
                raise ValueError(f"rules: {times} pins have {what} {given!r}; wanted one")
        return self
