"""The whole judgement of a run: every candidate through every gate, and the blessing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from shortlist.contracts import Files
from shortlist.evaluation.blessing import bless, write_blessing
from shortlist.evaluation.choice import choose
from shortlist.evaluation.export_validation import ExportValidation
from shortlist.evaluation.gate_inputs import (
    GateInputs,
    read_gate_inputs,
    read_record,
    read_retrieval,
    validation_log_loss,
)
from shortlist.evaluation.gate_report import GateReport
from shortlist.evaluation.gates import GATES, Case
from shortlist.evaluation.measure import Scored, best_possible, compare, measure
from shortlist.evaluation.metrics import UnmeasurableError
from shortlist.evaluation.records import Comparison, Measures, SliceComparison
from shortlist.evaluation.slates import SLATES, SlateMeasures, measure_slates
from shortlist.evaluation.slices import compare_slices
from shortlist.evaluation.verdict import Verdict
from shortlist.spec.gates import Gates
from shortlist.storage.artefacts import atomic_folder, folder_digest, write_json


class Candidate(NamedTuple):
    """What the steps before left about one model."""

    folder: Path
    """The model folder."""
    scores: Path
    """Scores of the validation and test rows."""
    validation: Path
    """Folder of `export_validation.json`."""
    members: tuple[str, ...] = ()
    """Names of the candidates that it is made of."""


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
    slates: Path | None = None,
) -> str | None:
    """Write the verdict folder (`gates.json`, `blessing.json`); return the name of the blessed model, if any.

    Args:
        limits: The gates' section of the spec.
        seed: Seed of every bootstrap.
        candidates: By name of the model.
        valid_log: The validated log.
        skew: Folder of `skew.json`.
        champion: Folder of `champion.json` and, when it could be scored, of its scores.
        baseline_scores: Scores of the baseline that they have to beat.
        verdict: Where to write.
        retrieval: What the retrieval step left; None or an empty folder: nothing is declared.
        slates: Folder with one of every candidate's slates, by its name; None: none were made.
    """
    evidence = read_gate_inputs(valid_log, skew, champion, baseline_scores, limits, seed)
    evidence = replace(evidence, **read_retrieval(retrieval, limits, seed))
    scored = {
        model: measure(model, "candidate", candidate.scores, limits, seed) for model, candidate in candidates.items()
    }
    results = [
        _evaluate_candidate(
            candidate,
            scored[model],
            [scored[one] for one in candidate.members],
            evidence,
            limits,
            seed,
            (slates / model, champion / SLATES) if slates is not None else None,
        )
        for model, candidate in candidates.items()
    ]
    found = _verdict(results, evidence, limits)
    passing = {one.model: candidates[one.model].scores for one in found.reports if one.passed}
    blessing = bless(found.reports, found.models, choose(passing, found.metric, limits, seed))
    with atomic_folder(verdict) as staging:
        write_json(staging / Files.GATES, found.model_dump(mode="json"))
        write_blessing(staging / Files.BLESSING, blessing)
    return blessing.blessed.model if blessing.blessed else None


@dataclass(frozen=True)
class _CandidateResult:
    """What came out about one candidate."""

    measures: Measures
    gain: Comparison
    comparison: Comparison | None
    best_comparison: Comparison | None
    slices: tuple[SliceComparison, ...] | None
    slates: SlateMeasures | None
    report: GateReport


def _evaluate_candidate(
    candidate: Candidate, scored: Scored, members: Sequence[Scored], evidence: GateInputs, limits: Gates, seed: int,
    made: tuple[Path, Path] | None,
) -> _CandidateResult:  # fmt: skip
    folder, model = candidate.folder, scored.measures.model
    scored = replace(
        scored, measures=scored.measures.model_copy(update={"validation_log_loss": validation_log_loss(folder)})
    )
    gain = compare(scored, evidence.baseline, limits)
    comparison = compare(scored, evidence.serving, limits) if evidence.serving else None
    best = compare(scored, evidence.best, limits) if evidence.best else None
    slices, problem = _slices(scored, evidence, limits, seed)
    digest = folder_digest(folder) if folder.is_dir() else ""
    validation = read_record(ExportValidation, candidate.validation / Files.EXPORT_VALIDATION)
    slates = None
    if made is not None:
        own, of_champion = made
        slates = measure_slates(own, limits.confidence, limits.bootstrap_rounds, seed, of_champion)
    case = Case(limits, evidence, folder, digest, scored, gain, comparison, best, slices, problem, validation,
                tuple(compare(scored, one, limits) for one in members), slates)  # fmt: skip
    asked = [gate for gate in GATES.complete().values() if gate.declared is None or gate.declared(case)]
    report = GateReport.of(model, digest, (gate.judge(case) for gate in asked))
    return _CandidateResult(scored.measures, gain, comparison, best, slices, slates, report)


def _slices(
    candidate: Scored, evidence: GateInputs, limits: Gates, seed: int
) -> tuple[tuple[SliceComparison, ...] | None, str]:
    reference = evidence.reference
    if candidate.rows is None or reference.rows is None:
        return None, candidate.measures.problem or f"{evidence.reference_name}: {reference.measures.problem}"
    try:
        return compare_slices(candidate.rows, reference.rows, limits, seed), ""
    except UnmeasurableError as problem:
        return None, str(problem)


def _verdict(results: list[_CandidateResult], evidence: GateInputs, limits: Gates) -> Verdict:
    serving = (evidence.serving.measures,) if evidence.serving else ()
    return Verdict(
        limits=limits,
        metric=evidence.metric,
        models=(*(one.measures for one in results), evidence.baseline.measures, *serving),
        gains={one.measures.model: one.gain for one in results},
        comparisons={one.measures.model: one.comparison for one in results if one.comparison},
        best_comparisons={one.measures.model: one.best_comparison for one in results if one.best_comparison},
        slices={one.measures.model: one.slices for one in results if one.slices is not None},
        slice_reference=evidence.reference_name,
        best_possible=best_possible(evidence.baseline.rows) if evidence.baseline.rows else None,
        champion=evidence.champion,
        skew=evidence.skew,
        log=evidence.log,
        retrieval=evidence.retrieval,
        slate_measures={one.measures.model: one.slates for one in results if one.slates is not None},
        reports=tuple(one.report for one in results),
    )
