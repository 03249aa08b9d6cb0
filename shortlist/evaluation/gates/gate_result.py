"""Result of one gate for one candidate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Self

from pydantic import Field

from shortlist.evaluation.metrics.records import Record

GateCause = Literal["", "few_rows"]
"""`few_rows`: only that too few rows were compared; none differs."""


class GateResult(Record):
    """Result of one gate: passed or held, with the reason."""

    name: str
    passed: bool
    reason: str
    """The reason with the deciding numbers, in one line."""
    numbers: dict[str, Any] = Field(default_factory=dict)
    """The deciding numbers and limits, for programs."""
    cause: GateCause = ""
    """Cause of the failure, where the advice to the user depends on it."""

    @property
    def message(self) -> str:
        """The result as a sentence.

        >>> GateResult(name="auc", passed=False, reason="0.7411 < 0.7480").message
        "Gate 'auc' holds the candidate: 0.7411 < 0.7480."
        """
        verb = "passes" if self.passed else "holds"
        return f"Gate '{self.name}' {verb} the candidate: {self.reason}."

    @classmethod
    def from_failures(cls, name: str, failures: Iterable[str], passes: str, **numbers: Any) -> Self:
        """Return a result that holds with every failure as the reason, or passes when there is none."""
        reasons = tuple(failures)
        return cls(name=name, passed=not reasons, reason="; ".join(reasons) or passes, numbers=numbers)


def format_count(count: int) -> str:
    """Return a count with its digits in groups of three.

    >>> format_count(1204511)
    '1 204 511'
    """
    return f"{count:,}".replace(",", " ")
