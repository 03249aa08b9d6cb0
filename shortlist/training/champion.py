"""Scores of the champion on a new run's rows, with the preprocessing that it was trained with."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from shortlist.contracts import Files, ShortlistError
from shortlist.evaluation.gates.gate_inputs import BEST_CHAMPION_FOLDER
from shortlist.evaluation.gates.slates import SLATES
from shortlist.features.fit import fit
from shortlist.features.split import split_days
from shortlist.features.table import build_table
from shortlist.ranking.saved_models import load_ranker
from shortlist.serving.validation.slates import evaluate_candidates
from shortlist.spec.declared import DeclaredSections
from shortlist.spec.features import Features
from shortlist.spec.runtime import Runtime
from shortlist.storage.artefacts import atomic_folder, folder_digest, read_json, write_json
from shortlist.storage.tables import DayTable
from shortlist.tracking.registry import BEST_CHAMPION
from shortlist.tracking.run_context import RunContext
from shortlist.training.scores import score


def serving_version(context: RunContext) -> str:
    """Return the registered version that is serving; empty when there is none."""
    return str(context.tracker.registry.version_of("champion") or "")


def best_version(context: RunContext, champion: int) -> int | None:
    """Return the version of the best champion so far, by the tag of a champion; None: the champion itself."""
    best = context.tracker.registry.tags_of(champion).get(BEST_CHAMPION, "")
    return int(best) if best else None


def score_champion(
    version: str, context: RunContext, declared: DeclaredSections, runtime: Runtime, log: Path, fitted: Path, out: Path,
    *, slates: bool = False,
) -> None:  # fmt: skip
    """Write `champion.json` (version, empty when there is none; digest; problem) and the champion's scores.

    Where an earlier champion was better, its scores are written into the folder `best`.

    A champion that cannot be scored is no error here: the gate that needs its scores holds and gives the reason.

    Args:
        version: Registered version of the champion; empty when there is none.
        context: Spec and stores.
        declared: The sections of this run's spec.
        runtime: Engine and memory.
        log: The valid log.
        fitted: Folder of this run's fitted features.
        out: Folder to write.
        slates: Also make the slates of the champion's release, for the same users as those of candidates.
    """
    # Files of a remote store are deleted afterwards; only scores and digest are kept.
    with TemporaryDirectory(prefix="shortlist-champion-") as files, atomic_folder(out) as staging:
        record = {"version": version, "problem": ""}
        if version:
            champion = context.tracker.registry.find("champion", Path(files))
            assert champion is not None and str(champion.version) == version, "the champion changed during the run"
            record |= {
                "model": champion.name or champion.kind,
                "kind": champion.kind,
                "digest": folder_digest(champion.folder),
            }
            release = (
                context.tracker.registry.retrieval_of(champion.version, Path(files) / "release") if slates else None
            )
            try:
                _score(champion.folder, declared, runtime, log, fitted, staging, release)
            except ShortlistError as problem:
                record["problem"] = str(problem)
            if best := best_version(context, champion.version):
                record["best"] = str(best)
                try:
                    model = context.tracker.registry.fetch(best, Path(files) / BEST_CHAMPION_FOLDER)
                    (staging / BEST_CHAMPION_FOLDER).mkdir()
                    _score(model.folder, declared, runtime, log, fitted, staging / BEST_CHAMPION_FOLDER)
                except ShortlistError as problem:
                    record["best_problem"] = str(problem)
        write_json(staging / Files.CHAMPION, record)


def _score(
    model: Path, declared: DeclaredSections, runtime: Runtime, log: Path, fitted: Path, out: Path,
    release: Path | None = None,
) -> None:  # fmt: skip
    preprocessing = model / Files.PREPROCESSING
    features = Features.model_validate(read_json(preprocessing / Files.FEATURES)["features"])
    days = split_days([part.day for part in DayTable.open(log, Files.LOG).days], declared.data.split)
    with TemporaryDirectory(dir=out) as scratch:
        fitted_for_champion = fitted
        if features != declared.features:  # the spec has changed: fit the champion's features
            fitted_for_champion = Path(scratch) / "fitted"
            fit(declared.data, features, declared.gates, runtime, log, fitted_for_champion, learning=False)
        table = build_table(
            declared.data, features, declared.gates, runtime, log, fitted_for_champion, Path(scratch) / "table",
            preprocessing=preprocessing, only_days=frozenset((*days.validation, *days.test)),
        )  # fmt: skip
        scores = score(load_ranker(model), table, Path(scratch) / "scores")
        scores.rename(out / Files.SCORES)
        if release is not None:
            evaluate_candidates(
                release, declared.data, {SLATES: model}, log, fitted_for_champion, out, runtime.seed, simulate=False
            )
