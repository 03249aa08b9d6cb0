"""Simulation of random requests to a release, whose slates are checked against the spec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import numpy as np
import polars as pl

from shortlist.evaluation.gates.slates import SimulatedRequests
from shortlist.slates.candidate_columns import SCORE
from shortlist.slates.filters.base import UserHistory
from shortlist.slates.past_items import merge_histories
from shortlist.slates.probabilities import SlateProbabilities
from shortlist.slates.recommender import Recommender, SlateCandidates, SlateRequest
from shortlist.slates.slate_check import check_slate

MAX_PLACES: Final = 30
"""Largest number of places of a simulated slate."""
_EXAMPLES: Final = 5
_FAR: Final = 6.0
"""Largest deviation of draws from their probabilities in standard deviations: exceeded by chance in less than one of
100 000 runs."""
_ENOUGH: Final = 9.0
"""Least variance of a sum of draws that is compared with its expectation."""


def simulate_requests(
    stages: Recommender, examples: Sequence[SlateRequest], count: int, seed: int
) -> SimulatedRequests:
    """Return the broken rules of slates for random users, contexts, scores and numbers of items.

    Half of the requests are of users whom the sources know, a quarter of new users, and a quarter anonymous; the last
    two send recent items. A context mixes values of several requests, with a tenth of them missing. Scores are random
    too: the rules do not depend on them.

    Args:
        stages: Stages of a release.
        examples: Requests with the contexts and moments that occur; at least one.
        count: Number of requests.
        seed: Seed of all random choices.
    """
    random_requests = _RandomRequests(stages, examples, seed)
    broken: list[str] = []
    empty = 0
    probabilities: list[SlateProbabilities] = []
    for number in range(count):
        request = random_requests.request(f"simulation-{seed}-{number}")
        candidates = stages.find(request)
        further = {name: random_requests.scores(candidates) for name in stages.scores_read}
        scores = {SCORE: random_requests.scores(candidates), **further}
        request = random_requests.add_shown_items(request, candidates)
        slate = stages.slate(request, candidates, scores[SCORE], further)
        checked = check_slate(stages, request, candidates, slate, scores)
        empty += not len(candidates.items)
        broken += checked.problems[:1]
        probabilities += [checked.probabilities] if checked.probabilities is not None else []
    return SimulatedRequests(
        requests=count,
        empty=empty,
        broken=len(broken),
        examples=(*broken[:_EXAMPLES], *_find_wrong_draws(probabilities)),
    )


def _find_wrong_draws(probabilities: Sequence[SlateProbabilities]) -> tuple[str, ...]:
    """Return whether the best candidate came first as often as expected, as a sentence; empty: it did."""
    best_probabilities = np.array([slate_probabilities.of_best for slate_probabilities in probabilities])
    best_count, variance = (
        sum(slate_probabilities.is_best for slate_probabilities in probabilities),
        float((best_probabilities * (1 - best_probabilities)).sum()),
    )
    if variance < _ENOUGH or abs(best_count - best_probabilities.sum()) <= _FAR * variance**0.5:
        return ()
    return (
        f"the best candidate came first {best_count} times; by the propensities {best_probabilities.sum():.0f} were"
        " expected",
    )


class _RandomRequests:
    def __init__(self, stages: Recommender, examples: Sequence[SlateRequest], seed: int) -> None:
        self._stages, self._examples = stages, examples
        self._random = np.random.default_rng(seed)
        self._users = stages.retriever.recent.users
        self._items = stages.retriever.catalogue.ids
        self._popular = self._items.gather(stages.retriever.recent.items.explode(empty_as_null=False).cast(pl.Int64))
        self._remembers = stages.filters.remembers
        self._max_places = min(MAX_PLACES, stages.candidates, stages.size)

    def request(self, name: str) -> SlateRequest:
        """Return the next request."""
        random, stages = self._random, self._stages
        kind = random.choice(["known", "new", "anonymous"], p=[0.5, 0.25, 0.25])
        user = self._user(str(kind))
        moment = self._sample_request(self._examples).now + timedelta(seconds=int(random.integers(0, 86_400)))
        user_context = stages.find_user_context(user)
        context = {key: None if random.random() < 0.1 else self._sample_request(self._examples).context.get(key)
                   for key in self._sample_request(self._examples).context}  # fmt: skip
        return SlateRequest(
            name, user, int(random.integers(1, self._max_places + 1)), moment, {**context, **user_context},
            recent=None if kind == "known" else self._sample_items(self._items, 10), history=self._history(moment),
        )  # fmt: skip

    def scores(self, candidates: SlateCandidates) -> np.ndarray:
        """Return scores between 0 and 1; in 5 % of calls all are equal."""
        rows = len(candidates.items)
        spread = 0.0 if self._random.random() < 0.05 else 1.5
        return 1 / (1 + np.exp(-self._random.normal(-1.0, spread, rows)))

    def add_shown_items(self, request: SlateRequest, candidates: SlateCandidates) -> SlateRequest:
        """Return a request whose user was shown some of its candidates meanwhile, in 20 % of calls."""
        if self._remembers is None or self._random.random() < 0.8:
            return request
        items = pl.Series(self._sample_items(candidates.items, 10), dtype=self._items.dtype)
        times = pl.Series([request.now] * len(items), dtype=pl.Datetime("us", "UTC"))
        shown_history = UserHistory(items, times, pl.Series(self._random.random(len(items)) < 0.3, dtype=pl.Boolean()))
        return replace(request, latest=merge_histories(request.history, shown_history))

    def _user(self, kind: str) -> Any:
        if kind == "anonymous":
            return None
        if kind == "known" and len(self._users):
            return self._users[int(self._random.integers(len(self._users)))]
        number = int(self._random.integers(1, 1_000_000))
        return f"new-{number}" if self._users.dtype == pl.String() else int(self._users.max() or 0) + number  # type: ignore[arg-type]

    def _history(self, now: Any) -> UserHistory | None:
        """Return a history, mostly of popular items; None in 20 % of calls."""
        if self._remembers is None or self._random.random() < 0.2:
            return None
        items = pl.Series(
            [*self._sample_items(self._popular, 30), *self._sample_items(self._items, 10)], dtype=self._items.dtype
        )
        ages = np.sort(self._random.uniform(0, 2 * self._remembers.total_seconds(), len(items)))[::-1]
        times = pl.Series([now - timedelta(seconds=float(age)) for age in ages], dtype=pl.Datetime("us", "UTC"))
        return UserHistory(items, times, pl.Series(self._random.random(len(items)) < 0.3))

    def _sample_items(self, items: pl.Series, max_items: int) -> list[Any]:
        count = int(self._random.integers(0, max_items + 1)) if len(items) else 0
        return items.gather(self._random.integers(0, max(len(items), 1), count)).to_list()

    def _sample_request(self, requests: Sequence[SlateRequest]) -> SlateRequest:
        return requests[int(self._random.integers(len(requests)))]
