"""Records of the validation of an exported model: parity of its scores, and its latency under load."""

from __future__ import annotations

from typing import Final, Literal

from shortlist.evaluation.metrics.records import Record

BF16_MAX_SCORE_DIFFERENCE: Final = 0.02
"""Largest difference from training's score when a network multiplies in bf16 (eight bits of every number)."""
BF16_MAX_AUC_DIFFERENCE: Final = 1e-4
"""Largest difference from the AUC of training's scores in bf16, over all rows."""


class LargestDifference(Record):
    """The row with the largest difference from training's score."""

    impression: int
    reference: float
    """Training's score."""
    score: float
    inputs: tuple[str, ...] = ()
    """Inputs of the graph that differ from those made from the log itself; empty when none does."""


class ScoreParity(Record):
    """Scores of an exported model compared with training's, row by row."""

    rows: int = 0
    max_difference: float | None = None
    """Largest absolute difference."""
    rank_differences: int = 0
    """Pairs of rows in the opposite order, or tied, although training's scores differ by more than 1e-6."""
    not_finite: int = 0
    """Scores that are NaN or infinite; the two numbers above leave them out."""
    auc_difference: float | None = None
    """Absolute difference from the AUC of training's scores on the same rows; None where there is no AUC."""
    worst: LargestDifference | None = None
    problem: str = ""
    """Why there are no scores; empty when there are."""


class Parity(Record):
    """Scores of the test rows by the whole serving path, without and with a real Triton."""

    test_rows: int
    """Number of test rows."""
    exported: ScoreParity
    """Scores of the exported file, run in-process."""
    triton: ScoreParity
    """Scores of a real Triton with the real model repository."""
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
    """Median latency, counted from the moment at which a request was due."""
    p99_ms: float | None = None
    memory_mib: float | None = None
    """Peak resident memory of the server and its child processes."""
    cold_start_seconds: float | None = None
    """Time from start to ready."""
    other_cores: float | None = None
    """Processor cores that all other processes of the machine used meanwhile, on average."""


class UnknownValueEffect(Record):
    """Effect of a missing or unseen value of one column of a request on the scores of the test rows."""

    column: str
    value: Literal["missing", "unseen"]
    shift: float
    """Log-odds of the mean score if all rows had the value, minus those of the mean score of the rows as they are."""
    spread: float
    """Standard deviation of the change of single rows' log-odds: about as much as the column says."""
    share: float
    """Share of the rows that have it: where it is not rare, its effect was learnt from rows with it."""
    is_key: bool = False
    """Whether the column names the user or the item; cold users and items are slices of their own."""


class ExportValidation(Record):
    """Content of a candidate's `export_validation.json`; `problem` says why a part is missing."""

    candidate: str
    """Digest of the model folder that was validated."""
    parity: Parity | None = None
    infra: LoadTestResult | None = None
    unknown_values: tuple[UnknownValueEffect, ...] | None = None
    """Effects of unknown values, by column; None when they were not measured."""
    problem: str = ""
    depends_on_moment: bool = False
    """Whether a gate is held by what another moment may change (latency, unanswered requests): it is not reused."""
