"""The verdict of a run's gates: all measures, comparisons and gate reports (`gates.json`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import Field

from shortlist.contracts import Files
from shortlist.evaluation.gates.gate_report import GateReport
from shortlist.evaluation.gates.retrieval import RetrievalMeasures
from shortlist.evaluation.gates.slates import SlateMeasures
from shortlist.evaluation.metrics.records import (
    Champion,
    ConfidenceInterval,
    Measures,
    Metric,
    PairedComparison,
    Record,
    Scores,
    SkewMeasures,
    SliceComparison,
)
from shortlist.spec.gates import Gates
from shortlist.storage.artefacts import read_json


def measured_numbers(measures: Measures) -> dict[str, float]:
    """Return every number of a model by name; an interval gives `<name>`, `<name>_low` and `<name>_high`.

    >>> interval = ConfidenceInterval(low=0.6, value=0.7, high=0.8)
    >>> measured_numbers(Measures(model="m", role="candidate", rows=9, auc=interval))
    {'rows': 9, 'positives': 0, 'auc': 0.7, 'auc_low': 0.6, 'auc_high': 0.8}
    """
    numbers: dict[str, float] = {}
    for name, value in measures:
        if isinstance(value, ConfidenceInterval):
            numbers |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
        elif isinstance(value, int | float):
            numbers[name] = value
    return numbers


class GateVerdict(Record):
    """Measures of all models, comparisons and gate reports of a run."""

    limits: Gates
    """The gates' section of the spec."""
    metric: Metric
    """The deciding metric."""
    models: tuple[Measures, ...]
    """Measures of the candidates, of the baseline that they have to beat, and of the champion when there is one."""
    gains: dict[str, PairedComparison]
    """Comparisons with that baseline, by candidate."""
    comparisons: dict[str, PairedComparison]
    """Comparisons with the champion, by candidate; empty without one."""
    best_comparisons: dict[str, PairedComparison] = Field(default_factory=dict)
    """Comparisons with the best champion so far, by candidate; empty when that is the champion."""
    slices: dict[str, tuple[SliceComparison, ...]]
    """Compared slices by candidate; a candidate whose slices could not be compared is left out."""
    slice_reference: str
    """Name of the model that slices are compared with."""
    best_possible: Scores | None
    champion: Champion | None
    skew: SkewMeasures | None
    log: dict[str, Any]
    """Row counts of the validation of the log; empty when they could not be read."""
    retrieval: RetrievalMeasures | None = None
    """Measures of the retrieval; None where none is declared, or it was not evaluated."""
    slate_measures: dict[str, SlateMeasures] = Field(default_factory=dict)
    """Measures of the slates by candidate; a candidate whose slates were not evaluated is left out."""
    reports: tuple[GateReport, ...]

    def best_version_after_promotion(self, model: str) -> str:
        """Return the version that stays the best champion when a candidate is promoted; empty: the candidate.

        A candidate that is not worse than the best on the same test rows becomes the best, so that an outdated best
        champion is replaced by a model that serves today's traffic better.
        """
        if self.champion is None or not self.champion.version or not self.limits.compare_with_best:
            return ""
        best = self.best_comparisons.get(model)
        comparison, version = best or self.comparisons.get(model), self.champion.version
        if best is not None:
            version = self.champion.best
        difference = comparison.differences.get(self.metric) if comparison else None
        return version if difference is not None and difference.value < 0 else ""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the verdict in a folder."""
        return cls.model_validate(read_json(folder / Files.GATES))
