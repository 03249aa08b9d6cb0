"""What the gates said about one candidate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from pydantic import model_validator

from shortlist.evaluation.gate_result import GateResult
from shortlist.evaluation.gates import GATES, required_gates
from shortlist.evaluation.records import Record


class GateReport(Record):
    """The word of every gate; passed only if all of them spoke and none holds."""

    model: str
    """Name of the model, as declared."""
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
        silent = required_gates() - {gate.name for gate in self.gates}
        names = (name for name in GATES.complete() if name in silent)
        missing = tuple(f"Gate '{name}' holds the candidate: it gave no result." for name in names)
        return (*(gate.message for gate in self.gates if not gate.passed), *missing)

    @model_validator(mode="after")
    def _passed_follows_from_the_gates(self) -> Self:
        if self.passed != _passed(self.gates):
            raise ValueError(f"passed is {self.passed}, but its gates say {not self.passed}")
        return self


def _passed(gates: tuple[GateResult, ...]) -> bool:
    # A gate that was left out is missing data, and missing data is never a success.
    return {gate.name for gate in gates} >= required_gates() and all(gate.passed for gate in gates)
