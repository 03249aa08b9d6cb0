"""The gates: pure functions from numbers and limits to a result with its reason, and their registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from shortlist.evaluation.gates.export_gates import infra_gate, parity_gate
from shortlist.evaluation.gates.export_validation import ExportValidation
from shortlist.evaluation.gates.gate_inputs import GateInputs
from shortlist.evaluation.gates.gate_result import GateResult, format_count
from shortlist.evaluation.gates.integrity import verify_model_folder
from shortlist.evaluation.gates.label_gate import LabelLimits, compare_with_constant_rate, labels_gate
from shortlist.evaluation.gates.queries import queries_gate
from shortlist.evaluation.gates.retrieval import RetrievalLimits, retrieval_gate
from shortlist.evaluation.gates.slates import SlateLimits, SlateMeasures, slates_gate
from shortlist.evaluation.gates.unknown_values import UnknownValueLimits, unknown_values_gate
from shortlist.evaluation.gates.value import ValueLimits, value_gate
from shortlist.evaluation.metrics.calibration import rate_error
from shortlist.evaluation.metrics.measure import ScoredModel
from shortlist.evaluation.metrics.records import (
    TITLES,
    Champion,
    ConfidenceInterval,
    Measures,
    Metric,
    MetricDifference,
    PairedComparison,
    SkewMeasures,
    SliceComparison,
)
from shortlist.spec.base import Section
from shortlist.spec.gates import Gates
from shortlist.storage.artefacts import IntegrityError
from shortlist.system.registry import Registry

Settings = TypeVar("Settings", bound=Section)
_FIRST_MODEL: Final = "first model: there is no champion yet"


@dataclass(frozen=True)
class Case:
    """The evidence on one candidate that a gate may read."""

    limits: Gates
    """The gates' section of the spec."""
    evidence: GateInputs
    """Evidence that all candidates share."""
    folder: Path
    """The model folder; it may be missing."""
    digest: str
    """Digest of the folder; empty when it is missing."""
    scored: ScoredModel
    """The candidate's numbers, and its scores row by row where they could be read."""
    gain: PairedComparison
    """Comparison with the baseline that it has to beat."""
    comparison: PairedComparison | None
    """Comparison with the champion; None when there is none."""
    best_comparison: PairedComparison | None
    """Comparison with the best champion so far; None when that is the champion."""
    slices: Sequence[SliceComparison] | None
    """Comparison with the reference, slice by slice; None when slices could not be compared."""
    slices_problem: str
    """Why slices could not be compared."""
    validation: ExportValidation | None
    """Validation of the export on a real Triton; None when there is no readable record."""
    members: tuple[PairedComparison, ...] = ()
    """Comparisons of an ensemble with each of its members; empty for other models."""
    slates: SlateMeasures | None = None
    """Measures of its slates; None when no slates were made."""

    @property
    def measures(self) -> Measures:
        """The candidate's numbers on the test rows."""
        return self.scored.measures

    @property
    def test_rows(self) -> int:
        """Number of test rows: the larger of the rows that candidate and baseline scored."""
        return max(self.measures.rows, self.evidence.baseline.measures.rows)

    def settings(self, gate: str, kind: type[Settings]) -> Settings:
        """Return the settings that the spec declares for a gate under `gates.custom`, or the gate's defaults."""
        declared = self.limits.custom.get(gate, kind())
        assert isinstance(declared, kind), f"gates.custom.{gate} is read as {type(declared).__name__}"
        return declared


def data_gate(log: Mapping[str, Any] | None, candidate: Measures, limits: Gates) -> GateResult:
    """Hold when the log was not validated whole, or the test rows are too few or of one class.

    Args:
        log: Notes of the validated log: raw_rows, valid_rows, quarantined_rows.
        candidate: Its numbers on the test rows.
        limits: min_test_rows.
    """
    raw, valid, quarantined = (
        int((log or {}).get(name) or 0) for name in ("raw_rows", "valid_rows", "quarantined_rows")
    )
    failures = []
    if not valid:
        failures.append("there is no count of valid rows; the log was not validated")
    elif valid + quarantined < raw:
        failures.append(
            f"{format_count(raw - valid - quarantined)} of {format_count(raw)} raw rows are neither valid nor in"
            " quarantine"
        )
    if candidate.rows < limits.min_test_rows:
        failures.append(
            f"{format_count(candidate.rows)} test rows < {format_count(limits.min_test_rows)} (min_test_rows)"
        )
    if candidate.positives in (0, candidate.rows):
        failures.append(
            f"one class: {format_count(candidate.positives)} positives in {format_count(candidate.rows)} test rows"
        )
    if candidate.problem:
        failures.append(candidate.problem)
    passes = (
        f"{format_count(valid)} valid rows, {format_count(quarantined)} in quarantine,"
        f" {format_count(candidate.rows)} test rows{_describe_heavy_users(candidate)}"
    )
    counts = {"raw_rows": raw, "valid_rows": valid, "quarantined_rows": quarantined, "test_rows": candidate.rows}
    heavy_users = [user.model_dump() for user in candidate.heavy_users]
    return GateResult.from_failures(
        "data", failures, passes, **counts, min_test_rows=limits.min_test_rows, heavy_users=heavy_users
    )


def _describe_heavy_users(measures: Measures) -> str:
    users = ", ".join(
        f"user {heavy.user} has {heavy.share:.1%} of them, {heavy.label_rate:.1%} positive"
        for heavy in measures.heavy_users[:3]
    )
    return f"; {users}: a crawler's rows are best left out of the log" if users else ""


def skew_gate(skew: SkewMeasures | None, test_rows: int, limits: Gates) -> GateResult:
    """Hold when the rows that models train on differ from what Feast would serve, or were not compared.

    Args:
        skew: Report of the step that compares with Feast; None when there is no readable one.
        test_rows: Number of test rows; where they are fewer than skew_rows, all must be compared.
        limits: skew_rows.
    """
    if skew is None:
        return GateResult.from_failures("skew", ["no report of a comparison with Feast"], "")
    required_rows = max(1, min(limits.skew_rows, test_rows))
    failures = []
    if skew.rows_checked < required_rows:
        failures.append(
            f"only {format_count(skew.rows_checked)} rows were compared with Feast, wanted"
            f" {format_count(required_rows)} (gates.skew_rows, or all test rows where they are fewer); the days of the"
            " log hold too few rows for a comparison. Give more rows, or a lower gates.skew_rows"
        )
    if skew.columns and skew.keys_checked == 0:
        failures.append("none of those rows has a key that Feast knows, so no value was compared")
    if not skew.row_count_ok:
        failures.append("Feast gave back another number of rows than it was asked for")
    for kind, mismatches in (("historical", skew.historical_mismatches), ("online", skew.online_mismatches)):
        if mismatches:
            failures.append(
                f"{format_count(mismatches)} answers differ from Feast's {kind} ones ({_describe_worst_columns(skew)})"
            )
    passes = f"{format_count(skew.rows_checked)} rows equal Feast's historical and online answers"
    numbers = skew.model_dump(exclude={"columns"}) | {"columns": {name: n for name, n in skew.columns.items() if n}}
    gate_result = GateResult.from_failures("skew", failures, passes, **numbers)
    is_short = skew.rows_checked < required_rows and not (skew.historical_mismatches or skew.online_mismatches)
    return gate_result.model_copy(update={"cause": "few_rows"}) if is_short else gate_result


def absolute_gate(
    candidate: Measures, gain: PairedComparison, metric: Metric, limits: Gates, members: Sequence[PairedComparison] = ()
) -> GateResult:
    """Hold when the confidence bounds of AUC and log loss miss their limits, or it does not beat the baseline.

    An ensemble must also beat each of its members: otherwise that member alone would do.

    Args:
        candidate: Its numbers on the test rows.
        gain: The candidate against the baseline, paired: on the same rows of the same resampled users.
        metric: The deciding metric; where that is the GAUC, or where a GAUC gain is declared, the GAUC must be above
            the baseline's as the AUC must.
        limits: min_auc, max_log_loss, min_gain_over_baseline, min_gauc_gain and the confidence level.
        members: An ensemble against each of its members, paired likewise; empty for other models.
    """
    numbers: dict[str, Any] = {"min_auc": limits.min_auc, "max_log_loss": limits.max_log_loss, "metric": metric}
    if candidate.auc is None or candidate.log_loss is None or candidate.label_rate is None:
        return GateResult.from_failures(
            "absolute", [f"no numbers: {candidate.problem or 'not measured'}"], "", **numbers
        )
    level = f"{limits.confidence:.0%} bound, {format_count(candidate.rows)} test rows"
    failures = []
    if candidate.auc.low < limits.min_auc:
        failures.append(f"AUC, lower bound {candidate.auc.low:.4f} < {limits.min_auc:.4f} (min_auc; {level})")
    is_better, log_losses = compare_with_constant_rate(candidate)
    if limits.max_log_loss is not None:
        is_better = candidate.log_loss.high < limits.max_log_loss
        sign = "<" if is_better else ">="
        log_losses = f"log loss {candidate.log_loss.high:.4f} {sign} {limits.max_log_loss:.4f} (max_log_loss)"
    if not is_better:
        failures.append(f"{log_losses} ({level})")
    failures += _iter_gain_failures(gain, metric, limits)
    failures += _iter_member_failures(members, metric, limits)
    intervals = {
        name: interval.model_dump()
        for name in ("auc", "log_loss", "constant_rate_gap", "gauc", "ndcg_at_10")
        if (interval := _measured_interval(candidate, name))
    }
    numbers |= {**intervals, "baseline": gain.reference}
    numbers |= {f"{name}_gain": difference.model_dump() for name, difference in gain.differences.items()}
    leads = {member.reference: member.differences[metric] for member in members if metric in member.differences}
    numbers |= {"members": {name: lead.model_dump() for name, lead in leads.items()}} if members else {}
    gains = "".join(
        f", {TITLES[name]} gain {difference.describe()}"
        for name, difference in _differences_with_floors(gain, metric, limits)
    )
    passes = (
        f"AUC, lower bound {candidate.auc.low:.4f} >= {limits.min_auc:.4f}, {log_losses}"
        f"{gains} over {gain.reference}"
        f"{''.join(f', {TITLES[metric]} lead {lead.describe()} over {name}' for name, lead in leads.items())} ({level})"
    )
    return GateResult.from_failures("absolute", failures, passes, **numbers)


def champion_gate(
    champion: Champion | None,
    comparison: PairedComparison | None,
    metric: Metric,
    limits: Gates,
    best: PairedComparison | None = None,
) -> GateResult:
    """Hold when the candidate may be worse than the champion by more than the margin, or they cannot be compared.

    The same margin applies to the best champion so far: it stops a chain of promotions each of which is slightly worse
    but within the margin of the one before.

    Args:
        champion: The model that serves now; its version is empty when there is none. None when it was not looked up.
        comparison: The candidate against the champion, on the same rows.
        metric: The deciding metric.
        limits: The margins and the confidence level.
        best: The candidate against the best champion so far, on the same rows; None when that is the champion.
    """
    if champion is None:
        return GateResult.from_failures("champion", ["whether there is a champion was not looked up"], "")
    if not champion.version:
        passes = f"compared with the baselines: {champion.retired}" if champion.retired else _FIRST_MODEL
        return GateResult.from_failures("champion", (), passes, version="")
    name = f"champion, version {champion.version}"
    difference = comparison.differences.get(metric) if comparison else None
    if champion.problem or comparison is None or comparison.problem or difference is None:
        reason = champion.problem or (comparison.problem if comparison else "it was not scored")
        reason = reason or f"too few users have rows of both classes for {TITLES[metric]}"
        return GateResult.from_failures(
            "champion", [f"{name}: no comparison, {reason}{champion.advice}"], "", version=champion.version
        )
    margin = limits.margin[metric]
    holds = difference.low < -margin
    sentence = (
        f"{TITLES[metric]} difference {difference.describe()} {'<' if holds else '>='} {-margin:.4f}"
        f" ({difference.candidate:.4f} against {difference.reference:.4f} of the {name};"
        f" one-sided {limits.confidence:.0%} bound, {format_count(difference.rows)} test rows"
        f"{_declared_then(champion)})"
    )
    numbers: dict[str, Any] = {
        name: metric_difference.model_dump(exclude={"metric"})
        for name, metric_difference in comparison.differences.items()
    }
    deciding = {**difference.model_dump(), "version": champion.version, f"max_{metric}_drop": margin}
    failures = [f"{sentence}{champion.advice}"] if holds else []
    failures += _iter_best_champion_failures(champion, best, metric, limits)
    if best is not None:
        gap = best.differences.get(metric)
        numbers["best"] = {"version": champion.best, **(gap.model_dump() if gap else {})}
    return GateResult.from_failures("champion", failures, sentence, **numbers, **deciding)


def _declared_then(champion: Champion) -> str:
    return " of the log as it was declared for that version" if champion.declared_then else ""


def _iter_best_champion_failures(
    champion: Champion, best: PairedComparison | None, metric: Metric, limits: Gates
) -> Iterator[str]:
    if best is None:
        return
    name, gap = f"version {champion.best}, the best champion so far", best.differences.get(metric)
    if gap is None:
        problem = champion.best_problem or best.problem or "it was not scored"
        yield f"{name}: no comparison, {problem}; gates.compare_with_best: false compares with the champion alone"
    elif gap.low < -limits.margin[metric]:
        yield (
            f"{TITLES[metric]} difference {gap.describe()} < {-limits.margin[metric]:.4f} ({gap.candidate:.4f} against"
            f" {gap.reference:.4f} of {name}): small steps down add up"
        )


def calibration_gate(candidate: Measures, limits: Gates) -> GateResult:
    """Hold when scores are not calibrated: the error of the bins exceeds chance plus the limit, or the mean is off."""
    error, noise = candidate.calibration_error, candidate.calibration_noise
    if error is None or noise is None or candidate.mean_score is None or candidate.label_rate is None:
        return GateResult.from_failures("calibration", [f"no numbers: {candidate.problem or 'not measured'}"], "")
    relative_rate_error = rate_error(candidate.mean_score, candidate.label_rate)
    limit = limits.max_calibration_error
    failures = []
    # Chance is subtracted first: an average of absolute values never reaches 0, and on few rows it is mostly chance.
    if error - noise > limit:
        failures.append(
            f"calibration error {error:.4f}, of which {noise:.4f} is expected by chance and subtracted:"
            f" {error - noise:.4f} > {limit:.4f} (max_calibration_error)"
        )
    if relative_rate_error is None:
        failures.append("no positives to compare the mean score with")
    elif relative_rate_error > limits.max_rate_error:
        rates = f"mean score {candidate.mean_score:.4f}, label rate {candidate.label_rate:.4f}"
        failures.append(f"rate error {relative_rate_error:.3f} > {limits.max_rate_error:.3f} ({rates})")
    excess_error = max(error - noise, 0.0)
    passes = (
        f"calibration error {error:.4f}, of which {noise:.4f} is expected by chance and subtracted:"
        f" {excess_error:.4f} <= {limit:.4f}; rate error {relative_rate_error or 0:.3f}"
    )
    numbers = {"calibration_error": error, "calibration_noise": noise, "rate_error": relative_rate_error}
    return GateResult.from_failures("calibration", failures, passes, **numbers, max_calibration_error=limit)


def slices_gate(
    slices: Sequence[SliceComparison] | None, reference: str, limits: Gates, problem: str = ""
) -> GateResult:
    """Hold when a slice fell behind the reference by more than the margin, or declared slices cannot be judged.

    A slice by a condition is judged by its own limits; where it cannot be measured, the candidate is held.

    Args:
        slices: Every slice, its p-value Holm-corrected; None when they could not be compared.
        reference: The champion, or the baseline when there is none.
        limits: max_slice_auc_drop, confidence, min_slice_rows and the declared slices.
        problem: Why they could not be compared.
    """
    if slices is None:
        return GateResult.from_failures("slices", [problem or "the slices were not compared"], "", reference=reference)
    conditions = [comparison for comparison in slices if comparison.condition is not None]
    value_slices = [comparison for comparison in slices if comparison.condition is None]
    judged_slices = [comparison for comparison in value_slices if comparison.difference is not None]
    failures = [
        _describe_condition(comparison, reference, limits)
        for comparison in conditions
        if comparison.difference is None or comparison.misses_min_auc or comparison.misses_max_drop
    ]
    failures += _iter_slice_failures(judged_slices, reference, limits)
    if limits.slice_columns and not judged_slices:
        failures.append(f"none of {len(value_slices)} slices could be judged (min_slice_rows {limits.min_slice_rows})")
    skipped = len(value_slices) - len(judged_slices)
    margin = f"{limits.max_slice_auc_drop:.3f}"
    passes = f"{len(judged_slices)} slices not behind {reference} by more than {margin}, {skipped} not judged"
    passes += "".join(f"; {_describe_condition(comparison, reference, limits)}" for comparison in conditions)
    numbers: dict[str, Any] = {"judged": len(judged_slices), "not_judged": skipped, "reference": reference}
    if conditions:
        numbers["conditions"] = {
            comparison.name: comparison.difference and comparison.difference.model_dump() for comparison in conditions
        }
    return GateResult.from_failures("slices", failures, passes, **numbers, max_slice_auc_drop=limits.max_slice_auc_drop)


def integrity_gate(digests: Mapping[str, str] | None, problem: str = "") -> GateResult:
    """Hold when the model's files are not those that training wrote, or can run code."""
    if not digests:
        return GateResult.from_failures("integrity", [problem or "no verified files"], "")
    failures = [problem] if problem else ()
    return GateResult.from_failures(
        "integrity", failures, f"every file is as training wrote it ({len(digests)})", digests=dict(digests)
    )


def _judge_integrity(case: Case) -> GateResult:
    try:
        return integrity_gate(verify_model_folder(case.folder))
    except IntegrityError as problem:
        return integrity_gate(None, str(problem))


def _describe_worst_columns(skew: SkewMeasures) -> str:
    worst = sorted((-count, name) for name, count in skew.columns.items() if count)[:3]
    return "most in " + ", ".join(name for _, name in worst) if worst else "no column named"


def _iter_gain_failures(gain: PairedComparison, metric: Metric, limits: Gates) -> Iterator[str]:
    if gain.problem or "auc" not in gain.differences:
        yield f"no baseline to beat: {gain.problem or f'{gain.reference} was not scored'}"
        return
    floors = _gain_floors(metric, limits)
    if missing := [TITLES[name] for name in floors if name not in gain.differences]:
        yield f"no {', '.join(missing)} to compare: too few users have rows of both classes"
    for name, difference in _differences_with_floors(gain, metric, limits):
        if difference.low <= floors[name]:  # a baseline that is copied is not beaten
            yield (
                f"{TITLES[name]} gain {difference.describe()} <= {floors[name]:.4f} ({difference.candidate:.4f} against"
                f" {difference.reference:.4f} of {gain.reference} on the same {format_count(difference.rows)} test"
                f" rows; one-sided {limits.confidence:.0%} bound,"
                f" {'min_gauc_gain' if name == 'gauc' else 'min_gain_over_baseline'})"
            )


def _iter_member_failures(members: Sequence[PairedComparison], metric: Metric, limits: Gates) -> Iterator[str]:
    for member in members:
        name, lead = f"its member {member.reference}", member.differences.get(metric)
        if lead is None:
            yield f"{name}: no comparison, {member.problem or 'too few users have rows of both classes'}"
        elif lead.low <= 0:
            yield (
                f"{TITLES[metric]} lead {lead.describe()} <= 0 ({lead.candidate:.4f} against {lead.reference:.4f} of"
                f" {name} on the same {format_count(lead.rows)} test rows; one-sided {limits.confidence:.0%} bound):"
                f" {member.reference} alone would do"
            )


def _differences_with_floors(
    gain: PairedComparison, metric: Metric, limits: Gates
) -> list[tuple[Metric, MetricDifference]]:
    """Return the differences that have to reach a floor."""
    return [(name, difference) for name in _gain_floors(metric, limits) if (difference := gain.differences.get(name))]


def _gain_floors(metric: Metric, limits: Gates) -> dict[Metric, float]:
    floors: dict[Metric, float] = {"auc": limits.min_gain_over_baseline}
    if limits.min_gauc_gain is not None and (metric == "gauc" or limits.min_gauc_gain > 0):
        floors["gauc"] = limits.min_gauc_gain
    return floors


def _measured_interval(measures: Measures, metric: str) -> ConfidenceInterval | None:
    interval: ConfidenceInterval | None = getattr(measures, metric)
    return interval


def _describe_condition(comparison: SliceComparison, reference: str, limits: Gates) -> str:
    """Return the figures of both models on a condition's rows beside its limits, or why there are none."""
    gap, condition = comparison.difference, comparison.condition
    if gap is None or comparison.auc is None or condition is None:
        return f"{comparison.name}: unknown, {comparison.note}"
    figures = []
    if condition.min_auc is not None:
        sign = "<" if comparison.misses_min_auc else ">="
        figures.append(f"AUC, lower bound {comparison.auc.low:.4f} {sign} {condition.min_auc:.4f} (min_auc)")
    if condition.max_drop is not None:
        sign = "<" if comparison.misses_max_drop else ">="
        figures.append(f"AUC difference {gap.describe()} {sign} {-condition.max_drop:.4f} (max_drop)")
    return (
        f"{comparison.name}: {', '.join(figures)} ({gap.candidate:.4f} against {gap.reference:.4f} of {reference} on"
        f" the same {format_count(comparison.rows)} test rows; {limits.confidence:.0%} bounds)"
    )


def _iter_slice_failures(judged_slices: Sequence[SliceComparison], reference: str, limits: Gates) -> Iterator[str]:
    for comparison in judged_slices:
        assert comparison.difference is not None
        if comparison.p_value is None or comparison.p_value < 1 - limits.confidence:
            gap = comparison.difference
            p_value = comparison.p_value if comparison.p_value is None else f"{comparison.p_value:.2g}"
            yield (
                f"{comparison.name}: AUC {gap.candidate:.4f} against {gap.reference:.4f} of {reference}, a gap of"
                f" {gap.value:+.4f} beyond {-limits.max_slice_auc_drop:.4f}"
                f" (p = {p_value}, {format_count(comparison.rows)} rows)"
            )


class Gate(NamedTuple):
    """A gate of the registry."""

    judge: Callable[[Case], GateResult]
    """Function from the evidence to the result; the name of the result is the gate's."""
    settings: type[Section] | None = None
    """Section of its own settings, `gates.custom.<name>` in a spec; every field has a default."""
    declared: Callable[[Case], bool] | None = None
    """Whether the spec declares what the gate judges; otherwise it is skipped. None: the gate is always required."""


GATES: Final = Registry[Gate](
    "gates",
    {
        "data": Gate(lambda case: data_gate(case.evidence.log, case.measures, case.limits)),
        "skew": Gate(lambda case: skew_gate(case.evidence.skew, case.test_rows, case.limits)),
        "absolute": Gate(
            lambda case: absolute_gate(case.measures, case.gain, case.evidence.metric, case.limits, case.members)
        ),
        "champion": Gate(
            lambda case: champion_gate(
                case.evidence.champion, case.comparison, case.evidence.metric, case.limits, case.best_comparison
            )
        ),
        "calibration": Gate(lambda case: calibration_gate(case.measures, case.limits)),
        "slices": Gate(
            lambda case: slices_gate(case.slices, case.evidence.reference_name, case.limits, case.slices_problem)
        ),
        "unknown_values": Gate(
            lambda case: unknown_values_gate(
                case.validation, case.digest, case.settings("unknown_values", UnknownValueLimits)
            ),
            UnknownValueLimits,
        ),
        "integrity": Gate(_judge_integrity),
        "parity": Gate(lambda case: parity_gate(case.validation, case.digest, case.test_rows, case.limits)),
        "retrieval": Gate(
            lambda case: retrieval_gate(case.evidence.retrieval, case.settings("retrieval", RetrievalLimits)),
            RetrievalLimits,
            lambda case: case.evidence.retrieval_declared,
        ),
        "labels": Gate(
            lambda case: labels_gate(
                case.scored,
                case.evidence.baseline,
                case.evidence.serving,
                case.limits,
                case.settings("labels", LabelLimits),
            ),
            LabelLimits,
            lambda case: bool(case.scored.labels),
        ),
        "slates": Gate(
            lambda case: slates_gate(case.slates, case.settings("slates", SlateLimits)),
            SlateLimits,
            lambda case: case.evidence.retrieval_declared,
        ),
        "value": Gate(
            lambda case: value_gate(
                case.slates, case.settings("value", ValueLimits), case.evidence.champion, case.limits.confidence
            ),
            ValueLimits,
            lambda case: case.evidence.retrieval_declared,
        ),
        "queries": Gate(
            lambda case: queries_gate(case.scored, case.evidence.baseline, case.evidence.serving, case.limits),
            declared=lambda case: bool(case.limits.queries),
        ),
        "infra": Gate(lambda case: infra_gate(case.validation, case.digest, case.limits.infra)),
    },
    file_attribute="GATE",
)
"""Every gate, in the order of reports."""


def iter_results(case: Case) -> Iterator[GateResult]:
    """Yield the result of every registered gate that a spec requires or declares.

    A gate that is not built in holds the candidate when it fails; its result has its name in the registry.
    """
    for name, gate in GATES.complete().items():
        if (origin := GATES.added.get(name)) is None:
            if gate.declared is None or gate.declared(case):
                yield gate.judge(case)
        elif (result := _judge_added(name, gate, origin, case)) is not None:
            yield result


def _judge_added(name: str, gate: Gate, origin: str, case: Case) -> GateResult | None:
    try:
        if gate.declared is None or gate.declared(case):
            return gate.judge(case).model_copy(update={"name": name})
    except Exception as error:  # whatever the user's code raises
        reason = f"the gate itself failed ({origin}): {type(error).__name__}: {error}"
        return GateResult.from_failures(name, [reason], "")
    return None


def required_gates() -> tuple[str, ...]:
    """Return the names of the gates whose result every new report must have, whatever is declared."""
    return tuple(name for name, gate in GATES.complete().items() if gate.declared is None)
