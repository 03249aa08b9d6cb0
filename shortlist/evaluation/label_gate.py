"""The gate of further labels: none of a candidate's heads may have collapsed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from shortlist.evaluation.calibration import rate_error
from shortlist.evaluation.gate_result import GateResult, rows
from shortlist.evaluation.measure import Scored, compare
from shortlist.evaluation.metrics import constant_log_loss
from shortlist.evaluation.records import Comparison, Measures
from shortlist.spec.base import Section
from shortlist.spec.gates import Gates


class LabelLimits(Section):
    """What the score of every further label must show; `gates.custom.labels`."""

    min_auc: float = Field(default=0.52, ge=0.5, le=1.0)
    """The lower bound of its test AUC must reach it."""
    min_gain_over_baseline: float = Field(default=0.0, ge=-0.1, le=0.5)
    """Its AUC must be above the baseline's own score of that label by this, by the lower bound of a paired bootstrap.
    Not asked where the baseline has no such score."""
    max_auc_drop: float = Field(default=0.01, ge=0.0003, le=0.2)
    """Non-inferiority margin against the champion's score of that label, where it has one."""
    max_rate_error: float = Field(default=0.2, gt=0, le=1)
    """Largest relative difference between its mean score and the label's rate on the test rows."""


def labels_gate(
    candidate: Scored, baseline: Scored, champion: Scored | None, limits: Gates, own: LabelLimits
) -> GateResult:
    """Hold when the score of a further label is no better than a constant or than the baseline's, or has fallen behind.

    A value formula (`ordering.value`) may read each of these scores: one that has collapsed would order at random,
    however good the label's own score is.

    Args:
        candidate: Its numbers on the test rows, with those of its further labels.
        baseline: Those of the baseline that it has to beat.
        champion: Those of the champion; None when there is none.
        limits: Confidence level.
        own: The limits of further labels.
    """
    failures: list[str] = []
    passes: list[str] = []
    numbers: dict[str, Any] = own.model_dump()
    for name, head in candidate.labels.items():
        gain = compare(head, baseline.labels[name], limits) if name in baseline.labels else None
        behind = compare(head, champion.labels[name], limits) if champion and name in champion.labels else None
        failures += [f"{name}: {problem}" for problem in _problems(head.measures, gain, behind, own)]
        numbers[name] = _numbers(head.measures, gain, behind)
        if head.measures.auc is not None:
            passes.append(f"{name}: AUC {head.measures.auc.low:.4f} >= {own.min_auc:.4f}{_gained(gain)}")
    level = f" ({limits.confidence:.0%} bound, {rows(candidate.measures.rows)} test rows)"
    return GateResult.of("labels", failures, "; ".join(passes) + level, **numbers)


def _problems(head: Measures, gain: Comparison | None, behind: Comparison | None, own: LabelLimits) -> Iterator[str]:
    if head.auc is None or head.log_loss is None or head.label_rate is None or head.mean_score is None:
        yield f"no numbers: {head.problem or 'not measured'}"
        return
    ceiling = constant_log_loss(head.label_rate)
    if head.auc.low < own.min_auc:
        yield f"AUC {head.auc.low:.4f} < {own.min_auc:.4f} (min_auc)"
    if head.log_loss.high >= ceiling:
        yield f"log loss {head.log_loss.high:.4f} >= {ceiling:.4f} (log loss of a constant rate)"
    off = rate_error(head.mean_score, head.label_rate)
    if off is None or off > own.max_rate_error:
        rates = f"mean score {head.mean_score:.4f}, label rate {head.label_rate:.4f}"
        yield f"rate error {'unknown' if off is None else f'{off:.1%}'} > {own.max_rate_error:.1%} ({rates})"
    yield from _behind(gain, own.min_gain_over_baseline, "min_gain_over_baseline")
    yield from _behind(behind, -own.max_auc_drop, "max_auc_drop")


def _behind(found: Comparison | None, least: float, key: str) -> Iterator[str]:
    if found is None:
        return
    difference = found.differences.get("auc")
    if difference is None:
        yield f"cannot be compared with {found.reference}: {found.problem}"
    elif difference.low <= least:
        yield (
            f"AUC {difference.candidate:.4f} against {difference.reference:.4f} of {found.reference}, a difference of"
            f" {difference.low:+.4f} <= {least:+.4f} ({key})"
        )


def _gained(gain: Comparison | None) -> str:
    difference = gain.differences.get("auc") if gain is not None else None
    return "" if gain is None or difference is None else f", gain {difference.low:+.4f} over {gain.reference}"


def _numbers(head: Measures, gain: Comparison | None, behind: Comparison | None) -> dict[str, Any]:
    shown: dict[str, Any] = {"label_rate": head.label_rate, "mean_score": head.mean_score}
    shown |= {
        name: one.model_dump() for name in ("auc", "log_loss", "gauc") if (one := getattr(head, name)) is not None
    }
    for key, found in (("auc_gain", gain), ("auc_against_champion", behind)):
        if found is not None and (difference := found.differences.get("auc")) is not None:
            shown[key] = difference.model_dump()
    return shown
