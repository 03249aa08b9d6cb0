"""Scores of the champion on a new run's rows, with the preprocessing that it was trained with."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import polars as pl
from pydantic import ValidationError

from shortlist.contracts import Files, ShortlistError
from shortlist.evaluation.gates.gate_inputs import BEST_CHAMPION_FOLDER
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.spec.data import Data
from shortlist.spec.declared import DeclaredSections
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import atomic_folder, folder_digest, write_json
from shortlist.tracking.registry import BEST_CHAMPION
from shortlist.tracking.run_context import RunContext
from shortlist.training.champion_scores import score_model
from shortlist.training.earlier_log import LogSource


def version_to_beat(context: RunContext) -> str:
    """Return the registered version that candidates are compared with; empty when there is none."""
    return str(context.tracker.registry.version_to_beat() or "")


def best_version(context: RunContext, champion: int) -> int | None:
    """Return the version of the best champion so far, by the tag of a champion; None: the champion itself."""
    registry = context.tracker.registry
    best = registry.tags_of(champion).get(BEST_CHAMPION, "")
    return int(best) if best and not registry.retirement_of(int(best)) else None


def retire_champion(context: RunContext, reason: str, moment: datetime) -> int:
    """Mark the champion as retired, so that candidates are compared with baselines again; return its version.

    It serves on until another version is promoted, and is returned to only where it is named.

    Args:
        context: Spec and stores.
        reason: Why, for the page and for MLflow.
        moment: The present time, with a timezone.

    Raises:
        ShortlistError: There is no champion, it is retired already, or no reason is given.
    """
    registry = context.tracker.registry
    champion = registry.version_of("champion")
    if champion is None:
        raise ShortlistError(f"spec '{context.name}' has no champion to retire; make run SPEC={context.name} first")
    if earlier_reason := registry.retirement_of(champion):
        raise ShortlistError(f"version {champion} of {registry.name} was retired already ({earlier_reason})")
    if not reason.strip():
        raise ShortlistError("--reason: got an empty text; say why the champion is no yardstick any more")
    registry.retire(champion, reason.strip(), moment)
    return champion


def score_champion(  # noqa: PLR0913 - the sections and folders of one step
    version: str, context: RunContext, declared: DeclaredSections, runtime: Runtime, log: Path, fitted: Path, out: Path,
    *, slates: bool = False, source: LogSource | None = None,
) -> None:  # fmt: skip
    """Write `champion.json` (version, empty when there is none; digest; problem) and the champion's scores.

    Where an earlier champion was better, its scores are written into the folder `best`.

    A champion that cannot be scored is no error here: the gate that needs its scores holds and gives the reason. Where
    columns that it reads are declared in another way now, it is scored on the log as it was declared when it was
    trained; the gates compare it on the rows that both declarations accept.

    Args:
        version: Registered version of the champion; empty when there is none.
        context: Spec and stores.
        declared: The sections of this run's spec.
        runtime: Engine and memory.
        log: The valid log.
        fitted: Folder of this run's fitted features.
        out: Folder to write.
        slates: Also make the slates of the champion's release, for the same users as those of candidates.
        source: Files of the log, to read them as they were declared then; None: they cannot be read.
    """
    # Files of a remote store are deleted afterwards; only scores and digest are kept.
    with TemporaryDirectory(prefix="shortlist-champion-") as files, atomic_folder(out) as staging:
        record: dict[str, object] = {"version": version, "problem": ""}
        if version:
            champion = context.tracker.registry.find("champion", Path(files))
            assert champion is not None and str(champion.version) == version, "the champion changed during the run"
            record |= {
                "model": champion.name or champion.kind,
                "kind": champion.kind,
                "digest": folder_digest(champion.folder),
                "retire_command": f".venv/bin/shortlist retire-champion {context.name}",
            }
            release = (
                context.tracker.registry.retrieval_of(champion.version, Path(files) / "release") if slates else None
            )
            try:
                record["withdrawn"] = find_withdrawn_columns(champion.folder / Files.PREPROCESSING, declared.data)
                record["declared_then"] = score_model(
                    champion.folder, declared, runtime, log, fitted, staging, release, source
                )
            except _UNSCORABLE as problem:
                record["problem"] = _describe(problem)
            if best := best_version(context, champion.version):
                record["best"] = str(best)
                try:
                    model = context.tracker.registry.fetch(best, Path(files) / BEST_CHAMPION_FOLDER)
                    (staging / BEST_CHAMPION_FOLDER).mkdir()
                    best_folder = staging / BEST_CHAMPION_FOLDER
                    if score_model(model.folder, declared, runtime, log, fitted, best_folder, source=source):
                        record["best_declared_then"] = True
                except _UNSCORABLE as problem:
                    record["best_problem"] = _describe(problem)
        elif retired := context.tracker.registry.version_of("champion"):
            record["retired"] = f"version {retired} was retired: {context.tracker.registry.retirement_of(retired)}"
        write_json(staging / Files.CHAMPION, record)


def find_withdrawn_columns(preprocessing: Path, data: Data) -> list[str]:
    """Return the columns that a model reads and that the spec does not offer to models any more.

    Args:
        preprocessing: The model's preprocessing.
        data: The log as it is declared now.
    """
    planned = Preprocessing.load(preprocessing).plan
    then, now = planned.declared.data.by_name, data.by_name
    withdrawn = [
        name
        for name in dict.fromkeys((*planned.read, *planned.read_for_counting))
        if name in then and (name not in now or (then[name].known, now[name].known) == ("before", "after"))
    ]
    return sorted(withdrawn)


_UNSCORABLE: Final = (ShortlistError, ValidationError, pl.exceptions.PolarsError)
"""Errors of a model whose features the log as it is declared now does not have."""


def _describe(problem: Exception) -> str:
    if isinstance(problem, ShortlistError):
        return str(problem)
    return f"its features cannot be made from this log ({type(problem).__name__}: {str(problem).splitlines()[0]})"
