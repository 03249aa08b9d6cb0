"""What the steps before the gates left on disk; whatever cannot be read is missing, and a gate will hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from shortlist.contracts import Files
from shortlist.evaluation.measure import Scored, deciding_metric, measure
from shortlist.evaluation.records import Champion, Metric, SkewReport
from shortlist.evaluation.retrieval import EVALUATION, RetrievalMeasures, measure_retrieval
from shortlist.spec.gates import Gates
from shortlist.storage.artefacts import IntegrityError, read_json

BEST: Final = "best"
"""Folder, beside the champion's scores, of those of the best champion so far, when that is another."""

RecordT = TypeVar("RecordT", bound=BaseModel)


@dataclass(frozen=True)
class GateInputs:
    """What is the same for every candidate."""

    log: dict[str, Any]
    """Row counts of validation."""
    skew: SkewReport | None
    champion: Champion | None
    """None when it is not known whether there is one."""
    serving: Scored | None
    """The champion's scores; None when there is no champion."""
    baseline: Scored
    """Of the baseline that candidates have to beat."""
    metric: Metric
    """What decides."""
    best: Scored | None = None
    """The scores of the best champion so far; None when that is the champion, or it need not be compared with."""

    retrieval_declared: bool = False
    """Whether the spec says where candidates come from."""
    retrieval: RetrievalMeasures | None = None
    """How good these candidates are; None when that was not measured."""

    @property
    def reference(self) -> Scored:
        """What slices are compared with."""
        return self.serving or self.baseline

    @property
    def reference_name(self) -> str:
        """How reports call the reference."""
        return "the champion" if self.serving else self.baseline.measures.model


def read_gate_inputs(
    valid_log: Path, skew: Path, champion: Path, baseline_scores: Path, limits: Gates, seed: int
) -> GateInputs:
    """Return what the steps before left.

    Args:
        valid_log: The validated log.
        skew: Folder of `skew.json`.
        champion: Folder of `champion.json` and, when it could be scored, of its scores.
        baseline_scores: Scores of the baseline that candidates have to beat.
        limits: Name of the baseline, confidence level and bootstrap rounds.
        seed: Seed of the bootstrap.
    """
    serving = read_record(Champion, champion / Files.CHAMPION)
    baseline = measure(limits.baseline or "baseline", "baseline", baseline_scores, limits, seed)
    best = serving.best if serving and limits.compare_with_best else ""
    return GateInputs(
        log=dict((_read(valid_log / Files.LOG) or {}).get("notes", {})),
        skew=read_record(SkewReport, skew / Files.SKEW),
        champion=serving,
        serving=measure("champion", "champion", champion, limits, seed) if serving and serving.version else None,
        baseline=baseline,
        metric=deciding_metric(limits, baseline.measures),
        best=measure(f"version {best}", "champion", champion / BEST, limits, seed) if best else None,
    )


def read_retrieval(folder: Path | None, limits: Gates, seed: int) -> dict[str, Any]:
    """Return the fields `retrieval_declared` and `retrieval` of `GateInputs`.

    Args:
        folder: What the retrieval step left; it is empty where nothing is declared.
        limits: Confidence level and bootstrap rounds.
        seed: Seed of the bootstrap.
    """
    if folder is None or not (folder.is_dir() and any(folder.iterdir())):
        return {}
    found = measure_retrieval(folder / EVALUATION, limits.confidence, limits.bootstrap_rounds, seed)
    return {"retrieval_declared": True, "retrieval": found}


def validation_log_loss(model_folder: Path) -> float | None:
    """Return the log loss of the epoch (or tree) that training kept, from `model.json`; None when it says nothing.

    Not from the scores: a model that was refitted on the validation days has seen those rows.
    """
    history = (_read(model_folder / Files.MODEL) or {}).get("history") or []
    losses = [line["validation_log_loss"] for line in history if line.get("validation_log_loss") is not None]
    return min(losses, default=None)


def read_record(kind: type[RecordT], path: Path) -> RecordT | None:
    """Return the record in a JSON file; None when it is missing or not one."""
    try:
        return kind.model_validate(_read(path))
    except ValidationError:
        return None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return read_json(path)
    except IntegrityError:
        return None
