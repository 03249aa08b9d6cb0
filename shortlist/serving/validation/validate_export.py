"""The validation of one candidate: its exported form against training's scores, and under load, on one real Triton."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from shortlist.contracts import Files, ShortlistError
from shortlist.evaluation.export_validation import (
    BF16_MAX_SCORE_DIFFERENCE,
    ExportValidation,
    LoadTestResult,
    Parity,
    ScoreParity,
)
from shortlist.serving.export.repository import write_repository
from shortlist.serving.export.signature import FOLDER
from shortlist.serving.triton.triton import running_triton
from shortlist.serving.validation.load_test import run_load_test
from shortlist.serving.validation.parity import Scores, compare, exported_scores, triton_scores
from shortlist.serving.validation.rows import Batch, ServedRows, draw
from shortlist.spec.gates import Gates
from shortlist.spec.serving import Serving
from shortlist.storage.artefacts import atomic_folder, folder_digest, write_json

_VERSION = 1
"""Of the repository that is tried; the registered version is not known yet."""
_PATIENCE = 2
"""Multiple of the longest cold start that is waited for, to say how long it took."""


def validate_export(
    model: Path, scores: Path, valid_log: Path, fitted: Path, limits: Gates, serving: Serving, seed: int, out: Path
) -> ExportValidation | None:
    """Write a candidate's `export_validation.json` into a folder, whole; the folder stays empty when there is no model.

    What fails is written down as the reason: the gates hold the candidate, the run goes on.

    Args:
        model: The model folder, its exported graph inside.
        scores: What its training step wrote.
        valid_log: The validated log.
        fitted: What features were fitted to.
        limits: The load, and how many rows to compare.
        serving: How Triton joins requests, and what computes their scores.
        seed: Of the draw of rows.
        out: Folder to write.

    Returns:
        What was found; None when there is no model.
    """
    with atomic_folder(out) as staging:
        if not (model / Files.MODEL).exists():
            return None
        found = _validate(model, scores, (valid_log, fitted), limits, serving, seed)
        write_json(staging / Files.EXPORT_VALIDATION, found.model_dump(mode="json"))
    return found


def _validate(
    model: Path, scores: Path, log_and_fitted: tuple[Path, Path], limits: Gates, serving: Serving, seed: int
) -> ExportValidation:
    candidate = folder_digest(model)
    try:
        reference = draw(scores, limits.parity_rows, seed)
        served = ServedRows(model, *log_and_fitted, reference)
        rows = ComparedRows(served, served.batches())
        if (difference := served.planted_difference()) is not None:
            return ExportValidation(candidate=candidate, problem=difference)
    except ShortlistError as error:
        return ExportValidation(candidate=candidate, problem=f"nothing to compare: {error}")
    exported = rows.agreement(lambda: exported_scores(model, rows.batches), limits.max_score_difference)
    parity = Parity(
        test_rows=reference.test_rows, exported=exported, triton=ScoreParity(problem="there was no server"),
        precision=serving.scoring.precision if served.signature.runs_as == "network" else "fp32",
    )  # fmt: skip
    try:
        triton, infra = _on_triton(model, rows, limits, serving, parity.precision)
    except ShortlistError as error:
        return ExportValidation(candidate=candidate, parity=parity, problem=str(error))
    return ExportValidation(candidate=candidate, parity=parity.model_copy(update={"triton": triton}), infra=infra)


class ComparedRows:
    """The rows to compare, and how scores of them agree."""

    def __init__(self, served: ServedRows, batches: list[Batch]) -> None:
        self.batches, self.model = batches, served.signature.model
        self._served = served

    def agreement(self, scores: Callable[[], Scores], furthest: float) -> ScoreParity:
        """Return how scores agree with training's, or why there are none."""
        try:
            return compare(self._served, self.batches, scores(), furthest)
        except ShortlistError as error:
            return ScoreParity(problem=str(error))


def _on_triton(
    model: Path, rows: ComparedRows, limits: Gates, serving: Serving, precision: str
) -> tuple[ScoreParity, LoadTestResult]:
    """Return how a real Triton's scores agree, and how it bears the load.

    Raises:
        ShortlistError: It does not start, or dies.
    """
    with TemporaryDirectory(prefix="shortlist-") as scratch:
        repository = Path(scratch) / "repository"
        write_repository(model / FOLDER, _VERSION, serving.batching, repository, scoring=serving.scoring)
        with running_triton(repository, seconds=_PATIENCE * limits.infra.max_cold_start_seconds) as triton:
            furthest = limits.max_score_difference if precision == "fp32" else BF16_MAX_SCORE_DIFFERENCE
            found = rows.agreement(lambda: triton_scores(triton.ports.grpc, rows.model, rows.batches), furthest)
            return found, run_load_test(triton, rows.model, rows.batches, limits.infra)
