"""The blessing: which candidate may be deployed, in a sealed file that deployment verifies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from shortlist.evaluation.choice import CandidateChoice
from shortlist.evaluation.gates.gate_report import GateReport
from shortlist.evaluation.gates.integrity import verify_model_folder
from shortlist.evaluation.metrics.records import Measures, Record
from shortlist.storage.artefacts import IntegrityError, read_json, write_json


class Blessed(Record):
    """The candidate that may be deployed."""

    model: str
    candidate: str
    """Digest of its model folder, as in its gate report."""
    validation_log_loss: float | None
    """None when it is unknown and no other candidate passed."""


class Blessing(Record):
    """The verdict on all candidates of a run; `blessed` is None when every one is held."""

    blessed: Blessed | None
    reasons: dict[str, tuple[str, ...]]
    """Per model: messages of the gates that hold it, or why it was or was not chosen among those that pass."""
    numbers: dict[str, Measures]
    """Measures by model, without curves."""
    digests: dict[str, dict[str, str]]
    """SHA-256 of every judged file, by model and relative path."""
    gates: tuple[GateReport, ...]
    choice: CandidateChoice | None = None
    """Comparison of the candidates that pass; None when they could not be compared and the validation log loss decided
    alone."""


def bless(
    reports: Sequence[GateReport],
    measures: Sequence[Measures],
    choice: CandidateChoice | None = None,
    lower_earners: Mapping[str, str] = MappingProxyType({}),
) -> Blessing:
    """Bless the candidate that is best on the validation days among those that pass every gate.

    A candidate whose slates are shown to earn less than another's is not chosen. Else the test rows are used by the
    gates alone: choosing by them would bias their numbers upwards. Candidates whose
    paired interval with the best includes 0 are tied with it: of these the one with the lowest validation log loss is
    chosen, and the reasons call it a statistical tie. Without a choice the lowest validation log loss decides
    alone. A candidate whose validation log loss is unknown (retrained on all days from an earlier model that learnt
    the validation days) is then chosen when no other passes.

    Args:
        reports: Gate reports of the candidates.
        measures: Numbers of the models.
        choice: The other candidates that pass, compared on the validation days; None when they could not be compared.
        lower_earners: Candidates that pass, but whose slates are shown to earn less than another's, with the reason.
    """
    losses = {model_measures.model: model_measures.validation_log_loss for model_measures in measures}
    passing_losses = {
        report.model: losses.get(report.model)
        for report in reports
        if report.passed and report.model not in lower_earners
    }
    known_losses = {model: loss for model, loss in passing_losses.items() if loss is not None}
    if choice is not None:
        tied = choice.tied & known_losses.keys() or {choice.best}
        passing_losses = {model: loss for model, loss in passing_losses.items() if model in tied}
        known_losses = {model: loss for model, loss in known_losses.items() if model in tied}
    blessed_model = min(
        known_losses, key=lambda model: (known_losses[model], model), default=min(passing_losses, default=None)
    )
    candidates = {report.model: report.candidate for report in reports}
    return Blessing(
        blessed=None
        if blessed_model is None
        else Blessed(
            model=blessed_model,
            candidate=candidates[blessed_model],
            validation_log_loss=known_losses.get(blessed_model),
        ),
        reasons={
            report.model: (f"passes every gate, but {lower_earners[report.model]}",)
            if report.model in lower_earners
            else _list_reasons(report, blessed_model, known_losses, choice)
            for report in reports
        },
        numbers={
            model_measures.model: model_measures.model_copy(update={"curves": None}) for model_measures in measures
        },
        digests={report.model: _judged_digests(report) for report in reports},
        gates=tuple(reports),
        choice=choice,
    )


def write_blessing(path: Path, blessing: Blessing) -> None:
    """Write the blessing with a digest of its content."""
    content = blessing.model_dump(mode="json")
    write_json(path, {**content, "seal": _seal(content)})


def read_blessing(path: Path) -> Blessing:
    """Return the blessing in a file.

    It is checked against the gates that were required when it was made, which each of its reports names; gates that
    were installed since hold the next candidate.

    Raises:
        IntegrityError: It is missing, was edited, or contradicts itself. The seal detects accidental edits only:
            whoever can write the file can seal it again, so protect the folder.
    """
    content = read_json(path)
    seal = content.pop("seal", None)
    if seal != _seal(content):
        raise IntegrityError(f"{path}: changed after it was written; run the gates again")
    try:
        return Blessing.model_validate(content)
    except ValidationError as error:
        raise IntegrityError(
            f"{path}: not a valid blessing ({error.errors()[0]['msg']}); run the gates again"
        ) from None


def verify_blessing(path: Path, model_folder: Path) -> Blessing:
    """Return the blessing in a file after checking that it blesses exactly the files in a model folder.

    Raises:
        IntegrityError: The file was edited, blesses nothing or a model that its own gates hold, or the folder's files
            are not those that were judged.
    """
    blessing = read_blessing(path)
    blessed = blessing.blessed
    if blessed is None:
        raise IntegrityError(f"{path}: blesses no model; {_first_reason(blessing)}")
    report = next(
        (candidate_report for candidate_report in blessing.gates if candidate_report.model == blessed.model), None
    )
    if report is None or not report.passed or report.candidate != blessed.candidate:
        raise IntegrityError(f"{path}: blesses '{blessed.model}', which its own gates hold; run the gates again")
    digests = verify_model_folder(model_folder)
    judged_digests = blessing.digests.get(blessed.model, {})
    changed = sorted(
        name for name in digests.keys() | judged_digests.keys() if digests.get(name) != judged_digests.get(name)
    )
    if changed:
        raise IntegrityError(f"{model_folder / changed[0]}: not the file that was judged; deploy the blessed folder")
    return blessing


def _list_reasons(
    report: GateReport, blessed_model: str | None, known_losses: dict[str, float], choice: CandidateChoice | None
) -> tuple[str, ...]:
    if not report.passed:
        return report.holds
    if choice is not None:
        return (f"passes every gate, {_describe_choice(report.model, str(blessed_model), known_losses, choice)}",)
    if report.model not in known_losses:
        if report.model == blessed_model:
            return ("passes every gate; its validation log loss is unknown, and no candidate with a known one passes",)
        return (
            (f"passes every gate, but its validation log loss is unknown; that of '{blessed_model}' is known",)
            if known_losses
            else (f"passes every gate, but its validation log loss is unknown, as is that of '{blessed_model}'",)
        )
    loss = f"validation log loss {known_losses[report.model]:.4f}"
    if report.model == blessed_model:
        return (f"passes every gate, {loss}, the lowest of those that pass",)
    blessed_loss = known_losses[blessed_model or report.model]
    return (f"passes every gate, but {loss} is not below {blessed_loss:.4f} of '{blessed_model}'",)


def _describe_choice(model: str, blessed_model: str, known_losses: dict[str, float], choice: CandidateChoice) -> str:
    tied = sorted(choice.tied - {choice.best})
    if model == blessed_model and not tied:
        nearest = max(choice.leads, key=lambda model: choice.values[model])
        return f"best: {choice.describe_lead(nearest)} over '{nearest}'"
    if model not in choice.tied:
        return f"but is behind '{choice.best}': {choice.describe_lead(model)}"
    compared_model = model if model != choice.best else blessed_model if blessed_model != choice.best else tied[0]
    tied_model = choice.best if model != choice.best else compared_model
    tie = f"a statistical tie with '{tied_model}': {choice.describe_lead(compared_model)}"
    losses = ", ".join(
        f"{known_losses[name]:.4f} of '{name}'"
        for name in sorted(known_losses, key=lambda name: (known_losses[name], name))
    )
    verb = "chosen" if model == blessed_model else "not chosen"
    return f"{tie}; {verb}, because the lowest validation log loss decides ({losses})"


def _judged_digests(report: GateReport) -> dict[str, str]:
    integrity = next((gate for gate in report.gates if gate.name == "integrity"), None)
    return dict(integrity.numbers.get("digests", {})) if integrity else {}


def _seal(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _first_reason(blessing: Blessing) -> str:
    return next((reason for reasons in blessing.reasons.values() for reason in reasons), "there was no candidate")
