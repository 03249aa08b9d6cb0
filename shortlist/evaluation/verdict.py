"""Everything that the judgement of a run found out and said: `gates.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from shortlist.contracts import Files
from shortlist.evaluation.gate_report import GateReport
from shortlist.evaluation.records import (
    Champion,
    Comparison,
    Measures,
    Metric,
    Record,
    Scores,
    SkewReport,
    SliceComparison,
)
from shortlist.spec.gates import Gates
from shortlist.storage.artefacts import read_json


class Verdict(Record):
    """Everything that was measured and said."""

    limits: Gates
    """What was asked."""
    metric: Metric
    """What decides."""
    models: tuple[Measures, ...]
    """Candidates, the baseline that they have to beat, and the champion when there is one."""
    gains: dict[str, Comparison]
    """Candidates against that baseline."""
    comparisons: dict[str, Comparison]
    """Candidates against the champion; empty without one."""
    slices: dict[str, tuple[SliceComparison, ...]]
    """Per candidate; one whose slices could not be compared is left out."""
    slice_reference: str
    """What slices are compared with."""
    best_possible: Scores | None
    champion: Champion | None
    skew: SkewReport | None
    log: dict[str, Any]
    """Row counts of validation; empty when they could not be read."""
    reports: tuple[GateReport, ...]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the verdict in a folder."""
        return cls.model_validate(read_json(folder / Files.GATES))
