"""Validates a candidate's export: its scores against training's, and its latency on a real Triton."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from shortlist.contracts import Files, NotMeasuredError, ShortlistError
from shortlist.evaluation.gates.export_gates import depends_on_moment, infra_gate, parity_gate
from shortlist.evaluation.gates.export_validation import (
    BF16_MAX_SCORE_DIFFERENCE,
    ExportValidation,
    LoadTestResult,
    Parity,
    ScoreParity,
)
from shortlist.serving.export.repository import write_repository
from shortlist.serving.export.signature import FOLDER
from shortlist.serving.processes.errors import EndedEarlyError
from shortlist.serving.triton.triton import running_triton
from shortlist.serving.validation.load_test import run_load_test
from shortlist.serving.validation.parity import Scores, compare_scores, score_exported, score_on_triton
from shortlist.serving.validation.served_rows import ServedBatch, ServedRows, draw_reference_rows
from shortlist.serving.validation.unknown_values import measure_unknown_values
from shortlist.spec.gates import ExportLimits
from shortlist.spec.serving import Serving
from shortlist.storage.artefacts import atomic_folder, folder_digest, is_disk_full, write_json

_VERSION = 1
"""Version of the temporary repository; the registered version is not known yet."""
_COLD_START_FACTOR = 2
"""Multiple of the cold-start limit to wait for, so that a slow start can be reported."""


def validate_export(
    model: Path,
    scores: Path,
    valid_log: Path,
    fitted: Path,
    limits: ExportLimits,
    serving: Serving,
    seed: int,
    out: Path,
) -> ExportValidation | None:
    """Write a candidate's `export_validation.json` into a folder, whole; the folder stays empty when there is no model.

    What the model does wrong is recorded as the reason: the gates hold the candidate, and the run continues. A failed
    measurement is no result: nothing is written, so that no later run reuses it.

    Args:
        model: The model folder, its exported graph inside.
        scores: Scores written by the training step.
        valid_log: The validated log.
        fitted: Folder of the fitted features.
        limits: The load, and the number of rows to compare.
        serving: Batching and scoring of Triton.
        seed: Seed of the sample of rows.
        out: Folder to write.

    Returns:
        The validation; None when there is no model.

    Raises:
        NotMeasuredError: Triton was not ready in time, or died, or a disk is full.
    """
    validation = None
    if (model / Files.MODEL).exists():
        validation = _validate(model, scores, (valid_log, fitted), limits, serving, seed)
    with atomic_folder(out) as staging:
        if validation is not None:
            gates = (
                parity_gate(validation, validation.candidate, 0, limits),
                infra_gate(validation, validation.candidate, limits.infra),
            )
            is_momentary = validation.depends_on_moment or depends_on_moment(gates)
            validation = validation.model_copy(update={"depends_on_moment": is_momentary})
            write_json(staging / Files.EXPORT_VALIDATION, validation.model_dump(mode="json"))
    return validation


def _validate(
    model: Path, scores: Path, log_and_fitted: tuple[Path, Path], limits: ExportLimits, serving: Serving, seed: int
) -> ExportValidation:
    candidate = folder_digest(model)
    unknown_values = None
    try:
        reference = draw_reference_rows(scores, limits.parity_rows, seed)
        served = ServedRows(model, *log_and_fitted, reference)
        rows = ComparedRows(served, served.batches())
        if (difference := served.edge_case_difference()) is not None:
            return ExportValidation(candidate=candidate, problem=difference)
    except ShortlistError as error:
        return ExportValidation(candidate=candidate, problem=f"nothing to compare: {error}")
    try:
        unknown_values = measure_unknown_values(model, served)
    except Exception as error:  # onnxruntime raises what it likes; the gate then says that nothing was measured
        if isinstance(error, MemoryError) or is_disk_full(error):
            raise NotMeasuredError(f"gate 'unknown_values' is not measured: {error}") from error
    exported = rows.parity(lambda: score_exported(model, rows.batches), limits.max_score_difference)
    parity = Parity(
        test_rows=reference.test_rows, exported=exported, triton=ScoreParity(problem="there was no server"),
        precision=serving.scoring.precision if served.signature.runs_as == "network" else "fp32",
    )  # fmt: skip
    try:
        try:
            triton, infra = _on_triton(model, rows, limits, serving, parity.precision)
        except EndedEarlyError:  # once may be the machine's moment
            triton, infra = _on_triton(model, rows, limits, serving, parity.precision)
    except EndedEarlyError as error:
        # Twice in a row is a result: the model does not load. It is measured again in the next run all the same.
        return ExportValidation(candidate=candidate, parity=parity, problem=str(error), depends_on_moment=True)
    except Exception as error:
        if not isinstance(error, ShortlistError) and not is_disk_full(error):
            raise
        if not exported.problem:
            raise NotMeasuredError(f"gates 'parity' and 'infra' are not measured: {error}") from error
        # A file that does not run in this process either is a result: the model is wrong, not the moment.
        return ExportValidation(candidate=candidate, parity=parity, problem=str(error))
    return ExportValidation(
        candidate=candidate, parity=parity.model_copy(update={"triton": triton}), infra=infra,
        unknown_values=unknown_values,
    )  # fmt: skip


class ComparedRows:
    """Rows to compare, and the agreement of their scores."""

    def __init__(self, served: ServedRows, batches: list[ServedBatch]) -> None:
        self.batches, self.model = batches, served.signature.model
        self._served = served

    def parity(self, scores: Callable[[], Scores], max_difference: float) -> ScoreParity:
        """Return the agreement of scores with training's, or why there are no scores."""
        try:
            return compare_scores(self._served, self.batches, scores(), max_difference)
        except NotMeasuredError:
            raise
        except ShortlistError as error:
            return ScoreParity(problem=str(error))


def _on_triton(
    model: Path, rows: ComparedRows, limits: ExportLimits, serving: Serving, precision: str
) -> tuple[ScoreParity, LoadTestResult]:
    """Return the agreement of a real Triton's scores, and its load test.

    Raises:
        ShortlistError: Triton does not start, or dies.
    """
    with TemporaryDirectory(prefix="shortlist-") as scratch:
        repository = Path(scratch) / "repository"
        write_repository(model / FOLDER, _VERSION, serving.batching, repository, scoring=serving.scoring)
        with running_triton(repository, seconds=_COLD_START_FACTOR * limits.infra.max_cold_start_seconds) as triton:
            max_difference = limits.max_score_difference if precision == "fp32" else BF16_MAX_SCORE_DIFFERENCE
            parity = rows.parity(lambda: score_on_triton(triton.ports.grpc, rows.model, rows.batches), max_difference)
            triton.memory_mib()  # raises when it died: missing scores of a dead server are no result
            return parity, run_load_test(triton, rows.model, rows.batches, limits.infra)
