"""One declared model trained, saved and scored: what a pipeline step calls."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from models.job import Job
from models.ranker import Ranker
from models.record import TrainedModel, read_record
from models.scores import score
from shortlist.artefacts import IntegrityError
from shortlist.config.base import Section
from shortlist.config.runtime import Runtime
from shortlist.contracts import ShortlistError, did_you_mean
from shortlist.tables import DayTable

KINDS: Final = {
    "xgboost": ("models.xgboost_ranker", "XGBoostRanker"),
    "dlrm": ("models.dlrm.ranker", "DLRMRanker"),
    "logistic": ("models.logistic", "LogisticRanker"),
    "popularity": ("models.popularity", "PopularityRanker"),
}
"""Module and class of every kind of model; imported when asked for, for torch and XGBoost are slow to load."""


class Spread(NamedTuple):
    """Several processes that train a model together."""

    world: int
    """How many."""
    run: Callable[[Job, Path], None]
    """run(job, out_model) has them train and writes the model's folder, whole or not at all."""


def ranker_class(kind: str) -> type[Ranker[Any]]:
    """Return the class of a kind of model.

    Raises:
        ShortlistError: There is no such kind.
    """
    if kind not in KINDS:
        raise ShortlistError(f"no kind of model '{kind}'{did_you_mean(kind, KINDS)}; there are {', '.join(KINDS)}")
    module, name = KINDS[kind]
    found: type[Ranker[Any]] = getattr(import_module(module), name)
    return found


def load_ranker(folder: Path) -> Ranker[Any]:
    """Return the model in a folder, whatever its kind.

    Raises:
        IntegrityError: A file is missing or was changed after training, or the kind is unknown.
    """
    kind = read_record(folder).kind
    if kind not in KINDS:
        raise IntegrityError(f"{folder}: holds a model of kind '{kind}'; this version knows {', '.join(KINDS)}")
    return ranker_class(kind).load(folder)


def train(
    kind: str, section: Section | None, table: DayTable, runtime: Runtime, out_model: Path, out_scores: Path,
    champion: Path | None = None, spread: Spread | None = None,
) -> TrainedModel:  # fmt: skip
    """Train a model, write its folder, and write the scores of validation and test days into another.

    Args:
        kind: A key of `KINDS`.
        section: The model's section of the spec; None for the popularity baseline, which has none.
        table: The feature table.
        runtime: Engine, memory budget and seed.
        out_model: Model folder to write.
        out_scores: Folder that gets `scores.parquet`.
        champion: Folder of a model of the same kind and features to start from.
        spread: The processes that train it together; None: this one does.

    Raises:
        ShortlistError: The table, the section and the champion do not go together, or training went astray.
    """
    if spread is None:
        ranker = ranker_class(kind)(section or Section())
        ranker.fit(table, runtime, champion=champion)
        ranker.save(out_model)
    else:
        spread.run(Job.of(kind, section or Section(), table, runtime, champion, spread.world), out_model)
        ranker = load_ranker(out_model)
    score(ranker, table, out_scores)
    return ranker.record
