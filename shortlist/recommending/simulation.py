"""Random requests to a release, and whether their slates keep the rules of the spec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import numpy as np
import polars as pl

from shortlist.evaluation.slates import SimulatedRequests
from shortlist.filters.base import UserHistory
from shortlist.recommending.broken_rules import broken_rules
from shortlist.recommending.candidate_columns import SCORE
from shortlist.recommending.chances import Chances
from shortlist.recommending.past_items import together
from shortlist.recommending.recommender import FoundCandidates, Recommender, SlateRequest

MOST_PLACES: Final = 30
"""Of a simulated slate."""
_EXAMPLES: Final = 5
_FAR: Final = 6.0
"""Standard deviations by which draws may miss their probabilities: by chance, in less than one of 100 000 runs."""
_ENOUGH: Final = 9.0
"""Variance of a sum of draws from which it is compared with its expectation."""


def simulate_requests(stages: Recommender, like: Sequence[SlateRequest], count: int, seed: int) -> SimulatedRequests:
    """Return what is broken by slates for random users, contexts, scores and numbers of items.

    Half of the requests are those of users whom the sources know, a quarter of new ones, a quarter anonymous; the last
    two send recent items. A context has its values from several requests, a tenth of them missing. Scores are drawn
    too: the rules do not depend on them.

    Args:
        stages: Of a release.
        like: Requests with the contexts and moments that occur; at least one.
        count: Requests to make.
        seed: Of the draws.
    """
    made = _RandomRequests(stages, like, seed)
    broken: list[str] = []
    empty = 0
    chances: list[Chances] = []
    for number in range(count):
        request = made.request(f"simulation-{seed}-{number}")
        found = stages.find(request)
        further = {name: made.scores(found) for name in stages.scores_read}
        scores = {SCORE: made.scores(found), **further}
        request = made.meanwhile(request, found)
        slate = stages.slate(request, found, scores[SCORE], further)
        checked = broken_rules(stages, request, found, slate, scores)
        empty += not len(found.items)
        broken += checked.broken[:1]
        chances += [checked.chances] if checked.chances is not None else []
    return SimulatedRequests(
        requests=count, empty=empty, broken=len(broken), examples=(*broken[:_EXAMPLES], *_wrong_draws(chances))
    )


def _wrong_draws(chances: Sequence[Chances]) -> tuple[str, ...]:
    """Compare how often the best candidate came first with how likely that was, summed over all slates."""
    likely = np.array([one.of_best for one in chances])
    found, variance = sum(one.is_best for one in chances), float((likely * (1 - likely)).sum())
    if variance < _ENOUGH or abs(found - likely.sum()) <= _FAR * variance**0.5:
        return ()
    return (f"the best candidate came first {found} times; by the propensities {likely.sum():.0f} were expected",)


class _RandomRequests:
    def __init__(self, stages: Recommender, like: Sequence[SlateRequest], seed: int) -> None:
        self._stages, self._like = stages, like
        self._random = np.random.default_rng(seed)
        self._users = stages.retriever.recent["user"]
        self._items = stages.retriever.catalogue.ids
        self._popular = self._items.gather(
            stages.retriever.recent["item_row"].explode(empty_as_null=False).cast(pl.Int64)
        )
        self._remembers = stages.filters.remembers
        self._most = min(MOST_PLACES, stages.candidates, stages.size)

    def request(self, name: str) -> SlateRequest:
        """Return the next request."""
        random, stages = self._random, self._stages
        kind = random.choice(["known", "new", "anonymous"], p=[0.5, 0.25, 0.25])
        user = self._user(str(kind))
        moment = self._any(self._like).now + timedelta(seconds=int(random.integers(0, 86_400)))
        own = stages.context_of(user)
        context = {key: None if random.random() < 0.1 else self._any(self._like).context.get(key)
                   for key in self._any(self._like).context}  # fmt: skip
        return SlateRequest(
            name, user, int(random.integers(1, self._most + 1)), moment, {**context, **own},
            recent=None if kind == "known" else self._some(self._items, 10), history=self._history(moment),
        )  # fmt: skip

    def scores(self, found: FoundCandidates) -> np.ndarray:
        """Return scores between 0 and 1; now and then those of all candidates are equal."""
        rows = len(found.items)
        spread = 0.0 if self._random.random() < 0.05 else 1.5
        return 1 / (1 + np.exp(-self._random.normal(-1.0, spread, rows)))

    def meanwhile(self, request: SlateRequest, found: FoundCandidates) -> SlateRequest:
        """Return a request whose user was shown some of its candidates before it was answered; now and then."""
        if self._remembers is None or self._random.random() < 0.8:
            return request
        items = pl.Series(self._some(found.items, 10), dtype=self._items.dtype)
        times = pl.Series([request.now] * len(items), dtype=pl.Datetime("us", "UTC"))
        shown = UserHistory(items, times, pl.Series(self._random.random(len(items)) < 0.3, dtype=pl.Boolean()))
        return replace(request, latest=together(request.history, shown))

    def _user(self, kind: str) -> Any:
        if kind == "anonymous":
            return None
        if kind == "known" and len(self._users):
            return self._users[int(self._random.integers(len(self._users)))]
        number = int(self._random.integers(1, 1_000_000))
        return f"new-{number}" if self._users.dtype == pl.String() else int(self._users.max() or 0) + number  # type: ignore[arg-type]

    def _history(self, now: Any) -> UserHistory | None:
        """Return what the user was shown, popular items for the greater part; None now and then."""
        if self._remembers is None or self._random.random() < 0.2:
            return None
        items = pl.Series([*self._some(self._popular, 30), *self._some(self._items, 10)], dtype=self._items.dtype)
        ages = np.sort(self._random.uniform(0, 2 * self._remembers.total_seconds(), len(items)))[::-1]
        times = pl.Series([now - timedelta(seconds=float(age)) for age in ages], dtype=pl.Datetime("us", "UTC"))
        return UserHistory(items, times, pl.Series(self._random.random(len(items)) < 0.3))

    def _some(self, items: pl.Series, most: int) -> list[Any]:
        count = int(self._random.integers(0, most + 1)) if len(items) else 0
        return items.gather(self._random.integers(0, max(len(items), 1), count)).to_list()

    def _any(self, several: Sequence[SlateRequest]) -> SlateRequest:
        return several[int(self._random.integers(len(several)))]
