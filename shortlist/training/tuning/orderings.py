"""Compares orderings by what their slates would earn on the validation days, without reading test days."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from shortlist.contracts import ShortlistError
from shortlist.evaluation.metrics.list_metrics import list_metrics
from shortlist.evaluation.value.estimate import (
    LogExtent,
    ValueDifference,
    ValueEstimate,
    estimate_difference,
    estimate_value,
)
from shortlist.evaluation.value.estimators import DEFAULT_ESTIMATOR, ESTIMATORS
from shortlist.evaluation.value.evaluation import BEST_POSSIBLE
from shortlist.features.stored_views.view_index import ViewIndex
from shortlist.serving.validation.slate_value import collect_list_evidence, true_values
from shortlist.serving.validation.slates import ItemScores, PairScorer, TestRequests, read_requests, slate_rows
from shortlist.slates.candidate_columns import SCORE, check_slates
from shortlist.slates.recommender import Recommender
from shortlist.slates.release import open_release, write_release
from shortlist.slates.retrieval.catalogue import Rows
from shortlist.slates.retrieval.evaluate import item_popularity
from shortlist.slates.retrieval.retriever import fit_retrieval
from shortlist.spec.filters import Filters
from shortlist.spec.ordering import Ordering
from shortlist.spec.spec import Spec
from shortlist.spec.split import split_days
from shortlist.training.tuning.ordered_model import RunFolders, train_ordered_model

_SOURCES: Final = "sources"
_CONFIDENCE: Final = 0.95


class DeclaredOrdering(NamedTuple):
    """One of the orderings that are compared."""

    text: str
    """A formula, or changes of the section."""
    ordering: Ordering


class ComparedOrdering(NamedTuple):
    """What the slates of one ordering would earn."""

    text: str
    value: ValueEstimate | None
    """None where the log says nothing of the value of slates."""
    lead: ValueDifference | None
    """Value minus that of the first, on the same requests; None for the first."""
    truth: float | None
    """Planted value in a generated world."""
    ndcg_at_10: float
    """Agreement with what was shown; no measure of quality."""


class ComparedOrderings(NamedTuple):
    """What the slates of all orderings would earn, in the order given."""

    days: tuple[str, ...]
    """The validation days."""
    users: int
    reward: str
    problem: str
    """Why the log says nothing of the value of slates; empty where it does."""
    best_possible: float | None
    """Planted value of the best slates; None where it is not known."""
    orderings: tuple[ComparedOrdering, ...]


def compare_orderings(
    spec: Spec, model: str, orderings: Sequence[DeclaredOrdering], run: RunFolders, scratch: Path,
    tell: Callable[[str], object] = lambda _: None,
) -> ComparedOrderings:  # fmt: skip
    """Return what the slates of orderings would earn on the validation days.

    Sources and the model learn from the days before, and the model is not refit, so no row of a test day is read.
    Slates do not explore, so that only the declared order differs.

    Args:
        spec: Declares retrieval and filters.
        model: Name of the model that scores.
        orderings: The orderings; the others are compared with the first.
        run: Outputs of a run.
        scratch: Empty folder for the fitted sources and model.
        tell: Called with a message at the start of each phase.

    Raises:
        ShortlistError: An ordering does not fit the columns, or the spec declares no sources.
    """
    if spec.retrieval is None:
        raise ShortlistError(f"spec '{spec.name}' declares no retrieval, so that there are no slates to order")
    declared = {text: ordering.model_copy(update={"explore": None}) for text, ordering in dict(orderings).items()}
    for ordering in declared.values():
        check_slates(spec.data, spec.retrieval, spec.filters or Filters(), ordering)
    log = run.open_log()
    split = split_days(log.rows_by_day, spec.data)
    days = frozenset(split.validation)
    seed = spec.runtime.seed
    tell(f"fitting {len(spec.retrieval.sources)} sources on the days before {min(days)}")
    sources = scratch / _SOURCES
    fit_retrieval(spec.retrieval, spec.data, log, frozenset(split.fitted_on), sources, seed)
    tell(f"training '{model}' on the days before {min(days)}")
    trained, views = train_ordered_model(spec, model, run, scratch), ViewIndex.read(run.fitted / "views")
    scored: list[tuple[np.ndarray, Mapping[str, np.ndarray]]] = []
    lists: dict[str, Rows] = {}
    for number, (text, ordering) in enumerate(declared.items()):
        tell(f"slates by {text}")
        folder = scratch / f"release-{number}"
        write_release(sources, spec.data, spec.filters or Filters(), ordering, run.log, run.files, folder)
        stages = open_release(folder, spec.data)
        scorer = PairScorer(trained, views, item_values=stages.item_values)
        requests = read_requests(stages, spec.data, log, days, seed)
        candidates_by_request = [stages.find(request) for request in requests.requests]
        # An ordering changes neither who is a candidate nor a score.
        scored = scored or scorer.score_all(
            requests.requests, [candidates.items for candidates in candidates_by_request]
        )
        slates = [
            stages.slate(request, candidates, scores, further)
            for request, candidates, (scores, further) in zip(
                requests.requests, candidates_by_request, scored, strict=True
            )
        ]
        lists[text] = slate_rows(stages, slates)
    scores_by_request = [{SCORE: scores} for scores, _ in scored]
    item_scores = ItemScores(scorer, requests.requests, candidates_by_request, scores_by_request)
    return _compare_lists(requests, lists, stages, item_scores, days)


def _compare_lists(
    requests: TestRequests, lists: Mapping[str, Rows], stages: Recommender, item_scores: ItemScores,
    days: Collection[date],
) -> ComparedOrderings:  # fmt: skip
    logged, catalogue = requests.logged, stages.retriever.catalogue
    popularity = item_popularity(stages.retriever)
    agreement = {
        text: float(np.nanmean(list_metrics(rows, requests.relevant, popularity).ndcg_at_10))
        for text, rows in lists.items()
    }
    values: dict[str, ValueEstimate] = {}
    leads: dict[str, ValueDifference] = {}
    truths: dict[str, float] = {}
    if not isinstance(logged, str):
        extent = LogExtent(days=logged.days, explored=logged.shown.explored)
        evidence = collect_list_evidence(logged, lists, catalogue, item_scores.of_pairs)
        estimator, users = ESTIMATORS[DEFAULT_ESTIMATOR](), logged.shown.user_Q
        contributions = {text: estimator.contributions(evidence[text]) for text in lists}
        first = next(iter(contributions.values()))
        values = {
            text: estimate_value(list_contributions, users, _CONFIDENCE, extent)
            for text, list_contributions in contributions.items()
        }
        leads = {
            text: estimate_difference(list_contributions, first, users, extent)
            for text, list_contributions in list(contributions.items())[1:]
        }
        truths = true_values(logged, lists, catalogue)
    return ComparedOrderings(
        days=tuple(day.isoformat() for day in sorted(days)),
        users=len(requests.requests),
        reward="" if isinstance(logged, str) else logged.reward,
        problem=logged if isinstance(logged, str) else "",
        best_possible=truths.get(BEST_POSSIBLE),
        orderings=tuple(
            ComparedOrdering(text, values.get(text), leads.get(text), truths.get(text), agreement[text])
            for text in lists
        ),
    )
