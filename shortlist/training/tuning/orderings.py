"""Compares formulas of `ordering.value` by their slates on the validation days, without reading test days."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shortlist.contracts import Files, ShortlistError
from shortlist.evaluation.gates.retrieval import BEST_POSSIBLE
from shortlist.evaluation.metrics.intervals import FEWEST_CLUSTERS, bootstrap_mean
from shortlist.evaluation.metrics.list_metrics import list_metrics
from shortlist.evaluation.metrics.records import ConfidenceInterval
from shortlist.features.split import split_days
from shortlist.features.view_index import ViewIndex
from shortlist.serving.validation.slates import PairScorer, read_requests, slate_rows
from shortlist.slates.candidate_columns import check_slates
from shortlist.slates.release import open_release, write_release
from shortlist.slates.retrieval.evaluate import item_popularity
from shortlist.slates.retrieval.retriever import fit_retrieval
from shortlist.spec.filters import Filters
from shortlist.spec.ordering import Ordering
from shortlist.spec.spec import Spec
from shortlist.storage.tables import DayTable
from shortlist.training.export import export, pack
from shortlist.training.train import train

_SOURCES, _MODEL, _SCORES = "sources", "model", "scores"


class RunFolders(NamedTuple):
    """Outputs of a run with the declared data and features."""

    log: Path
    """The validated log."""
    fitted: Path
    """Folder of the fitted features."""
    table: Path
    """The feature table."""
    files: Path | None
    """The user's files, for lists of items; None where there are none."""


class ComparedOrdering(NamedTuple):
    """The metrics of one formula."""

    value: str
    ndcg_at_10: float
    recall: float
    """Recall of the ten items shown."""
    lead: ConfidenceInterval | None
    """nDCG@10 minus that of the first formula, paired by user; None for the first, and with too few users."""


class ComparedOrderings(NamedTuple):
    """The metrics of all formulas, in the order given."""

    days: tuple[str, ...]
    """The validation days."""
    users: int
    best_possible: float | None
    """nDCG@10 of the best possible list; None where it is not known."""
    orderings: tuple[ComparedOrdering, ...]


def compare_orderings(
    spec: Spec, model: str, values: Sequence[str], run: RunFolders, scratch: Path,
    tell: Callable[[str], object] = lambda _: None,
) -> ComparedOrderings:  # fmt: skip
    """Return the metrics of formulas' slates on the validation days.

    Sources and the model learn from the days before, and the model is not refit, so no row of a test day is read.
    Slates do not explore, so that only the formula differs.

    Args:
        spec: Declares retrieval, filters and ordering; the first formula is compared with the others.
        model: Name of the model that scores.
        values: Formulas.
        run: Outputs of a run.
        scratch: Empty folder for the fitted sources and model.
        tell: Called with a message at the start of each phase.

    Raises:
        ShortlistError: A formula does not fit the columns, or the spec declares no sources.
    """
    if spec.retrieval is None:
        raise ShortlistError(f"spec '{spec.name}' declares no retrieval, so that there are no slates to order")
    declared = spec.ordering or Ordering()
    orderings = {value: _make_ordering(spec, declared, value) for value in dict.fromkeys(values)}
    log = DayTable.open(run.log, Files.LOG)
    split = split_days([part.day for part in log.days], spec.data.split)
    days = frozenset(split.validation)
    seed = spec.runtime.seed
    tell(f"fitting {len(spec.retrieval.sources)} sources on the days before {min(days)}")
    sources = scratch / _SOURCES
    fit_retrieval(spec.retrieval, spec.data, log, frozenset(split.fitted_on), sources, seed)
    tell(f"training '{model}' on the days before {min(days)}")
    trained = _train_model(spec, model, run, scratch)
    scorer = PairScorer(trained, ViewIndex.read(run.fitted / "views"))
    scored: list[tuple[np.ndarray, Mapping[str, np.ndarray]]] = []
    measured: list[Any] = []
    best = None
    for number, (value, ordering) in enumerate(orderings.items()):
        tell(f"slates by {value}")
        folder = scratch / f"release-{number}"
        write_release(sources, spec.data, spec.filters or Filters(), ordering, run.log, run.files, folder)
        stages = open_release(folder, spec.data)
        requests = read_requests(stages, spec.data, log, days, seed)
        candidates_by_request = [stages.find(request) for request in requests.requests]
        # A formula changes neither who is a candidate nor a score.
        scored = scored or [
            scorer.score(*request_and_candidates)
            for request_and_candidates in zip(requests.requests, candidates_by_request, strict=True)
        ]
        slates = [
            stages.slate(request, candidates, scores, further)
            for request, candidates, (scores, further) in zip(
                requests.requests, candidates_by_request, scored, strict=True
            )
        ]
        popularity = item_popularity(stages.retriever)
        measured.append(list_metrics(slate_rows(stages, slates), requests.relevant, popularity))
        if BEST_POSSIBLE in requests.lists:
            best = float(np.mean(list_metrics(requests.lists[BEST_POSSIBLE], requests.relevant, popularity).ndcg_at_10))
    first = measured[0].ndcg_at_10
    compared = tuple(
        ComparedOrdering(
            value,
            float(np.mean(metrics.ndcg_at_10)),
            float(np.mean(metrics.recall)),
            _lead_interval(spec, metrics.ndcg_at_10 - first) if number else None,
        )
        for number, (value, metrics) in enumerate(zip(orderings, measured, strict=True))
    )
    return ComparedOrderings(tuple(day.isoformat() for day in sorted(days)), len(first), best, compared)


def _make_ordering(spec: Spec, declared: Ordering, value: str) -> Ordering:
    assert spec.retrieval is not None
    ordering = declared.model_copy(update={"value": value, "explore": None})
    check_slates(spec.data, spec.retrieval, spec.filters or Filters(), ordering)
    return ordering


def _train_model(spec: Spec, model: str, run: RunFolders, scratch: Path) -> Path:
    section: Any = spec.models[model].without_refit
    table, folder = DayTable.open(run.table, Files.TABLE), scratch / _MODEL
    train(section.kind, section, table, spec.runtime, folder, scratch / _SCORES, name=model)
    pack(folder, run.fitted)
    export(folder, spec.name)
    return folder


def _lead_interval(spec: Spec, gaps: np.ndarray) -> ConfidenceInterval | None:
    limits = spec.gates
    if len(gaps) < FEWEST_CLUSTERS:
        return None
    return bootstrap_mean(gaps, limits.confidence, limits.bootstrap_rounds, spec.runtime.seed)
