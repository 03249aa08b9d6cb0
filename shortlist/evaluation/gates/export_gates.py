"""The gates on a real Triton: `parity` (the exported model gives training's scores) and `infra` (latency, memory)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shortlist.evaluation.gates.export_validation import (
    BF16_MAX_AUC_DIFFERENCE,
    BF16_MAX_SCORE_DIFFERENCE,
    ExportValidation,
    LoadTestResult,
    ScoreParity,
)
from shortlist.evaluation.gates.gate_result import GateResult, format_count
from shortlist.spec.gates import ExportLimits, Infra


def parity_gate(
    validation: ExportValidation | None, candidate: str, test_rows: int, limits: ExportLimits
) -> GateResult:
    """Hold when the exported model, in-process or in Triton, does not give training's scores, or was not compared.

    Args:
        validation: Record of the export validation; None when there is no readable one.
        candidate: Digest of the model folder that is judged.
        test_rows: Number of test rows; where they are fewer than parity_rows, all must be compared.
        limits: parity_rows and max_score_difference.
    """
    unusable_reason = find_unusable_reason(validation, candidate)
    if unusable_reason or validation is None or validation.parity is None:
        return GateResult.from_failures("parity", [unusable_reason or "no scores were compared"], "")
    parity = validation.parity
    required_rows = max(1, min(limits.parity_rows, max(test_rows, parity.test_rows)))
    is_bf16 = parity.precision != "fp32"
    failures = list(
        _iter_score_failures("the exported file", parity.exported, required_rows, limits.max_score_difference)
    )
    if is_bf16:
        failures += _iter_score_failures("Triton", parity.triton, required_rows, BF16_MAX_SCORE_DIFFERENCE, "bf16")
        failures += _iter_auc_failures("Triton", parity.triton)
    else:
        failures += _iter_score_failures("Triton", parity.triton, required_rows, limits.max_score_difference)
    passes = (
        f"{format_count(parity.triton.rows)} test rows score the same: the exported file within"
        f" {_format_max_difference(parity.exported)}, Triton within {_format_max_difference(parity.triton)}, "
        + (f"AUC within {parity.triton.auc_difference or 0:.1e} (bf16)" if is_bf16 else "no pair in another order")
    )
    numbers = parity.model_dump() | {"wanted_rows": required_rows, "max_score_difference": limits.max_score_difference}
    return GateResult.from_failures("parity", failures, passes, **numbers)


def infra_gate(validation: ExportValidation | None, candidate: str, limits: Infra) -> GateResult:
    """Hold when a real Triton with the model is too slow, too large, fails requests, or was not put under load.

    Args:
        validation: Record of the export validation; None when there is no readable one.
        candidate: Digest of the model folder that is judged.
        limits: The load and its limits.
    """
    unusable_reason = find_unusable_reason(validation, candidate)
    if unusable_reason or validation is None or validation.infra is None:
        return GateResult.from_failures("infra", [unusable_reason or "no server was put under load"], "")
    load_test = validation.infra
    failures = [*_iter_load_failures(load_test, limits), *_iter_exceeded_limits(load_test, limits)]
    if load_test.failed:
        failures.insert(0, f"{format_count(load_test.failed)} of {format_count(load_test.requests)} requests failed")
    if failures and load_test.other_cores is not None:
        failures[-1] += f" (other processes used {load_test.other_cores:.1f} cores meanwhile)"
    passes = (
        f"p50 {load_test.p50_ms} ms, p99 {load_test.p99_ms} ms over {format_count(load_test.requests)} requests of"
        f" {format_count(load_test.rows_per_request)} rows, {load_test.memory_mib or 0:.0f} MiB,"
        f" ready in {load_test.cold_start_seconds or 0:.1f} s"
    )
    return GateResult.from_failures("infra", failures, passes, **load_test.model_dump(), limits=limits.model_dump())


def exceeds_limits(load_test: LoadTestResult, limits: Infra) -> bool:
    """Return whether requests failed, or a measurement is above its limit."""
    return load_test.failed > 0 or any(_iter_exceeded_limits(load_test, limits))


def depends_on_moment(results: Iterable[GateResult]) -> bool:
    """Return whether a candidate is held by a measurement that another moment may change: of latency, or of answers.

    Such a verdict is not reused from the cache. That the scores differ is the same at every moment.
    """
    results_by_name = {result.name: result for result in results if not result.passed}
    parity, infra = (results_by_name.get(name) for name in ("parity", "infra"))
    is_unanswered = parity is not None and bool(parity.numbers.get("triton", {}).get("problem"))
    return is_unanswered or (infra is not None and bool(infra.numbers))


def find_unusable_reason(validation: ExportValidation | None, candidate: str) -> str:
    """Return why a validation says nothing of a candidate; empty when it does."""
    if validation is None:
        return "not validated on a real Triton"
    if not candidate or validation.candidate != candidate:
        validated = validation.candidate or "unnamed"
        return f"the validation is of another model ({validated}, candidate {candidate or 'missing'})"
    return validation.problem


def _iter_score_failures(
    name: str,
    score_parity: ScoreParity,
    required_rows: int,
    max_difference: float,
    source: str = "max_score_difference",
) -> Iterator[str]:
    """Yield the reasons why scores differ from training's; in bf16 close rows may be in another order."""
    if score_parity.problem:
        yield f"{name}: {score_parity.problem}"
        return
    if score_parity.rows < required_rows:
        yield f"{name}: only {format_count(score_parity.rows)} rows were compared, wanted {format_count(required_rows)}"
    if score_parity.not_finite:
        row_count = format_count(score_parity.rows)
        yield f"{name}: {format_count(score_parity.not_finite)} of {row_count} scores are NaN or infinite"
    if score_parity.max_difference is None:
        yield f"{name}: no difference was measured"
    elif score_parity.max_difference > max_difference:
        limit = f"{max_difference:.0e} ({source})"
        worst_row = _describe_worst_row(score_parity)
        yield f"{name}: scores differ by up to {score_parity.max_difference:.1e} > {limit}{worst_row}"
    if score_parity.rank_differences and source != "bf16":
        yield f"{name}: {format_count(score_parity.rank_differences)} pairs of rows are in another order"


def _iter_auc_failures(name: str, score_parity: ScoreParity) -> Iterator[str]:
    if score_parity.problem:
        return
    if score_parity.auc_difference is None:
        yield f"{name}: there is no AUC to compare; in bf16 the order of rows is judged by it"
    elif score_parity.auc_difference > BF16_MAX_AUC_DIFFERENCE:
        yield f"{name}: AUC differs by {score_parity.auc_difference:.1e} > {BF16_MAX_AUC_DIFFERENCE:.0e} (bf16)"


def _describe_worst_row(score_parity: ScoreParity) -> str:
    if score_parity.worst is None:
        return ""
    inputs = (
        f", inputs {', '.join(score_parity.worst.inputs)} differ" if score_parity.worst.inputs else ", inputs are equal"
    )
    return f", most in impression {score_parity.worst.impression}{inputs}"


def _iter_load_failures(load_test: LoadTestResult, limits: Infra) -> Iterator[str]:
    """Yield how the load was lighter than declared; results of a lighter load are no evidence."""
    declared = {name: getattr(limits, name) for name in ("rows_per_request", "requests_per_second", "seconds")}
    for name, declared_value in declared.items():
        if getattr(load_test, name) < declared_value:
            yield f"the load was lighter than declared: {name} {getattr(load_test, name):g} < {declared_value:g}"
    required_requests = max(1, int(limits.requests_per_second * limits.seconds))
    if load_test.requests < required_requests:
        yield f"only {format_count(load_test.requests)} requests were sent, wanted {format_count(required_requests)}"


def _iter_exceeded_limits(load_test: LoadTestResult, limits: Infra) -> Iterator[str]:
    measured = {
        "p50_ms": ("ms", limits.max_p50_ms),
        "p99_ms": ("ms", limits.max_p99_ms),
        "memory_mib": ("MiB", limits.max_memory_mib),
        "cold_start_seconds": ("s", limits.max_cold_start_seconds),
    }
    for name, (unit, limit) in measured.items():
        value = getattr(load_test, name)
        if value is None:
            yield f"{name} was not measured"
        elif value > limit:
            yield f"{name.rsplit('_', 1)[0].replace('_', ' ')} {value:g} {unit} > {limit:g} {unit} (max_{name})"


def _format_max_difference(score_parity: ScoreParity) -> str:
    return "?" if score_parity.max_difference is None else f"{score_parity.max_difference:.1e}"
