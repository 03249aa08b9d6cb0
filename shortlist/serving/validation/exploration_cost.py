"""What exploration costs: the expected label of drawn slates beside that of the best order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl

from shortlist.evaluation.gates.slates import ExplorationCost
from shortlist.slates.candidate_columns import SCORE
from shortlist.slates.ordering.order import order
from shortlist.slates.recommender import Recommender, SlateCandidates, SlateRequest

_MOST_REQUESTS: Final = 300


def exploration_cost(
    stages: Recommender, requests: Sequence[SlateRequest], candidates: Sequence[SlateCandidates],
    scores: Sequence[Mapping[str, np.ndarray]],
) -> ExplorationCost | None:  # fmt: skip
    """Return how much of the slates' expected label the declared exploration gives up, by the model's scores.

    The first requests are answered by a drawn slate and in the best order; the share of drawn slates is declared.

    Args:
        stages: Stages of a release.
        requests: The requests.
        candidates: Candidates of each request.
        scores: Scores of the candidates of each request, by column.

    Returns:
        The cost; None where nothing is explored, or no slate has an item.
    """
    explore = stages.ordering.explore
    if explore is None:
        return None
    always_drawn = stages.ordering.model_copy(update={"explore": explore.model_copy(update={"share": 1.0})})
    measured, best_sum, drawn_sum = requests[:_MOST_REQUESTS], 0.0, 0.0
    for request, request_candidates, columns in zip(measured, candidates, scores, strict=False):
        scored = request_candidates.rows.hstack(
            [pl.Series(name, np.asarray(values, np.float64)) for name, values in columns.items()]
        )
        expected = np.asarray(columns[SCORE], np.float64)
        slate = order(scored, always_drawn, request.k, request.id, request_candidates.likeness)
        best_sum += float(expected[slate.best_rows()].sum())
        drawn_sum += float(expected[slate.rows].sum())
    if best_sum <= 0:
        return None
    given_up = explore.share * (best_sum - drawn_sum)
    return ExplorationCost(per_slate=given_up / len(measured), share=given_up / best_sum, limit=explore.max_cost)
