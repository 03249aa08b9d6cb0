"""The `filters` section: which candidates may be shown, and the fallback when too few are left."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from shortlist.spec.base import RegisteredSection, Section
from shortlist.spec.retrieval import SourceName

Rule = Annotated[Any, RegisteredSection("filters")]


class Filters(Section):
    """Filters in order, each applied to all candidates, and fallback sources."""

    rules: Annotated[tuple[Rule, ...], Field(max_length=50)] = ()
    """The filters; each has its own name in answers and metrics."""
    fallback: tuple[SourceName, ...] = ()
    """Sources that give further candidates, in this order, when fewer than k are left; empty: the answer is short."""
    max_fallback: int = Field(default=10_000, ge=1, le=1_000_000)
    """Most candidates of each fallback source that a request reads; if none passes, the answer is short."""

    @property
    def remembers(self) -> timedelta | None:
        """How long the filters remember items shown to users; None: no filter does."""
        return max((window for rule in self.rules if (window := rule.remembers) is not None), default=None)

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        name, times = next(iter(Counter(rule.name for rule in self.rules).most_common(1)), ("", 0))
        if times > 1:
            raise ValueError(f"rules: {times} filters are called '{name}'; give each a name of its own")
        return self
