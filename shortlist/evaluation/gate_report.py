"""Results of all gates for one candidate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from pydantic import model_validator

from shortlist.evaluation.gate_result import GateResult
from shortlist.evaluation.gates import GATES, required_gates
from shortlist.evaluation.records import Record


class GateReport(Record):
    """Results of the gates; passed only if every required gate has a result and none holds."""

    model: str
    """Name of the model, as declared."""
    candidate: str
    """Digest of the model folder that was judged; empty when there is none."""
    gates: tuple[GateResult, ...]
    passed: bool

    @classmethod
    def from_results(cls, model: str, candidate: str, gates: Iterable[GateResult]) -> Self:
        """Return the report of a candidate."""
        results = tuple(gates)
        return cls(model=model, candidate=candidate, gates=results, passed=_have_all_passed(results))

    @property
    def holds(self) -> tuple[str, ...]:
        """Messages of the gates that hold, and of required gates without a result."""
        missing_gates = required_gates() - {gate.name for gate in self.gates}
        names = (name for name in GATES.complete() if name in missing_gates)
        missing_messages = tuple(f"Gate '{name}' holds the candidate: it gave no result." for name in names)
        return (*(gate.message for gate in self.gates if not gate.passed), *missing_messages)

    @model_validator(mode="after")
    def _check_passed_matches_results(self) -> Self:
        if self.passed != _have_all_passed(self.gates):
            raise ValueError(f"passed is {self.passed}, but its gate results say {not self.passed}")
        return self


def _have_all_passed(gates: tuple[GateResult, ...]) -> bool:
    # A gate without a result is missing data, and missing data is never a success.
    return {gate.name for gate in gates} >= required_gates() and all(gate.passed for gate in gates)
