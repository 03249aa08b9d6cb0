"""Canary checks that a spec declares: conditions over the evidence of a step, or over a query of Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template
from typing import Any, Final

import polars as pl

from shortlist.contracts import ShortlistError
from shortlist.rollout.checks.health import CheckResult, not_compared
from shortlist.rollout.evidence.counts import TRACK_COUNTS, USER_COUNTS
from shortlist.rollout.evidence.rollout_evidence import StepEvidence, TrackEvidence
from shortlist.spec.serving import DeclaredCheck
from shortlist.system.prometheus import Prometheus, PrometheusUnavailableError
from shortlist.system.row_expressions import compile_expression, parse_expression

_COUNTS: Final = frozenset((*TRACK_COUNTS, *USER_COUNTS, "kpi_users"))
_STABLE_QUALITY: Final = frozenset(
    f"stable_{name}" for name in ("mean_score", "kpi", "kpi_users", "hit_rate", "clicks_per_slate", "hits", "clicks")
)
"""Columns about scores and outcomes of the stable track; of a retired version they are no yardstick."""
_VALUE: Final = "value"
"""Column with the value of a query."""


def check_declared_checks(checks: Mapping[str, DeclaredCheck]) -> None:
    """Check the conditions of declared checks.

    Raises:
        ValueError: A condition is no condition, or reads an unknown column; the message names the check.
    """
    for name, check in checks.items():
        for key in ("breach", "wait"):
            if (condition := getattr(check, key)) is None:
                continue
            try:
                parse_expression(condition, _column_types(check), "condition", "the evidence")
            except ShortlistError as error:
                raise ValueError(f"checks.{name}.{key}: {error}") from None


def run_declared_check(
    name: str, check: DeclaredCheck, evidence: StepEvidence, version: int, retirement: str = ""
) -> CheckResult:
    """Return the result of a declared check; it waits while a number that it reads is unknown.

    Args:
        name: Name of the check.
        check: Its declaration.
        evidence: Evidence of the step.
        version: Version of the canary, for `$version` of a query.
        retirement: Which version of the stable track was retired, and why; a breach over its scores and outcomes is
            then skipped, and a wait over them not waited for.
    """
    if retirement and _reads_stable_quality(check.breach):
        return not_compared(name, retirement)
    row = _evidence_row(evidence)
    if check.query is not None and check.prometheus is not None:
        query = Template(check.query).safe_substitute(version=version)
        try:
            values = Prometheus(check.prometheus).query_values(query)
        except PrometheusUnavailableError as error:
            return CheckResult(name, "wait", str(error))
        if len(values) > 1:
            return CheckResult(name, "wait", f"{name}: got {len(values)} values of '{query}', wanted one; add sum(...)")
        row[_VALUE] = values[0] if values else None
    frame = pl.DataFrame({column: [value] for column, value in row.items()}, schema=_column_types(check))
    if check.wait is not None and not (retirement and _reads_stable_quality(check.wait)):
        waiting = _evaluate(name, check.wait, frame)
        if waiting.status != "ok":
            return CheckResult(name, "wait", waiting.reason, waiting.numbers)
    return _evaluate(name, check.breach, frame)


def _reads_stable_quality(condition: str) -> bool:
    return not _STABLE_QUALITY.isdisjoint(compile_expression(condition).columns)


def _evaluate(name: str, condition: str, frame: pl.DataFrame) -> CheckResult:
    """Return a breach where the condition is true, and wait where it is null."""
    expression = compile_expression(condition)
    numbers = frame.select(expression.columns).row(0, named=True)
    known_text = ", ".join(f"{column} {value:g}" for column, value in numbers.items() if value is not None)
    is_true = expression.evaluate(frame)[0]
    if is_true is None:
        unknown = [column for column, value in numbers.items() if value is None]
        return CheckResult(name, "wait", f"{name}: no value yet of {', '.join(unknown) or condition}", numbers)
    return CheckResult(name, "breach" if is_true else "ok", f"{name}: {condition} ({known_text})", numbers)


def _evidence_row(evidence: StepEvidence) -> dict[str, Any]:
    tracks = {"canary": evidence.canary, "stable": evidence.stable}
    return {f"{name}_{key}": value for name, track in tracks.items() for key, value in track.summary().items()}


def _column_types(check: DeclaredCheck) -> dict[str, pl.DataType]:
    """Return the columns that the conditions of a check may read."""
    types: dict[str, pl.DataType] = {
        f"{track}_{key}": pl.Int64() if key in _COUNTS else pl.Float64()
        for track in ("canary", "stable")
        for key in TrackEvidence().summary()
    }
    return types | ({_VALUE: pl.Float64()} if check.query is not None else {})
