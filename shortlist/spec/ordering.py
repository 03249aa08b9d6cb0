"""The `ordering` section: how scored candidates become a slate."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from shortlist.spec.base import RegisteredSection, Section

Rule = Annotated[Any, RegisteredSection("ordering_rules")]
DiversityKind = Annotated[Any, RegisteredSection("diversities")]
ExplorationKind = Annotated[Any, RegisteredSection("explorations")]


class Ordering(Section):
    """Value, rules, diversity and exploration, applied in this order."""

    value: str = Field(default="score", min_length=1)
    """Value of a candidate: a formula in SQL over its score and its columns, such as `score * price`."""
    reward: str | None = Field(default=None, min_length=1)
    """What a shown item earns, a formula in SQL over the label's column and `data.labels`, such as `click + 5 * like`;
    null: the label. The value of a slate is the sum over the items that users see."""
    rules: tuple[Rule, ...] = ()
    """Boosts, fixed positions and caps. Boosts are applied one after another."""
    diversity: DiversityKind | None = None
    """How similarity to the candidates above lowers a candidate; null: not at all."""
    explore: ExplorationKind | None = None
    """How other candidates than the best are explored; null: never."""

    @model_validator(mode="after")
    def _pins_agree(self) -> Self:
        pins = [pin for rule in self.rules for pin in rule.fixed.items()]
        for number, pin_part in enumerate(("place", "item")):
            pinned_value, uses = next(iter(Counter(pin[number] for pin in pins).most_common(1)), (None, 0))
            if uses > 1:
                raise ValueError(f"rules: {uses} pins have {pin_part} {pinned_value!r}; wanted one")
        return self
