"""What the exported model showed before it may ship: the same scores, and its answers under load."""

from __future__ import annotations

from typing import Final, Literal

from shortlist.evaluation.records import Record

NARROW_SCORES: Final = 0.02
"""Furthest that a score may be from training's when a network multiplies in bf16 (eight bits of every number)."""
NARROW_AUC: Final = 1e-4
"""Furthest that the AUC of all rows may then be from that of training's scores."""


class LargestDifference(Record):
    """The row whose score is furthest from training's."""

    impression: int
    reference: float
    """Training's score."""
    got: float
    inputs: tuple[str, ...] = ()
    """Inputs of the graph that differ from those made from the log itself; empty when none does."""


class ScoreParity(Record):
    """One way to the model's scores against training's own, row by row."""

    rows: int = 0
    max_difference: float | None = None
    """Largest absolute difference."""
    rank_differences: int = 0
    """Pairs of rows in the other order, or tied, although training's scores differ by more than 1e-6."""
    not_finite: int = 0
    """Scores that are NaN or infinite; they count in neither of the others."""
    auc_difference: float | None = None
    """Between these scores and training's on the same rows, absolute; None where there is no AUC."""
    worst: LargestDifference | None = None
    problem: str = ""
    """Why there are no scores; empty when there are."""


class Parity(Record):
    """The test rows through everything that serving does, without and with a real Triton."""

    test_rows: int
    """Rows there are."""
    exported: ScoreParity
    """The exported file, run in-process."""
    triton: ScoreParity
    """A real Triton with the real repository."""
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    """Precision of Triton's network; the gate compares by AUC where it is not fp32."""


class LoadTestResult(Record):
    """A real Triton under a declared load."""

    rows_per_request: int
    requests_per_second: float
    seconds: float
    requests: int
    failed: int
    """Requests that were not answered with as many finite scores as they had rows."""
    p50_ms: float | None = None
    """From when a request was due."""
    p99_ms: float | None = None
    memory_mib: float | None = None
    """Most resident memory of the server and what it started."""
    cold_start_seconds: float | None = None
    """From start to ready."""


class ExportValidation(Record):
    """What a candidate's `export_validation.json` holds; a part that is missing says in `problem` why."""

    candidate: str
    """Digest of the model folder that was validated."""
    parity: Parity | None = None
    infra: LoadTestResult | None = None
    problem: str = ""
