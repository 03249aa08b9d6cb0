"""Which candidate may ship, in a file that deployment verifies again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shortlist.evaluation.choice import Choice
from shortlist.evaluation.gate_report import GateReport
from shortlist.evaluation.integrity import verify_model_folder
from shortlist.evaluation.records import Measures, Record
from shortlist.storage.artefacts import IntegrityError, read_json, write_json


class Blessed(Record):
    """The candidate that may ship."""

    model: str
    candidate: str
    """Digest of its folder, as in its gate report."""
    validation_log_loss: float | None
    """None when it is unknown and no other candidate passed."""


class Blessing(Record):
    """The verdict on all candidates of a run; `blessed` is None when every one is held."""

    blessed: Blessed | None
    reasons: dict[str, tuple[str, ...]]
    """Per model: what holds it, or why it was or was not chosen among those that pass."""
    numbers: dict[str, Measures]
    """Per model, plots left out."""
    digests: dict[str, dict[str, str]]
    """Per model: SHA-256 of every file that was judged."""
    gates: tuple[GateReport, ...]
    choice: Choice | None = None
    """Of several that pass; None when they could not be compared, and the validation log loss alone decided."""


def bless(reports: Sequence[GateReport], measures: Sequence[Measures], choice: Choice | None = None) -> Blessing:
    """Return the verdict: of the candidates that pass every gate, the best on the validation days.

    The test rows only judge. Choosing by them would make their numbers look better than they are. Candidates whose
    paired interval with the best includes 0 are tied with it: of these the one with the lowest validation log loss is
    chosen, and the reasons call it a statistical tie. Without a choice the lowest validation log loss decides
    alone. A candidate whose validation log loss is unknown (grown anew on all days from an earlier model that learnt
    the validation days) is then chosen when no other passes.

    Args:
        reports: What the gates said.
        measures: Numbers of the models.
        choice: The candidates that pass, compared on the validation days; None when they could not be.
    """
    losses = {one.model: one.validation_log_loss for one in measures}
    passing = {report.model: losses.get(report.model) for report in reports if report.passed}
    known = {model: loss for model, loss in passing.items() if loss is not None}
    if choice is not None:
        tied = choice.tied & known.keys() or {choice.best}
        passing = {model: loss for model, loss in passing.items() if model in tied}
        known = {model: loss for model, loss in known.items() if model in tied}
    chosen = min(known, key=lambda model: (known[model], model), default=min(passing, default=None))
    candidates = {report.model: report.candidate for report in reports}
    return Blessing(
        blessed=None
        if chosen is None
        else Blessed(model=chosen, candidate=candidates[chosen], validation_log_loss=known.get(chosen)),
        reasons={report.model: _reasons(report, chosen, known, choice) for report in reports},
        numbers={one.model: one.model_copy(update={"curves": None}) for one in measures},
        digests={report.model: _digests(report) for report in reports},
        gates=tuple(reports),
        choice=choice,
    )


def write_blessing(path: Path, blessing: Blessing) -> None:
    """Write the verdict with a digest over itself."""
    content = blessing.model_dump(mode="json")
    write_json(path, {**content, "seal": _seal(content)})


def read_blessing(path: Path) -> Blessing:
    """Return a verdict.

    Raises:
        IntegrityError: It is missing, was edited, or contradicts itself. The seal finds accidents and clumsy edits;
            whoever can write the file can also seal it again, so protect the folder.
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
    """Return the verdict in a file after making sure that it blesses exactly the files in a model folder.

    Raises:
        IntegrityError: The file was edited, blesses nothing or a model that its own gates hold, or the folder's files
            are not those that were judged.
    """
    blessing = read_blessing(path)
    blessed = blessing.blessed
    if blessed is None:
        raise IntegrityError(f"{path}: blesses no model; {_first(blessing)}")
    report = next((one for one in blessing.gates if one.model == blessed.model), None)
    if report is None or not report.passed or report.candidate != blessed.candidate:
        raise IntegrityError(f"{path}: blesses '{blessed.model}', which its own gates hold; run the gates again")
    found = verify_model_folder(model_folder)
    wanted = blessing.digests.get(blessed.model, {})
    changed = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
    if changed:
        raise IntegrityError(f"{model_folder / changed[0]}: not the file that was judged; deploy the blessed folder")
    return blessing


def _reasons(report: GateReport, chosen: str | None, known: dict[str, float], choice: Choice | None) -> tuple[str, ...]:
    if not report.passed:
        return report.holds
    if choice is not None:
        return (f"passes every gate, {_chosen_by(report.model, str(chosen), known, choice)}",)
    if report.model not in known:
        if report.model == chosen:
            return ("passes every gate; its validation log loss is unknown, and no candidate with a known one passes",)
        return (
            (f"passes every gate, but its validation log loss is unknown; that of '{chosen}' is known",)
            if known
            else (f"passes every gate, but its validation log loss is unknown, as is that of '{chosen}'",)
        )
    loss = f"validation log loss {known[report.model]:.4f}"
    if report.model == chosen:
        return (f"passes every gate, lowest {loss}",)
    return (f"passes every gate, but {loss} is not below {known[chosen or report.model]:.4f} of '{chosen}'",)


def _chosen_by(model: str, chosen: str, known: dict[str, float], choice: Choice) -> str:
    tied = sorted(choice.tied - {choice.best})
    if model == chosen and not tied:
        nearest = max(choice.leads, key=lambda other: choice.values[other])
        return f"best: {choice.described(nearest)} over '{nearest}'"
    if model not in choice.tied:
        return f"but is behind '{choice.best}': {choice.described(model)}"
    other = model if model != choice.best else chosen if chosen != choice.best else tied[0]
    tie = f"a statistical tie with '{choice.best if model != choice.best else other}': {choice.described(other)}"
    losses = ", ".join(f"{known[name]:.4f} of '{name}'" for name in sorted(known, key=lambda name: (known[name], name)))
    verb = "chosen" if model == chosen else "not chosen"
    return f"{tie}; {verb}, because the lowest validation log loss decides ({losses})"


def _digests(report: GateReport) -> dict[str, str]:
    integrity = next((gate for gate in report.gates if gate.name == "integrity"), None)
    return dict(integrity.numbers.get("digests", {})) if integrity else {}


def _seal(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _first(blessing: Blessing) -> str:
    return next((reason for reasons in blessing.reasons.values() for reason in reasons), "there was no candidate")
