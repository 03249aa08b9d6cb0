"""The run for programs: `summary.json`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from shortlist.artefacts import write_json
from shortlist.evaluation.gate_report import GateReport
from shortlist.evaluation.records import Measures, Record, Scores

Count = int | None


class Rows(Record):
    """Rows at every stage; null where the run stopped before it."""

    raw: Count = Field(ge=0)
    valid: Count = Field(ge=0)
    quarantined: Count = Field(ge=0)
    train: Count = Field(ge=0)
    validation: Count = Field(ge=0)
    test: Count = Field(ge=0)


class ModelNumbers(Record):
    """One model, baselines included, on the test rows; null where it could not be measured."""

    auc: float | None = Field(ge=0, le=1)
    log_loss: float | None = Field(ge=0)
    auc_low: float | None = Field(ge=0, le=1)
    auc_high: float | None = Field(ge=0, le=1)
    train_rows_per_s: float | None = Field(ge=0)
    """Null for the champion, which was not trained in this run."""
    role: str = "candidate"
    """candidate, baseline or champion."""


class GateLine(Record):
    """The word of one gate on one candidate."""

    name: str
    passed: bool
    reason: str
    model: str
    """The candidate."""


class BlessedVersion(Record):
    """The model that may ship."""

    model: str
    version: str


class StepNumbers(Record):
    """One step of the run."""

    seconds: float = Field(ge=0)
    cached: bool
    peak_mib: float | None = Field(ge=0)
    """Null for a step that was reused."""


class Failure(Record):
    """Where and why the run stopped."""

    step: str
    message: str


class Summary(Record):
    """A run. Names may be added in later versions; none moves or changes its meaning."""

    spec: str
    """Name of the spec."""
    rows: Rows
    best_possible: Scores | None
    """Of a generated log: what the planted probabilities themselves reach on the test rows."""
    models: dict[str, ModelNumbers]
    gates: tuple[GateLine, ...]
    blessed: BlessedVersion | None
    steps: dict[str, StepNumbers]
    failed: Failure | None = None


def model_numbers(measures: Measures, train_rows_per_s: float | None) -> ModelNumbers:
    """Return a model's line of the summary."""
    return ModelNumbers(
        auc=measures.auc.value if measures.auc else None,
        log_loss=measures.log_loss.value if measures.log_loss else None,
        auc_low=measures.auc.low if measures.auc else None,
        auc_high=measures.auc.high if measures.auc else None,
        train_rows_per_s=train_rows_per_s,
        role=measures.role,
    )


def gate_lines(reports: tuple[GateReport, ...]) -> tuple[GateLine, ...]:
    """Return every gate's word on every candidate."""
    return tuple(
        GateLine(name=gate.name, passed=gate.passed, reason=gate.reason, model=report.model)
        for report in reports
        for gate in report.gates
    )


def write_summary(path: Path, summary: Summary) -> None:
    """Write `summary.json` whole or not at all."""
    write_json(path, summary.model_dump(mode="json"))
