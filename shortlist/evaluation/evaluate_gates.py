"""Evaluation of the gates of a run: every candidate through every gate, and the blessing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from shortlist.contracts import Files
from shortlist.evaluation.blessing import bless, write_blessing
from shortlist.evaluation.choice import choose_candidate, find_lower_earners
from shortlist.evaluation.gates.export_validation import ExportValidation
from shortlist.evaluation.gates.gate_inputs import (
    GateInputs,
    read_gate_inputs,
    read_record,
    read_retrieval,
    validation_log_loss,
)
from shortlist.evaluation.gates.gate_report import GateReport
from shortlist.evaluation.gates.gates import Case, iter_results
from shortlist.evaluation.gates.slates import SLATES, SlateMeasures, measure_slates
from shortlist.evaluation.metrics.measure import ScoredModel, best_possible, compare, measure
from shortlist.evaluation.metrics.pointwise import UnmeasurableError
from shortlist.evaluation.metrics.records import Measures, PairedComparison, SliceComparison
from shortlist.evaluation.metrics.scores import select_common_rows
from shortlist.evaluation.metrics.slices import compare_slices, has_slices
from shortlist.evaluation.verdict import GateVerdict
from shortlist.spec.gates import Gates
from shortlist.storage.artefacts import atomic_folder, folder_digest, write_json


class Candidate(NamedTuple):
    """Files of one candidate that earlier steps wrote."""

    folder: Path
    """The model folder."""
    scores: Path
    """Scores of the validation and test rows."""
    validation: Path
    """Folder of `export_validation.json`."""
    members: tuple[str, ...] = ()
    """Names of the members of an ensemble; empty for other models."""


def evaluate_gates(  # noqa: PLR0913, PLR0917 - what the steps before left
    limits: Gates,
    seed: int,
    candidates: Mapping[str, Candidate],
    valid_log: Path,
    skew: Path,
    champion: Path,
    baseline_scores: Path,
    verdict: Path,
    retrieval: Path | None = None,
    slates: Mapping[str, Path] = MappingProxyType({}),
) -> str | None:
    """Write the verdict folder (`gates.json`, `blessing.json`); return the name of the blessed model, if any.

    Args:
        limits: The gates' section of the spec.
        seed: Seed of every bootstrap.
        candidates: Files of the candidates, by name of the model.
        valid_log: The validated log.
        skew: Folder of `skew.json`.
        champion: Folder of `champion.json` and, when it could be scored, of its scores.
        baseline_scores: Scores of the baseline that they have to beat.
        verdict: Folder to write.
        retrieval: Folder that the retrieval step wrote; None or an empty folder: nothing is declared.
        slates: Folder of the evaluated slates of each candidate, by name; empty: no slates are made.
    """
    evidence = read_gate_inputs(valid_log, skew, champion, baseline_scores, limits, seed)
    evidence = replace(evidence, **read_retrieval(retrieval, limits, seed))
    scored = {
        model: measure(model, "candidate", candidate.scores, limits, seed) for model, candidate in candidates.items()
    }
    outcomes = [
        _evaluate_candidate(
            candidate,
            scored[model],
            [scored[member] for member in candidate.members],
            evidence,
            limits,
            seed,
            (slates[model], champion / SLATES) if slates else None,
        )
        for model, candidate in candidates.items()
    ]
    gate_verdict = _make_verdict(outcomes, evidence, limits)
    passing_scores = {report.model: candidates[report.model].scores for report in gate_verdict.reports if report.passed}
    lower_earners = find_lower_earners({model: slates[model] for model in passing_scores}) if slates else {}
    compared_scores = {model: scores for model, scores in passing_scores.items() if model not in lower_earners}
    choice = choose_candidate(compared_scores, gate_verdict.metric, limits, seed)
    blessing = bless(gate_verdict.reports, gate_verdict.models, choice, lower_earners)
    with atomic_folder(verdict) as staging:
        write_json(staging / Files.GATES, gate_verdict.model_dump(mode="json"))
        write_blessing(staging / Files.BLESSING, blessing)
    return blessing.blessed.model if blessing.blessed else None


@dataclass(frozen=True)
class _CandidateOutcome:
    """Measures, comparisons and gate report of one candidate."""

    measures: Measures
    gain: PairedComparison
    comparison: PairedComparison | None
    best_comparison: PairedComparison | None
    slices: tuple[SliceComparison, ...] | None
    slates: SlateMeasures | None
    report: GateReport


def _evaluate_candidate(
    candidate: Candidate,
    scored: ScoredModel,
    members: Sequence[ScoredModel],
    evidence: GateInputs,
    limits: Gates,
    seed: int,
    slate_folders: tuple[Path, Path] | None,
) -> _CandidateOutcome:
    folder, model = candidate.folder, scored.measures.model
    scored = replace(
        scored, measures=scored.measures.model_copy(update={"validation_log_loss": validation_log_loss(folder)})
    )
    gain = compare(scored, evidence.baseline, limits)
    comparison = compare(scored, evidence.serving, limits) if evidence.serving else None
    best = compare(scored, evidence.best, limits) if evidence.best else None
    slices, problem = _compare_slices(scored, evidence, limits, seed)
    digest = folder_digest(folder) if folder.is_dir() else ""
    validation = read_record(ExportValidation, candidate.validation / Files.EXPORT_VALIDATION)
    slates = None
    if slate_folders is not None:
        candidate_slates, champion_slates = slate_folders
        slates = measure_slates(candidate_slates, limits.confidence, limits.bootstrap_rounds, seed, champion_slates)
    case = Case(limits, evidence, folder, digest, scored, gain, comparison, best, slices, problem, validation,
                tuple(compare(scored, member, limits) for member in members), slates)  # fmt: skip
    report = GateReport.from_results(model, digest, iter_results(case))
    return _CandidateOutcome(scored.measures, gain, comparison, best, slices, slates, report)


def _compare_slices(
    candidate: ScoredModel, evidence: GateInputs, limits: Gates, seed: int
) -> tuple[tuple[SliceComparison, ...] | None, str]:
    reference = evidence.reference
    if candidate.read_rows is None or reference.read_rows is None:
        return None, candidate.measures.problem or f"{evidence.reference_name}: {reference.measures.problem}"
    try:
        rows = candidate.read_rows()
        if candidate.digest == reference.digest and not has_slices(rows, limits):
            return (), ""
        both_rows = rows, reference.read_rows()
        if reference.is_partial:
            both_rows = select_common_rows(*both_rows)
        return compare_slices(*both_rows, limits, seed), ""
    except UnmeasurableError as problem:
        return None, str(problem)


def _make_verdict(outcomes: list[_CandidateOutcome], evidence: GateInputs, limits: Gates) -> GateVerdict:
    serving = (evidence.serving.measures,) if evidence.serving else ()
    return GateVerdict(
        limits=limits,
        metric=evidence.metric,
        models=(*(outcome.measures for outcome in outcomes), evidence.baseline.measures, *serving),
        gains={outcome.measures.model: outcome.gain for outcome in outcomes},
        comparisons={outcome.measures.model: outcome.comparison for outcome in outcomes if outcome.comparison},
        best_comparisons={
            outcome.measures.model: outcome.best_comparison for outcome in outcomes if outcome.best_comparison
        },
        slices={outcome.measures.model: outcome.slices for outcome in outcomes if outcome.slices is not None},
        slice_reference=evidence.reference_name,
        best_possible=best_possible(read_rows()) if (read_rows := evidence.baseline.read_rows) else None,
        champion=evidence.champion,
        skew=evidence.skew,
        log=evidence.log,
        retrieval=evidence.retrieval,
        slate_measures={outcome.measures.model: outcome.slates for outcome in outcomes if outcome.slates is not None},
        reports=tuple(outcome.report for outcome in outcomes),
    )
