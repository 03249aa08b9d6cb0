"""The gate on the scores of further labels: holds a candidate one of whose heads has collapsed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from shortlist.evaluation.gates.gate_result import GateResult, format_count
from shortlist.evaluation.metrics.calibration import rate_error
from shortlist.evaluation.metrics.measure import ScoredModel, compare
from shortlist.evaluation.metrics.records import Measures, PairedComparison
from shortlist.spec.base import Section
from shortlist.spec.gates import Gates


class LabelLimits(Section):
    """Limits for the score of every further label; `gates.custom.labels`."""

    min_auc: float = Field(default=0.52, ge=0.5, le=1.0)
    """Least lower bound of its test AUC."""
    min_gain_over_baseline: float = Field(default=0.0, ge=-0.1, le=0.5)
    """Its AUC must exceed that of the baseline's score of the same label by this, by the lower bound of a paired
    bootstrap. Not checked where the baseline has no such score."""
    max_auc_drop: float = Field(default=0.01, ge=0.0003, le=0.2)
    """Non-inferiority margin against the champion's score of that label, where it has one."""
    max_rate_error: float = Field(default=0.2, gt=0, le=1)
    """Largest relative difference between its mean score and the label's rate on the test rows."""


def labels_gate(
    candidate: ScoredModel,
    baseline: ScoredModel,
    champion: ScoredModel | None,
    limits: Gates,
    label_limits: LabelLimits,
) -> GateResult:
    """Hold when the score of a further label is no better than a constant or the baseline, or behind the champion's.

    A value formula (`ordering.value`) may read each of these scores: one that has collapsed would order at random,
    however good the score of the main label is.

    Args:
        candidate: The candidate on the test rows, with its further labels.
        baseline: The baseline that it has to beat.
        champion: The champion; None when there is none.
        limits: Confidence level.
        label_limits: The limits of further labels.
    """
    failures: list[str] = []
    passes: list[str] = []
    numbers: dict[str, Any] = label_limits.model_dump()
    for name, head in candidate.labels.items():
        baseline_comparison = compare(head, baseline.labels[name], limits) if name in baseline.labels else None
        champion_comparison = (
            compare(head, champion.labels[name], limits) if champion and name in champion.labels else None
        )
        failures += [
            f"{name}: {problem}"
            for problem in _iter_label_failures(head.measures, baseline_comparison, champion_comparison, label_limits)
        ]
        numbers[name] = _label_numbers(head.measures, baseline_comparison, champion_comparison)
        if head.measures.auc is not None:
            passes.append(
                f"{name}: AUC, lower bound {head.measures.auc.low:.4f} >= {label_limits.min_auc:.4f}"
                f"{_format_gain(baseline_comparison)}"
            )
    level = f" ({limits.confidence:.0%} bound, {format_count(candidate.measures.rows)} test rows)"
    return GateResult.from_failures("labels", failures, "; ".join(passes) + level, **numbers)


def compare_with_constant_rate(measures: Measures) -> tuple[bool, str]:
    """Return whether a log loss is below that of the constant label rate, by the upper bound of the paired difference.

    Returns:
        Whether it is, and a phrase with both figures.
    """
    gap, log_loss = measures.constant_rate_gap, measures.log_loss
    if gap is None or log_loss is None:
        return False, "log loss: not compared with that of a constant rate"
    difference = f"difference {gap.value:+.4f}, upper bound {gap.high:+.4f} {'<' if gap.high < 0 else '>='} 0"
    return gap.high < 0, (
        f"log loss {log_loss.value:.4f} against {log_loss.value - gap.value:.4f} of a constant rate ({difference})"
    )


def _iter_label_failures(
    head: Measures,
    baseline_comparison: PairedComparison | None,
    champion_comparison: PairedComparison | None,
    label_limits: LabelLimits,
) -> Iterator[str]:
    if head.auc is None or head.log_loss is None or head.label_rate is None or head.mean_score is None:
        yield f"no numbers: {head.problem or 'not measured'}"
        return
    if head.auc.low < label_limits.min_auc:
        yield f"AUC, lower bound {head.auc.low:.4f} < {label_limits.min_auc:.4f} (min_auc)"
    is_better, log_losses = compare_with_constant_rate(head)
    if not is_better:
        yield log_losses
    relative_rate_error = rate_error(head.mean_score, head.label_rate)
    if relative_rate_error is None or relative_rate_error > label_limits.max_rate_error:
        rates = f"mean score {head.mean_score:.4f}, label rate {head.label_rate:.4f}"
        error = "unknown" if relative_rate_error is None else f"{relative_rate_error:.1%}"
        yield f"rate error {error} > {label_limits.max_rate_error:.1%} ({rates})"
    yield from _iter_difference_failures(
        baseline_comparison, label_limits.min_gain_over_baseline, "min_gain_over_baseline"
    )
    yield from _iter_difference_failures(champion_comparison, -label_limits.max_auc_drop, "max_auc_drop")


def _iter_difference_failures(comparison: PairedComparison | None, floor: float, key: str) -> Iterator[str]:
    if comparison is None:
        return
    difference = comparison.differences.get("auc")
    if difference is None:
        yield f"cannot be compared with {comparison.reference}: {comparison.problem}"
    elif difference.low <= floor:
        yield (
            f"AUC {difference.candidate:.4f} against {difference.reference:.4f} of {comparison.reference}, a difference"
            f" of {difference.describe()} <= {floor:+.4f} ({key})"
        )


def _format_gain(gain: PairedComparison | None) -> str:
    difference = gain.differences.get("auc") if gain is not None else None
    return "" if gain is None or difference is None else f", gain {difference.describe()} over {gain.reference}"


def _label_numbers(
    head: Measures, baseline_comparison: PairedComparison | None, champion_comparison: PairedComparison | None
) -> dict[str, Any]:
    numbers: dict[str, Any] = {"label_rate": head.label_rate, "mean_score": head.mean_score}
    numbers |= {
        name: interval.model_dump()
        for name in ("auc", "log_loss", "gauc")
        if (interval := getattr(head, name)) is not None
    }
    for key, comparison in (("auc_gain", baseline_comparison), ("auc_against_champion", champion_comparison)):
        if comparison is not None and (difference := comparison.differences.get("auc")) is not None:
            numbers[key] = difference.model_dump()
    return numbers
