"""Everything that the judgement of a run found out and said: `gates.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import Field

from shortlist.contracts import Files
from shortlist.evaluation.gate_report import GateReport
from shortlist.evaluation.records import (
    Champion,
    Comparison,
    Interval,
    Measures,
    Metric,
    Record,
    Scores,
    SkewReport,
    SliceComparison,
)
from shortlist.evaluation.retrieval import RetrievalMeasures
from shortlist.evaluation.slates import SlateMeasures
from shortlist.spec.gates import Gates
from shortlist.storage.artefacts import read_json


def measured_numbers(measures: Measures) -> dict[str, float]:
    """Return every number of a model by name; an interval gives `<name>`, `<name>_low` and `<name>_high`.

    >>> measured_numbers(Measures(model="m", role="candidate", rows=9, auc=Interval(low=0.6, value=0.7, high=0.8)))
    {'rows': 9, 'positives': 0, 'auc': 0.7, 'auc_low': 0.6, 'auc_high': 0.8}
    """
    found: dict[str, float] = {}
    for name, value in measures:
        if isinstance(value, Interval):
            found |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
        elif isinstance(value, int | float):
            found[name] = value
    return found


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
    best_comparisons: dict[str, Comparison] = Field(default_factory=dict)
    """Candidates against the best champion so far; empty when that is the champion."""
    slices: dict[str, tuple[SliceComparison, ...]]
    """Per candidate; one whose slices could not be compared is left out."""
    slice_reference: str
    """What slices are compared with."""
    best_possible: Scores | None
    champion: Champion | None
    skew: SkewReport | None
    log: dict[str, Any]
    """Row counts of validation; empty when they could not be read."""
    retrieval: RetrievalMeasures | None = None
    """How good the candidates are; None where nothing is declared, or it was not measured."""
    slate_measures: dict[str, SlateMeasures] = Field(default_factory=dict)
    """Per candidate; empty where nothing is declared. One whose slates were not evaluated is left out."""
    reports: tuple[GateReport, ...]

    def best_after(self, model: str) -> str:
        """Return the registered version that stays the best champion when a candidate is promoted; empty: that one.

        Whoever is not worse than the best on the same test rows is the new best: an old model that has aged is so
        replaced by what serves today's traffic better.
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
