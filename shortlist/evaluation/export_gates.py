"""The gates that need a real Triton: does the exported model give training's scores, and does it give them in time?"""

from __future__ import annotations

from collections.abc import Iterator

from shortlist.evaluation.export_validation import (
    NARROW_AUC,
    NARROW_SCORES,
    ExportValidation,
    LoadTestResult,
    ScoreParity,
)
from shortlist.evaluation.gate_result import GateResult, rows
from shortlist.spec.gates import Gates, Infra


def parity_gate(validation: ExportValidation | None, candidate: str, test_rows: int, limits: Gates) -> GateResult:
    """Hold when the exported model, in-process or in Triton, does not give training's scores, or nobody compared.

    Args:
        validation: What the validation found; None when it left no readable record.
        candidate: Digest of the model folder that is judged.
        test_rows: Rows there are; fewer than parity_rows can only all be compared.
        limits: parity_rows and max_score_difference.
    """
    refused = _unusable(validation, candidate)
    if refused or validation is None or validation.parity is None:
        return GateResult.of("parity", [refused or "no scores were compared"], "")
    found = validation.parity
    wanted = max(1, min(limits.parity_rows, max(test_rows, found.test_rows)))
    narrow = found.precision != "fp32"
    failures = list(_disagreements("the exported file", found.exported, wanted, limits.max_score_difference))
    if narrow:
        failures += _disagreements("Triton", found.triton, wanted, NARROW_SCORES, "bf16")
        failures += _another_auc("Triton", found.triton)
    else:
        failures += _disagreements("Triton", found.triton, wanted, limits.max_score_difference)
    passes = (
        f"{rows(found.triton.rows)} test rows score the same: the exported file within {_or_nothing(found.exported)},"
        f" Triton within {_or_nothing(found.triton)}, "
        + (f"AUC within {found.triton.auc_difference or 0:.1e} (bf16)" if narrow else "no pair in another order")
    )
    numbers = found.model_dump() | {"wanted_rows": wanted, "max_score_difference": limits.max_score_difference}
    return GateResult.of("parity", failures, passes, **numbers)


def infra_gate(validation: ExportValidation | None, candidate: str, limits: Infra) -> GateResult:
    """Hold when a real Triton with the model is too slow, too large, fails requests, or nobody asked it.

    Args:
        validation: What the validation found; None when it left no readable record.
        candidate: Digest of the model folder that is judged.
        limits: The load and its limits.
    """
    refused = _unusable(validation, candidate)
    if refused or validation is None or validation.infra is None:
        return GateResult.of("infra", [refused or "no server was put under load"], "")
    found = validation.infra
    failures = [*_lighter(found, limits), *_over(found, limits)]
    if found.failed:
        failures.insert(0, f"{rows(found.failed)} of {rows(found.requests)} requests failed")
    passes = (
        f"p50 {found.p50_ms} ms, p99 {found.p99_ms} ms over {rows(found.requests)} requests of"
        f" {rows(found.rows_per_request)} rows, {found.memory_mib or 0:.0f} MiB,"
        f" ready in {found.cold_start_seconds or 0:.1f} s"
    )
    return GateResult.of("infra", failures, passes, **found.model_dump(), limits=limits.model_dump())


def _unusable(validation: ExportValidation | None, candidate: str) -> str:
    if validation is None:
        return "not validated on a real Triton"
    if not candidate or validation.candidate != candidate:
        validated = validation.candidate or "unnamed"
        return f"the validation is of another model ({validated}, candidate {candidate or 'missing'})"
    return validation.problem


def _disagreements(
    name: str, way: ScoreParity, wanted: int, furthest: float, source: str = "max_score_difference"
) -> Iterator[str]:
    """Give the reasons why scores are not training's; in bf16 close rows may come in another order."""
    if way.problem:
        yield f"{name}: {way.problem}"
        return
    if way.rows < wanted:
        yield f"{name}: only {rows(way.rows)} rows were compared, wanted {rows(wanted)}"
    if way.not_finite:
        yield f"{name}: {rows(way.not_finite)} of {rows(way.rows)} scores are NaN or infinite"
    if way.max_difference is None:
        yield f"{name}: no difference was measured"
    elif way.max_difference > furthest:
        limit = f"{furthest:.0e} ({source})"
        yield f"{name}: scores differ by up to {way.max_difference:.1e} > {limit}{_where(way)}"
    if way.rank_differences and source != "bf16":
        yield f"{name}: {rows(way.rank_differences)} pairs of rows are in another order"


def _another_auc(name: str, way: ScoreParity) -> Iterator[str]:
    if way.problem:
        return
    if way.auc_difference is None:
        yield f"{name}: there is no AUC to compare; in bf16 the order of rows is judged by it"
    elif way.auc_difference > NARROW_AUC:
        yield f"{name}: AUC differs by {way.auc_difference:.1e} > {NARROW_AUC:.0e} (bf16)"


def _where(way: ScoreParity) -> str:
    if way.worst is None:
        return ""
    inputs = f", inputs {', '.join(way.worst.inputs)} differ" if way.worst.inputs else ", inputs are equal"
    return f", most in impression {way.worst.impression}{inputs}"


def _lighter(found: LoadTestResult, limits: Infra) -> Iterator[str]:
    """Give the reasons why the load was not the declared one: evidence of something easier is none."""
    declared = {name: getattr(limits, name) for name in ("rows_per_request", "requests_per_second", "seconds")}
    for name, wanted in declared.items():
        if getattr(found, name) < wanted:
            yield f"the load was lighter than declared: {name} {getattr(found, name):g} < {wanted:g}"
    due = max(1, int(limits.requests_per_second * limits.seconds))
    if found.requests < due:
        yield f"only {rows(found.requests)} requests were sent, wanted {rows(due)}"


def _over(found: LoadTestResult, limits: Infra) -> Iterator[str]:
    measured = {
        "p50_ms": ("ms", limits.max_p50_ms),
        "p99_ms": ("ms", limits.max_p99_ms),
        "memory_mib": ("MiB", limits.max_memory_mib),
        "cold_start_seconds": ("s", limits.max_cold_start_seconds),
    }
    for name, (unit, limit) in measured.items():
        value = getattr(found, name)
        if value is None:
            yield f"{name} was not measured"
        elif value > limit:
            yield f"{name.rsplit('_', 1)[0].replace('_', ' ')} {value:g} {unit} > {limit:g} {unit} (max_{name})"


def _or_nothing(way: ScoreParity) -> str:
    return "?" if way.max_difference is None else f"{way.max_difference:.1e}"
