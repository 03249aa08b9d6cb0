"""Results of all gates for one candidate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Self

from pydantic import model_validator

from shortlist.evaluation.gates.gate_result import GateResult
from shortlist.evaluation.gates.gates import required_gates
from shortlist.evaluation.metrics.records import Record

ALWAYS_REQUIRED: Final = (
    "data", "skew", "absolute", "champion", "calibration", "slices", "integrity", "parity", "infra",
)  # fmt: skip
"""Gates that every report requires. Reports that do not name their required gates were made when these were all."""


class GateReport(Record):
    """Results of the gates; passed only if every gate that was required then has a result, and none holds.

    A report is checked against the gates that it names itself, and never against those that are registered when it is
    read: a gate that is installed later must not invalidate what was blessed before.
    """

    model: str
    """Name of the model, as declared."""
    candidate: str
    """Digest of the model folder that was judged; empty when there is none."""
    gates: tuple[GateResult, ...]
    required: tuple[str, ...] = ALWAYS_REQUIRED
    """Names of the gates that were required when the candidate was judged."""
    passed: bool

    @classmethod
    def from_results(cls, model: str, candidate: str, gates: Iterable[GateResult]) -> Self:
        """Return the report of a candidate."""
        results, required = tuple(gates), required_gates()
        passed = _have_all_passed(results, required)
        return cls(model=model, candidate=candidate, gates=results, required=required, passed=passed)

    @property
    def holds(self) -> tuple[str, ...]:
        """Messages of the gates that hold, and of required gates without a result."""
        missing_gates = _missing_gates(self.gates, self.required)
        missing_messages = tuple(f"Gate '{name}' holds the candidate: it gave no result." for name in missing_gates)
        return (*(gate.message for gate in self.gates if not gate.passed), *missing_messages)

    @model_validator(mode="after")
    def _check_passed_matches_results(self) -> Self:
        if self.passed != _have_all_passed(self.gates, self.required):
            raise ValueError(f"passed is {self.passed}, but its gate results say {not self.passed}")
        return self


def _have_all_passed(gates: tuple[GateResult, ...], required: tuple[str, ...]) -> bool:
    # A gate without a result is missing data, and missing data is never a success.
    return not _missing_gates(gates, required) and all(gate.passed for gate in gates)


def _missing_gates(gates: tuple[GateResult, ...], required: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the required gates without a result, each once."""
    names = {gate.name for gate in gates}
    return tuple(name for name in dict.fromkeys((*required, *ALWAYS_REQUIRED)) if name not in names)
