"""The whole judgement of a run: every candidate through every gate, and the blessing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from shortlist.artefacts import IntegrityError, folder_digest, write_json, written_whole
from shortlist.config.gates import Gates
from shortlist.contracts import Files
from shortlist.evaluation import gates as gate
from shortlist.evaluation import proof_gates
from shortlist.evaluation.blessing import bless, write_blessing
from shortlist.evaluation.evidence import Evidence, read_evidence, read_record, validation_log_loss
from shortlist.evaluation.gate_report import GateReport, GateResult
from shortlist.evaluation.integrity import verify_model_folder
from shortlist.evaluation.intervals import bootstrap_difference
from shortlist.evaluation.measure import Scored, best_possible, measure, scores_file
from shortlist.evaluation.metrics import UnmeasurableError
from shortlist.evaluation.proof import Proof
from shortlist.evaluation.records import Comparison, Measures, SliceComparison
from shortlist.evaluation.slices import compare_slices
from shortlist.evaluation.verdict import Verdict


class Candidate(NamedTuple):
    """What the steps before left about one model; when it has neither folder nor scores it was not declared."""

    folder: Path
    """The model folder."""
    scores: Path
    """Scores of the validation and test rows."""
    proof: Path
    """Folder of `proof.json`."""


def judge(
    limits: Gates,
    seed: int,
    candidates: Mapping[str, Candidate],
    valid_log: Path,
    skew: Path,
    champion: Path,
    popularity_scores: Path,
    verdict: Path,
) -> str | None:
    """Write the verdict folder (`gates.json`, `blessing.json`); return the name of the blessed model, if any.

    Args:
        limits: The gates' section of the spec.
        seed: Seed of every bootstrap.
        candidates: By name of the model.
        valid_log: The validated log.
        skew: Folder of `skew.json`.
        champion: Folder of `champion.json` and, when it could be scored, of its scores.
        popularity_scores: Scores of the popularity baseline.
        verdict: Where to write.
    """
    evidence = read_evidence(valid_log, skew, champion, popularity_scores, limits, seed)
    declared = {model: candidate for model, candidate in candidates.items() if _declared(candidate)}
    hearings = [_hear(model, candidate, evidence, limits, seed) for model, candidate in declared.items()]
    found = _verdict(hearings, evidence, limits)
    blessing = bless(found.reports, found.models)
    with written_whole(verdict) as staging:
        write_json(staging / Files.GATES, found.model_dump(mode="json"))
        write_blessing(staging / Files.BLESSING, blessing)
    return blessing.blessed.model if blessing.blessed else None


@dataclass(frozen=True)
class _Hearing:
    """What came out about one candidate."""

    measures: Measures
    comparison: Comparison | None
    slices: tuple[SliceComparison, ...] | None
    report: GateReport


def _hear(model: str, candidate: Candidate, evidence: Evidence, limits: Gates, seed: int) -> _Hearing:
    folder = candidate.folder
    scored = measure(model, "candidate", candidate.scores, limits, seed)
    scored = replace(
        scored, measures=scored.measures.model_copy(update={"validation_log_loss": validation_log_loss(folder)})
    )
    comparison = _compare(scored, evidence.serving, limits, seed) if evidence.serving else None
    slices, problem = _slices(scored, evidence, limits, seed)
    test_rows = max(scored.measures.rows, evidence.popularity.measures.rows)
    digest = folder_digest(folder) if folder.is_dir() else ""
    proof = read_record(Proof, candidate.proof / Files.PROOF)
    results = (
        gate.data_gate(evidence.log, scored.measures, limits),
        gate.skew_gate(evidence.skew, test_rows, limits),
        gate.absolute_gate(scored.measures, evidence.popularity.measures, limits),
        gate.champion_gate(evidence.champion, comparison, limits),
        gate.calibration_gate(scored.measures, limits),
        gate.slices_gate(slices, evidence.reference_name, limits, problem),
        _integrity(folder),
        proof_gates.parity_gate(proof, digest, test_rows, limits),
        proof_gates.infra_gate(proof, digest, limits.infra),
    )
    report = GateReport.of(model, digest, results)
    return _Hearing(scored.measures, comparison, slices, report)


def _compare(candidate: Scored, reference: Scored, limits: Gates, seed: int) -> Comparison:
    name = reference.measures.model
    if candidate.rows is None or reference.rows is None:
        return Comparison(reference=name, problem=candidate.measures.problem or reference.measures.problem)
    options = limits.confidence, limits.bootstrap_rounds, seed
    try:
        return Comparison(reference=name, difference=bootstrap_difference(candidate.rows, reference.rows, *options))
    except UnmeasurableError as problem:
        return Comparison(reference=name, problem=str(problem))


def _slices(
    candidate: Scored, evidence: Evidence, limits: Gates, seed: int
) -> tuple[tuple[SliceComparison, ...] | None, str]:
    reference = evidence.reference
    if candidate.rows is None or reference.rows is None:
        return None, candidate.measures.problem or f"{evidence.reference_name}: {reference.measures.problem}"
    try:
        return compare_slices(candidate.rows, reference.rows, limits, seed), ""
    except UnmeasurableError as problem:
        return None, str(problem)


def _integrity(folder: Path) -> GateResult:
    try:
        return gate.integrity_gate(verify_model_folder(folder))
    except IntegrityError as problem:
        return gate.integrity_gate(None, str(problem))


def _verdict(hearings: list[_Hearing], evidence: Evidence, limits: Gates) -> Verdict:
    serving = (evidence.serving.measures,) if evidence.serving else ()
    return Verdict(
        limits=limits,
        models=(*(one.measures for one in hearings), evidence.popularity.measures, *serving),
        comparisons={one.measures.model: one.comparison for one in hearings if one.comparison},
        slices={one.measures.model: one.slices for one in hearings if one.slices is not None},
        slice_reference=evidence.reference_name,
        best_possible=best_possible(evidence.popularity.rows) if evidence.popularity.rows else None,
        champion=evidence.champion,
        skew=evidence.skew,
        log=evidence.log,
        reports=tuple(one.report for one in hearings),
    )


def _declared(candidate: Candidate) -> bool:
    return (candidate.folder / Files.MODEL).exists() or scores_file(candidate.scores).exists()
