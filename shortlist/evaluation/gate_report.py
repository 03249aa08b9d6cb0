"""What the gates said about one candidate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Self

from pydantic import Field, model_validator

from shortlist.evaluation.records import Record

GATES: Final = ("data", "skew", "absolute", "champion", "calibration", "slices", "integrity", "parity", "infra")
"""Every gate that must have spoken, in the order of reports."""


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


class GateReport(Record):
    """The word of every gate; passed only if all of them spoke and none holds."""

    model: str
    """Name of the model in the run, such as `xgboost`."""
    candidate: str
    """Digest of the model folder that was judged; empty when there is none."""
    gates: tuple[GateResult, ...]
    passed: bool

    @classmethod
    def of(cls, model: str, candidate: str, gates: Iterable[GateResult]) -> Self:
        """Return the report of a candidate."""
        spoken = tuple(gates)
        return cls(model=model, candidate=candidate, gates=spoken, passed=_passed(spoken))

    @property
    def holds(self) -> tuple[str, ...]:
        """Messages of the gates that hold, and of those that never spoke."""
        silent = set(GATES) - {gate.name for gate in self.gates}
        missing = tuple(f"Gate '{name}' holds the candidate: it gave no result." for name in GATES if name in silent)
        return (*(gate.message for gate in self.gates if not gate.passed), *missing)

    @model_validator(mode="after")
    def _passed_follows_from_the_gates(self) -> Self:
        if self.passed != _passed(self.gates):
            raise ValueError(f"passed is {self.passed}, but its gates say {not self.passed}")
        return self


def _passed(gates: tuple[GateResult, ...]) -> bool:
    # A gate that was left out is missing data, and missing data is never a success.
    return {gate.name for gate in gates} >= set(GATES) and all(gate.passed for gate in gates)
