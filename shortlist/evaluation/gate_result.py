"""What one gate said about one candidate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from pydantic import Field

from shortlist.evaluation.records import Record


class GateResult(Record):
    """The word of one gate."""

    name: str
    passed: bool
    reason: str
    """Why, with the numbers that decided; one line."""
    numbers: dict[str, Any] = Field(default_factory=dict)
    """The same numbers, and the limits, for programs."""

    @property
    def message(self) -> str:
        """What a person reads.

        >>> GateResult(name="auc", passed=False, reason="0.7411 < 0.7480").message
        "Gate 'auc' holds the candidate: 0.7411 < 0.7480."
        """
        verb = "passes" if self.passed else "holds"
        return f"Gate '{self.name}' {verb} the candidate: {self.reason}."

    @classmethod
    def of(cls, name: str, failures: Iterable[str], passes: str, **numbers: Any) -> Self:
        """Return a hold with every failure as the reason, or a pass when there is none."""
        reasons = tuple(failures)
        return cls(name=name, passed=not reasons, reason="; ".join(reasons) or passes, numbers=numbers)


def rows(count: int) -> str:
    """Return a count with its digits in groups.

    >>> rows(1204511)
    '1 204 511'
    """
    return f"{count:,}".replace(",", " ")
