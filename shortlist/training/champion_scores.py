"""Scores of an earlier model on the test days of a run, by features of its own."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from shortlist.contracts import Files
from shortlist.evaluation.gates.slates import SLATES
from shortlist.features.fits.fit import fit
from shortlist.features.rows.preprocessing import Preprocessing
from shortlist.features.rows.table import build_table
from shortlist.ranking.saved_models import load_ranker
from shortlist.serving.validation.slates import evaluate_slates_of_model
from shortlist.spec.data import Data
from shortlist.spec.declared import DeclaredSections
from shortlist.spec.features import Features
from shortlist.spec.gates import Gates
from shortlist.spec.runtime import Runtime
from shortlist.spec.split import split_days
from shortlist.storage.artefacts import read_json
from shortlist.storage.tables import DayTable
from shortlist.training.earlier_log import LogSource, is_read_differently, lenient_declaration, read_log_of
from shortlist.training.scores import score


def score_model(
    model: Path, declared: DeclaredSections, runtime: Runtime, log: Path, fitted: Path, out: Path,
    release: Path | None = None, source: LogSource | None = None,
) -> bool:  # fmt: skip
    """Score a model; return whether the log was read as it was declared when the model was trained."""
    preprocessing = model / Files.PREPROCESSING
    saved = read_json(preprocessing / Files.FEATURES)
    features = Features.model_validate(saved["features"])
    gates = Gates.model_validate(saved["gates"]) if saved["gates"] else None
    data_then = Data.model_validate(saved["data"])
    declared_then = is_read_differently(Preprocessing.load(preprocessing).plan, declared.data)
    with TemporaryDirectory(dir=out) as scratch:
        data, fitted_for_champion = declared.data, fitted
        if declared_then:
            data = lenient_declaration(data_then, declared.data)
            log = read_log_of(data, source, runtime, Path(scratch))
        kept_columns = [section.kept_columns(data) if section else () for section in (declared.gates, gates)]
        if declared_then or features != declared.features or kept_columns[0] != kept_columns[1]:
            fitted_for_champion = Path(scratch) / "fitted"
            fit(data, features, gates, runtime, log, fitted_for_champion, learning=False)
        days = split_days(DayTable.open(log, Files.LOG).rows_by_day, data)
        table = build_table(
            data, features, gates, runtime, log, fitted_for_champion, Path(scratch) / "table",
            preprocessing=preprocessing, only_days=frozenset((*days.validation, *days.test)),
        )  # fmt: skip
        scores = score(load_ranker(model), table, Path(scratch) / "scores")
        scores.rename(out / Files.SCORES)
        if release is not None:
            evaluate_slates_of_model(
                release, data, model, log, fitted_for_champion, out / SLATES, runtime.seed, simulate=False
            )
    return declared_then
