"""Every model of a run side by side: quality, calibration, and what training and serving it cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from shortlist.contracts import Files
from shortlist.evaluation.export_validation import ExportValidation
from shortlist.evaluation.gate_inputs import read_record
from shortlist.evaluation.measure import Scored, compare, deciding_metric, measure
from shortlist.evaluation.records import LOW_IS_GOOD, TITLES, Difference, Metric, Record, Role
from shortlist.spec.gates import Gates
from shortlist.storage.artefacts import read_json


class TrainedFiles(NamedTuple):
    """What the steps of one model left."""

    role: Role
    folder: Path
    """The model folder."""
    scores: Path
    """Scores of the validation and test rows."""
    validation: Path | None = None
    """Folder of `export_validation.json`; a baseline has none."""


class Gap(Record):
    """By how much a model is above another one, with the interval of a paired bootstrap."""

    value: float
    low: float
    high: float


class ComparedModel(Record):
    """One line; a number is null where it could not be measured, as the latency of a baseline, which is not served."""

    kind: str
    role: Role
    auc: float | None = None
    log_loss: float | None = None
    gauc: float | None = None
    ndcg_at_10: float | None = None
    calibration_error: float | None = None
    train_seconds: float | None = None
    serving_p50_ms: float | None = None
    """Of a real Triton with the exported model, under the load that `gates.infra` declares."""
    size_bytes: int | None = None
    """Of the model folder: weights, preprocessing and exported graph."""
    against_best: dict[Metric, Gap] = Field(default_factory=dict)
    """Of each metric, against the best model on the same rows; empty for the best one itself."""
    dominated_by: tuple[str, ...] = ()
    """Models that are better by the deciding metric, beyond chance, and cost no more to train, serve and store."""
    problem: str = ""
    """Why it could not be measured."""


class ModelComparison(Record):
    """What `compare.json` holds."""

    spec: str
    metric: Metric
    """What decides."""
    best: str | None
    """The model with the best value of it; null when nothing could be measured."""
    confidence: float
    test_rows: int
    models: dict[str, ComparedModel]
    """Best first."""
    notice: str = ""
    """Which candidates are not better than the best baseline, beyond chance, and which are not better than a candidate
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
    scored = {name: measure(name, one.role, one.scores, limits, seed) for name, one in models.items()}
    by_rows = max((one.measures for one in scored.values()), key=lambda one: one.rows, default=None)
    metric = deciding_metric(limits, by_rows) if by_rows else "auc"
    ranked = sorted(scored, key=lambda name: (-_value(scored[name], metric), name))
    best = next((name for name in ranked if scored[name].resampled), None)
    lines = {name: _line(scored[name], models[name], scored[best] if best else None, limits) for name in ranked}
    dominated = {name: _dominating(name, lines, scored, metric, limits) for name in ranked}
    return ModelComparison(
        spec=spec,
        metric=metric,
        best=best,
        confidence=limits.confidence,
        test_rows=by_rows.rows if by_rows else 0,
        models={name: line.model_copy(update={"dominated_by": dominated[name]}) for name, line in lines.items()},
        notice=" ".join(
            filter(
                None,
                [_notice(ranked, scored, metric, limits), *_below(ranked, models, scored, metric, limits, blessed)],
            )
        ),
    )


def _line(scored: Scored, files: TrainedFiles, best: Scored | None, limits: Gates) -> ComparedModel:
    record: dict[str, Any] = read_json(files.folder / Files.MODEL)
    validation = read_record(ExportValidation, files.validation / Files.EXPORT_VALIDATION) if files.validation else None
    gaps = compare(scored, best, limits).differences if best and best is not scored else {}
    return ComparedModel(
        kind=str(record["kind"]),
        role=files.role,
        **{name: one.value for name, one in scored.resampled.items()},
        calibration_error=scored.measures.calibration_error,
        train_seconds=record.get("train_seconds"),
        serving_p50_ms=validation.infra.p50_ms if validation and validation.infra else None,
        size_bytes=sum(path.stat().st_size for path in files.folder.rglob("*") if path.is_file()),
        against_best={name: _gap(one) for name, one in gaps.items()},
        problem=scored.measures.problem,
    )


def _dominating(
    name: str, lines: Mapping[str, ComparedModel], scored: Mapping[str, Scored], metric: Metric, limits: Gates
) -> tuple[str, ...]:
    found = []
    for other, line in lines.items():
        gap = None if other == name else compare(scored[other], scored[name], limits).differences.get(metric)
        if gap is not None and _gap(gap).low > 0 and _costs_no_more(line, lines[name]):
            found.append(other)
    return tuple(found)


def _costs_no_more(one: ComparedModel, other: ComparedModel) -> bool:
    """Whether a model costs no more than another; a cost that only the other one has is not known to be lower."""
    costs = [
        (one.train_seconds, other.train_seconds),
        (one.serving_p50_ms, other.serving_p50_ms),
        (one.size_bytes, other.size_bytes),
    ]
    return all(theirs is None or (ours is not None and ours <= theirs) for ours, theirs in costs)


def _notice(ranked: Sequence[str], scored: Mapping[str, Scored], metric: Metric, limits: Gates) -> str:
    candidates, baselines = (
        [scored[name] for name in ranked if scored[name].measures.role == role] for role in ("candidate", "baseline")
    )
    if not candidates or not baselines:
        return ""
    baseline, name = baselines[0], baselines[0].measures.model
    leads = {one.measures.model: compare(one, baseline, limits).differences.get(metric) for one in candidates}
    behind = {model: lead for model, lead in leads.items() if lead is not None and _gap(lead).low <= 0}
    best = candidates[0].measures.model
    if best not in behind:
        return " ".join(_not_beaten(f"Candidate '{model}' does not beat", name, metric, lead, f"of '{model}'")
                        for model, lead in behind.items())  # fmt: skip
    return _not_beaten("No candidate beats", name, metric, behind[best], f"of '{best}', the best candidate,")


def _below(
    ranked: Sequence[str], models: Mapping[str, TrainedFiles], scored: Mapping[str, Scored], metric: Metric,
    limits: Gates, blessed: str,
) -> Iterator[str]:  # fmt: skip
    """Give a sentence for each candidate that is compared as a baseline and that others are not better than."""
    candidates = [name for name in ranked if models[name].role == "candidate" and scored[name].resampled]
    for reference in candidates:
        if not read_json(models[reference].folder / Files.MODEL).get("compared_as_baseline"):
            continue
        leads = {
            name: lead
            for name in candidates
            if name != reference and (lead := compare(scored[name], scored[reference], limits).differences.get(metric))
        }
        if behind := {name: lead for name, lead in leads.items() if lead.value <= 0}:
            said = f"{TITLES[metric]} {next(iter(behind.values())).reference:.4f}"
            named = ", ".join(f"'{name}' {_with_gap(lead)}" for name, lead in behind.items())
            yield f"Candidates not better than '{reference}' ({said} on the same test rows): {named}."
            yield from _which_serves(reference, leads, blessed)


def _which_serves(reference: str, leads: Mapping[str, Difference], blessed: str) -> Iterator[str]:
    """Say which candidate may be served, and whether it is above another one."""
    if blessed == reference:
        yield f"'{reference}' itself is blessed."
    elif (lead := leads.get(blessed)) is not None:
        above = "beats it" if _gap(lead).low > 0 else "does not beat it by more than chance"
        yield f"'{blessed}' is blessed, and {above}: {_with_gap(lead)}."


def _with_gap(lead: Difference) -> str:
    gap = _gap(lead)
    return f"{lead.candidate:.4f} ({gap.value:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}])"


def _not_beaten(subject: str, baseline: str, metric: Metric, lead: Difference, whose: str) -> str:
    """Return the sentence that says by how much a candidate is behind a baseline, or not clearly before it."""
    gap = _gap(lead)
    return (
        f"{subject} the baseline '{baseline}'{'' if lead.value <= 0 else ' by more than chance'}:"
        f" {TITLES[metric]} {lead.candidate:.4f} {whose} against {lead.reference:.4f} of '{baseline}' on the same test"
        f" rows ({gap.value:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}])."
    )


def _gap(one: Difference) -> Gap:
    low, high = one.interval or (one.low, one.value)
    return Gap(value=one.value, low=low, high=high)


def _value(scored: Scored, metric: Metric) -> float:
    found = scored.resampled.get(metric)
    if found is None:
        return float("-inf")
    return -found.value if metric in LOW_IS_GOOD else found.value
