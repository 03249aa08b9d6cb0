"""Evidence that earlier steps left on disk for the gates; what cannot be read is missing, and a gate will hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from shortlist.contracts import Files
from shortlist.evaluation.gates.retrieval import EVALUATION, RetrievalMeasures, measure_retrieval
from shortlist.evaluation.metrics.measure import ScoredModel, deciding_metric, measure, measure_common_rows
from shortlist.evaluation.metrics.records import Champion, Metric, SkewMeasures
from shortlist.spec.gates import Gates
from shortlist.storage.artefacts import IntegrityError, read_json

BEST_CHAMPION_FOLDER: Final = "best"
"""Folder, beside the champion's scores, of the scores of the best champion so far, when that is another model."""

RecordT = TypeVar("RecordT", bound=BaseModel)


@dataclass(frozen=True)
class GateInputs:
    """Evidence that all candidates share."""

    log: dict[str, Any]
    """Row counts of the validation of the log."""
    skew: SkewMeasures | None
    champion: Champion | None
    """None when it is not known whether there is one."""
    serving: ScoredModel | None
    """Scores of the champion; None when there is no champion."""
    baseline: ScoredModel
    """Scores of the baseline that candidates have to beat."""
    metric: Metric
    """The deciding metric."""
    best: ScoredModel | None = None
    """Scores of the best champion so far; None when that is the champion, or is not compared with."""

    retrieval_declared: bool = False
    """Whether the spec declares retrieval."""
    retrieval: RetrievalMeasures | None = None
    """Measures of the retrieval; None when it was not evaluated."""

    @property
    def reference(self) -> ScoredModel:
        """Model that slices are compared with: the champion, or else the baseline."""
        return self.serving or self.baseline

    @property
    def reference_name(self) -> str:
        """Name of the reference in reports."""
        return "the champion" if self.serving else self.baseline.measures.model


def read_gate_inputs(
    valid_log: Path, skew: Path, champion: Path, baseline_scores: Path, limits: Gates, seed: int
) -> GateInputs:
    """Return the evidence that earlier steps left.

    Args:
        valid_log: The validated log.
        skew: Folder of `skew.json`.
        champion: Folder of `champion.json` and, when it could be scored, of its scores.
        baseline_scores: Scores of the baseline that candidates have to beat.
        limits: Name of the baseline, confidence level and bootstrap rounds.
        seed: Seed of the bootstrap.
    """
    champion_record = read_record(Champion, champion / Files.CHAMPION)
    baseline = measure(limits.baseline or "baseline", "baseline", baseline_scores, limits, seed)
    best = champion_record.best if champion_record and limits.compare_with_best else ""
    serving = best_scored = None
    if champion_record and champion_record.version:
        serving = measure("champion", "champion", champion, limits, seed)
        if champion_record.declared_then:
            serving = measure_common_rows(serving, baseline, limits, seed)
    if champion_record and best:
        best_scored = measure(f"version {best}", "champion", champion / BEST_CHAMPION_FOLDER, limits, seed)
        if champion_record.best_declared_then:
            best_scored = measure_common_rows(best_scored, baseline, limits, seed)
    return GateInputs(
        log=dict((_read_optional_json(valid_log / Files.LOG) or {}).get("notes", {})),
        skew=read_record(SkewMeasures, skew / Files.SKEW),
        champion=champion_record,
        serving=serving,
        baseline=baseline,
        metric=deciding_metric(limits, baseline.measures),
        best=best_scored,
    )


def read_retrieval(folder: Path | None, limits: Gates, seed: int) -> dict[str, Any]:
    """Return the fields `retrieval_declared` and `retrieval` of `GateInputs`.

    Args:
        folder: Folder that the retrieval step wrote; empty where nothing is declared.
        limits: Confidence level and bootstrap rounds.
        seed: Seed of the bootstrap.
    """
    if folder is None or not (folder.is_dir() and any(folder.iterdir())):
        return {}
    retrieval_measures = measure_retrieval(folder / EVALUATION, limits.confidence, limits.bootstrap_rounds, seed)
    return {"retrieval_declared": True, "retrieval": retrieval_measures}


def validation_log_loss(model_folder: Path) -> float | None:
    """Return the log loss of the epoch (or tree) that training kept, from `model.json`; None when it holds none.

    It is not computed from the scores: a model that was refitted on the validation days has learnt those rows.
    """
    history = (_read_optional_json(model_folder / Files.MODEL) or {}).get("history") or []
    losses = [epoch["validation_log_loss"] for epoch in history if epoch.get("validation_log_loss") is not None]
    return min(losses, default=None)


def read_record(kind: type[RecordT], path: Path) -> RecordT | None:
    """Return the record in a JSON file; None when the file is missing or invalid."""
    try:
        return kind.model_validate(_read_optional_json(path))
    except ValidationError:
        return None


def _read_optional_json(path: Path) -> dict[str, Any] | None:
    try:
        return read_json(path)
    except IntegrityError:
        return None
