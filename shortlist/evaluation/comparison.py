"""Comparison of all models of a run: quality, calibration, and the cost of training and serving."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from shortlist.contracts import Files
from shortlist.evaluation.gates.export_validation import ExportValidation
from shortlist.evaluation.gates.gate_inputs import read_record
from shortlist.evaluation.metrics.measure import ScoredModel, compare, deciding_metric, measure
from shortlist.evaluation.metrics.records import LOWER_IS_BETTER, TITLES, Metric, MetricDifference, Record, Role
from shortlist.spec.gates import Gates
from shortlist.storage.artefacts import read_json


class TrainedFiles(NamedTuple):
    """Files that the steps of one model wrote."""

    role: Role
    folder: Path
    """The model folder."""
    scores: Path
    """Scores of the validation and test rows."""
    validation: Path | None = None
    """Folder of `export_validation.json`; a baseline has none."""


class Gap(Record):
    """Difference between two models, with the interval of a paired bootstrap."""

    value: float
    low: float
    high: float


class ComparedModel(Record):
    """One model of the comparison; numbers that were not measured are null, such as the latency of a baseline."""

    kind: str
    role: Role
    auc: float | None = None
    log_loss: float | None = None
    gauc: float | None = None
    ndcg_at_10: float | None = None
    calibration_error: float | None = None
    train_seconds: float | None = None
    serving_p50_ms: float | None = None
    """Median latency of a real Triton with the exported model, under the load that `gates.infra` declares."""
    size_bytes: int | None = None
    """Size of the model folder: weights, preprocessing and exported graph."""
    against_best: dict[Metric, Gap] = Field(default_factory=dict)
    """Gap to the best model on the same rows, by metric; empty for the best model."""
    dominated_by: tuple[str, ...] = ()
    """Models that are significantly better by the deciding metric and cost no more to train, serve and store."""
    problem: str = ""
    """Why it could not be measured."""


class ModelComparison(Record):
    """Content of `compare.json`."""

    spec: str
    metric: Metric
    """The deciding metric."""
    best: str | None
    """Name of the model with the best value of it; null when nothing could be measured."""
    confidence: float
    test_rows: int
    models: dict[str, ComparedModel]
    """Best first."""
    notice: str = ""
    """Which candidates are not significantly better than the best baseline, and which are not better than a candidate
    that is compared as a baseline; empty when all are."""


def compare_models(
    spec: str, models: Mapping[str, TrainedFiles], limits: Gates, seed: int, blessed: str = ""
) -> ModelComparison:
    """Return the comparison of a run's models on its test rows.

    Args:
        spec: Name of the spec.
        models: By name.
        limits: Deciding metric, confidence level, bootstrap rounds.
        seed: Seed of the bootstrap.
        blessed: Name of the candidate that may be served; empty: none.
    """
    scored = {name: measure(name, files.role, files.scores, limits, seed) for name, files in models.items()}
    all_measures = (scored_model.measures for scored_model in scored.values())
    largest_measures = max(all_measures, key=lambda measures: measures.rows, default=None)
    metric = deciding_metric(limits, largest_measures) if largest_measures else "auc"
    ranked = sorted(scored, key=lambda name: (-_rank_value(scored[name], metric), name))
    best = next((name for name in ranked if scored[name].resampled), None)
    lines = {name: _line(scored[name], models[name], scored[best] if best else None, limits) for name in ranked}
    dominated = {name: _find_dominating_models(name, lines, scored, metric, limits) for name in ranked}
    return ModelComparison(
        spec=spec,
        metric=metric,
        best=best,
        confidence=limits.confidence,
        test_rows=largest_measures.rows if largest_measures else 0,
        models={name: line.model_copy(update={"dominated_by": dominated[name]}) for name, line in lines.items()},
        notice=" ".join(
            filter(
                None,
                [
                    _baseline_notice(ranked, scored, metric, limits),
                    *_iter_compared_candidate_notices(ranked, models, scored, metric, limits, blessed),
                ],
            )
        ),
    )


def _line(scored: ScoredModel, files: TrainedFiles, best: ScoredModel | None, limits: Gates) -> ComparedModel:
    record: dict[str, Any] = read_json(files.folder / Files.MODEL)
    validation = read_record(ExportValidation, files.validation / Files.EXPORT_VALIDATION) if files.validation else None
    gaps = compare(scored, best, limits).differences if best and best is not scored else {}
    return ComparedModel(
        kind=str(record["kind"]),
        role=files.role,
        **{name: resampled.value for name, resampled in scored.resampled.items()},
        calibration_error=scored.measures.calibration_error,
        train_seconds=record.get("train_seconds"),
        serving_p50_ms=validation.infra.p50_ms if validation and validation.infra else None,
        size_bytes=sum(path.stat().st_size for path in files.folder.rglob("*") if path.is_file()),
        against_best={name: _make_gap(difference) for name, difference in gaps.items()},
        problem=scored.measures.problem,
    )


def _find_dominating_models(
    name: str, lines: Mapping[str, ComparedModel], scored: Mapping[str, ScoredModel], metric: Metric, limits: Gates
) -> tuple[str, ...]:
    dominating_models = []
    for rival, rival_model in lines.items():
        gap = None if rival == name else compare(scored[rival], scored[name], limits).differences.get(metric)
        if gap is not None and _make_gap(gap).low > 0 and _is_no_costlier(rival_model, lines[name]):
            dominating_models.append(rival)
    return tuple(dominating_models)


def _is_no_costlier(model: ComparedModel, rival: ComparedModel) -> bool:
    """Return whether a model costs no more than a rival; a cost measured of the rival alone counts as higher."""
    costs = [
        (model.train_seconds, rival.train_seconds),
        (model.serving_p50_ms, rival.serving_p50_ms),
        (model.size_bytes, rival.size_bytes),
    ]
    return all(rival_cost is None or (cost is not None and cost <= rival_cost) for cost, rival_cost in costs)


def _baseline_notice(ranked: Sequence[str], scored: Mapping[str, ScoredModel], metric: Metric, limits: Gates) -> str:
    candidates, baselines = (
        [scored[name] for name in ranked if scored[name].measures.role == role] for role in ("candidate", "baseline")
    )
    if not candidates or not baselines:
        return ""
    baseline, name = baselines[0], baselines[0].measures.model
    leads = {
        candidate.measures.model: compare(candidate, baseline, limits).differences.get(metric)
        for candidate in candidates
    }
    unbeaten_leads = {model: lead for model, lead in leads.items() if lead is not None and _make_gap(lead).low <= 0}
    best = candidates[0].measures.model
    if best not in unbeaten_leads:
        return " ".join(
            _describe_unbeaten_baseline(f"Candidate '{model}' does not beat", name, metric, lead, f"of '{model}'")
            for model, lead in unbeaten_leads.items()
        )
    return _describe_unbeaten_baseline(
        "No candidate beats", name, metric, unbeaten_leads[best], f"of '{best}', the best candidate,"
    )


def _iter_compared_candidate_notices(
    ranked: Sequence[str], models: Mapping[str, TrainedFiles], scored: Mapping[str, ScoredModel], metric: Metric,
    limits: Gates, blessed: str,
) -> Iterator[str]:  # fmt: skip
    """Yield a sentence for each candidate that is compared as a baseline and that others are not better than."""
    candidates = [name for name in ranked if models[name].role == "candidate" and scored[name].resampled]
    for reference in candidates:
        if not read_json(models[reference].folder / Files.MODEL).get("compared_as_baseline"):
            continue
        leads = {
            name: lead
            for name in candidates
            if name != reference and (lead := compare(scored[name], scored[reference], limits).differences.get(metric))
        }
        if unbeaten_leads := {name: lead for name, lead in leads.items() if lead.value <= 0}:
            reference_value = f"{TITLES[metric]} {next(iter(unbeaten_leads.values())).reference:.4f}"
            models_with_gaps = ", ".join(f"'{name}' {_format_gap(lead)}" for name, lead in unbeaten_leads.items())
            yield (
                f"Candidates not better than '{reference}' ({reference_value} on the same test rows):"
                f" {models_with_gaps}."
            )
            yield from _describe_blessed(reference, leads, blessed)


def _describe_blessed(reference: str, leads: Mapping[str, MetricDifference], blessed: str) -> Iterator[str]:
    """Yield which candidate is blessed, and whether it beats the reference."""
    if blessed == reference:
        yield f"'{reference}' itself is blessed."
    elif (lead := leads.get(blessed)) is not None:
        outcome = "beats it" if _make_gap(lead).low > 0 else "does not beat it by more than chance"
        yield f"'{blessed}' is blessed, and {outcome}: {_format_gap(lead)}."


def _format_gap(lead: MetricDifference) -> str:
    gap = _make_gap(lead)
    return f"{lead.candidate:.4f} ({gap.value:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}])"


def _describe_unbeaten_baseline(
    subject: str, baseline: str, metric: Metric, lead: MetricDifference, attribution: str
) -> str:
    """Return a sentence with the lead of a candidate that does not beat a baseline by more than chance."""
    gap = _make_gap(lead)
    return (
        f"{subject} the baseline '{baseline}'{'' if lead.value <= 0 else ' by more than chance'}:"
        f" {TITLES[metric]} {lead.candidate:.4f} {attribution} against {lead.reference:.4f} of '{baseline}' on the same"
        f" test rows ({gap.value:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}])."
    )


def _make_gap(difference: MetricDifference) -> Gap:
    low, high = difference.interval or (difference.low, difference.value)
    return Gap(value=difference.value, low=low, high=high)


def _rank_value(scored: ScoredModel, metric: Metric) -> float:
    resampled_metric = scored.resampled.get(metric)
    if resampled_metric is None:
        return float("-inf")
    return -resampled_metric.value if metric in LOWER_IS_BETTER else resampled_metric.value
