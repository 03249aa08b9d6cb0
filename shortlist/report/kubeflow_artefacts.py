"""Artefacts that Kubeflow's pages show: metrics, a ROC curve, a confusion matrix.

Every artefact also gets a file: kfp.local does not cache a task one of whose artefacts has no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from shortlist.contracts import Files
from shortlist.evaluation.gates.export_validation import ExportValidation
from shortlist.evaluation.metrics.measure import scores_file
from shortlist.evaluation.metrics.pointwise import UnmeasurableError, check_class_counts
from shortlist.evaluation.metrics.scores import iter_scores
from shortlist.evaluation.verdict import GateVerdict, measured_numbers
from shortlist.report.summary import best_epoch_record
from shortlist.storage.artefacts import read_json, write_json
from shortlist.tracking.artefact_metadata import write_metadata

_CURVE_POINTS: Final = 50
"""Points of a ROC curve, which is stored in the artefact's metadata, and so in a database."""
_RANGE_SHIFT: Final = np.uint32(12)
"""Bits of a score, as a float of 32, that its range leaves out."""
_RANGES: Final = int(np.float32(1).view(np.uint32) >> _RANGE_SHIFT) + 1
_CATEGORIES: Final = ["negative", "positive"]


class MetricsArtefact(Protocol):
    """`dsl.Metrics`."""

    path: str

    def log_metric(self, metric: str, value: float) -> None:
        """Add a number."""
        ...


class ClassificationArtefact(Protocol):
    """`dsl.ClassificationMetrics`."""

    path: str
    metadata: dict[str, Any]

    def log_roc_curve(self, fpr: list[float], tpr: list[float], threshold: list[float]) -> None:
        """Add a curve."""
        ...

    def log_confusion_matrix(self, categories: list[str], matrix: list[list[int]]) -> None:
        """Add a matrix."""
        ...


def show_metrics(artefact: MetricsArtefact, numbers: Mapping[str, float | int | None]) -> None:
    """Write finite numbers into a `Metrics` artefact and its file; others are left out."""
    finite_numbers = {name: round(float(value), 6) for name, value in numbers.items() if value is not None}
    finite_numbers = {name: value for name, value in finite_numbers.items() if np.isfinite(value)}
    for name, value in finite_numbers.items():
        artefact.log_metric(name, value)
    write_json(_prepare_file(artefact.path), finite_numbers)


def training_numbers(model: Path) -> dict[str, float | None]:
    """Return the numbers of a training from its model folder."""
    record = read_json(model / Files.MODEL)
    names = "train_rows", "validation_rows", "train_seconds", "train_rows_per_s"
    numbers = {name: record.get(name) for name in names}
    history = record.get("history") or []
    best_epoch = best_epoch_record(history)
    return numbers | {name: value for name, value in best_epoch.items() if name.startswith("validation_")}


def export_numbers(validation: ExportValidation | None) -> dict[str, float | None]:
    """Return the numbers of an export validation: differences of scores, latency and memory under load."""
    if validation is None:
        return {}
    numbers: dict[str, float | None] = {}
    if validation.parity is not None:
        numbers["max_score_difference"] = validation.parity.triton.max_difference
    if validation.infra is not None:
        infra = validation.infra
        numbers |= {"p50_ms": infra.p50_ms, "p99_ms": infra.p99_ms, "memory_mib": infra.memory_mib}
        numbers |= {"cold_start_seconds": infra.cold_start_seconds, "failed_requests": infra.failed}
    return numbers


def verdict_numbers(verdict: Path) -> dict[str, float]:
    """Return the test numbers of every model, `<model> <metric>`, and the number of gates that hold each candidate."""
    gate_verdict = GateVerdict.read(verdict)
    numbers = {
        f"{measures.model} {name}": value
        for measures in gate_verdict.models
        for name, value in measured_numbers(measures).items()
        if name not in ("rows", "positives")
    }
    hold_counts = {f"{report.model} gates that hold": len(report.holds) for report in gate_verdict.reports}
    return numbers | hold_counts


def show_classification(artefact: ClassificationArtefact, scores: Path, threshold: float | None) -> None:
    """Write the ROC curve of the test rows, and their confusion matrix at a threshold.

    Where rows cannot be measured, neither is written, and `problem` in the metadata holds the reason.

    Args:
        artefact: A `ClassificationMetrics` artefact; its file gets the same content.
        scores: Scores that the training step wrote.
        threshold: Least score that counts as positive; None: the label rate of the test rows.
    """
    try:
        counts = ScoreCounts.read(scores_file(scores))
    except UnmeasurableError as problem:
        write_metadata(artefact, problem=str(problem))
        write_json(_prepare_file(artefact.path), {"problem": str(problem)})
        return
    used_threshold = counts.label_rate if threshold is None else threshold
    curve, matrix = counts.roc(), confusion_matrix(scores_file(scores), used_threshold)
    artefact.log_roc_curve(*curve)
    artefact.log_confusion_matrix(_CATEGORIES, matrix)
    write_metadata(artefact, threshold=round(used_threshold, 6))
    fpr, tpr, cuts = curve
    curves = {
        "threshold": used_threshold,
        "categories": _CATEGORIES,
        "matrix": matrix,
        "fpr": fpr,
        "tpr": tpr,
        "thresholds": cuts,
    }
    write_json(_prepare_file(artefact.path), curves)


def confusion_matrix(scores: Path, threshold: float) -> list[list[int]]:
    """Return counts of test rows: a line per label, negative first, and a column per prediction, negative first."""
    counts = np.zeros((2, 2), np.intp)
    for piece in iter_scores(scores, "test"):
        np.add.at(counts, (piece.labels.astype(np.intp), (piece.scores >= np.float64(threshold)).astype(np.intp)), 1)
    matrix: list[list[int]] = counts.tolist()
    return matrix


class ScoreCounts(NamedTuple):
    """How many test rows of each class have a score of some range; ranges differ by a factor of 1.0005 or less."""

    rows: npt.NDArray[np.intp]
    """Shape (2, ranges), negative rows first, by ascending score."""

    @classmethod
    def read(cls, scores: Path) -> ScoreCounts:
        """Read them from a scores file.

        Raises:
            UnmeasurableError: As `iter_scores`, or all labels are equal.
        """
        rows = np.zeros((2, _RANGES), np.intp)
        for piece in iter_scores(scores, "test"):
            # The bits of positive floats have the order of the floats; adding 0 turns -0 into 0.
            ranges = (piece.scores.astype(np.float32) + np.float32(0)).view(np.uint32) >> _RANGE_SHIFT
            for label in (0, 1):
                rows[label] += np.bincount(ranges[piece.labels == label], minlength=_RANGES)
        check_class_counts(int(rows[1].sum()), int(rows.sum()))
        return cls(rows)

    @property
    def label_rate(self) -> float:
        """Share of positive rows."""
        return float(self.rows[1].sum() / self.rows.sum())

    def roc(self) -> tuple[list[float], list[float], list[float]]:
        """Return false and true positive rates at thresholds, from the highest to the lowest, both ends included.

        A threshold is the beginning of a range, so that the rates at it are exact; ranges are those of quantiles.
        """
        ranks = np.linspace(0, self.rows.sum() - 1, _CURVE_POINTS).astype(np.intp)
        cuts = np.unique(np.searchsorted(self.rows.sum(0).cumsum(), ranks, "right"))[::-1]
        rows_above = self.rows[:, ::-1].cumsum(1)[:, ::-1]
        fpr, tpr = ([0.0, *rates] for rates in (rows_above[:, cuts] / rows_above[:, :1]).round(6).tolist())
        thresholds = (cuts.astype(np.uint32) << _RANGE_SHIFT).view(np.float32).astype(np.float64)
        return fpr, tpr, [1.0, *thresholds.round(6).tolist()]


def _prepare_file(path: str) -> Path:
    """Return the path of an artefact's file after creating its folder."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    return file
