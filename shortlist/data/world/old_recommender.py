"""The old recommender of a generated world: slates drawn by weight, with the exact probability of each item's place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np

from shortlist.data.world.place_probabilities import PlaceProbabilities
from shortlist.data.world.random_streams import Floats, Ints, random_stream
from shortlist.data.world.synthetic_world import AGE_GROUPS, COUNTRIES, SyntheticWorld
from shortlist.data.world.traffic import SLOTS, impression_shares
from shortlist.spec.data import GeneratedSource

_MAX_SHARE: Final = 0.08
"""Largest probability of an item at the first place; keeps the integral of the marginals accurate."""
_DRAWS: Final = 2 * SLOTS


class DrawnSlates(NamedTuple):
    """Slates of some requests, and their probabilities; arrays of shape (requests, places)."""

    items: Ints
    propensities: Floats
    """Probability of each item at its place, over all slates that the recommender could have shown to this user."""
    randomized: np.ndarray
    """Whether a request was shown random items, shape (requests,)."""


@dataclass(frozen=True)
class OldRecommender:
    """Draws the items of a slate one after another, without repetition, in proportion to their weights on a day.

    A declared share of requests is shown random items instead. The propensity of an item at its place counts both.
    """

    weights_SI: Floats  # noqa: N815
    """Weight of each item for each segment of users (country and age group), shape (segments, items)."""
    segment: Ints
    """Segment of each user, shape (users,)."""
    randomized: float
    places: PlaceProbabilities

    @classmethod
    def on_day(cls, source: GeneratedSource, world: SyntheticWorld, day: int) -> Self:
        """Return the recommender of a day; it learnt the tastes of the world's first day, with errors."""
        assert source.recommender is not None
        weights = _weights(source, world, day)
        return cls(
            weights,
            world.users.country * len(AGE_GROUPS) + world.users.age,
            source.recommender.randomized,
            PlaceProbabilities.prepare(weights, SLOTS),
        )

    def draw(self, users: Ints, random: np.random.Generator) -> DrawnSlates:
        """Draw a slate for each request.

        Args:
            users: Number of the user of each request, shape (requests,).
            random: Generator of the draws.
        """
        segments, is_random = self.segment[users], random.random(users.size) < self.randomized
        items = np.empty((users.size, SLOTS), np.int64)
        published = (self.weights_SI[0] > 0).astype(float)
        for segment in np.unique(segments):
            requests = np.flatnonzero((segments == segment) & ~is_random)
            items[requests] = _draw_distinct(self.weights_SI[segment], requests.size, random)
        requests = np.flatnonzero(is_random)
        items[requests] = _draw_distinct(published, requests.size, random)
        places = np.broadcast_to(np.arange(SLOTS), items.shape)
        by_weight = self.places.of_rows(np.repeat(segments, SLOTS), items.reshape(-1), places.reshape(-1))
        propensities = (1 - self.randomized) * by_weight.reshape(items.shape) + self.randomized / published.sum()
        return DrawnSlates(items, propensities, is_random)


def _weights(source: GeneratedSource, world: SyntheticWorld, day: int) -> Floats:
    declared, items = source.recommender, world.items
    assert declared is not None
    appeal = items.country_appeal[: len(COUNTRIES), None] + items.age_appeal[None, : len(AGE_GROUPS)]
    appeal = appeal.reshape(len(COUNTRIES) * len(AGE_GROUPS), -1)
    # Per item, so that further items at the end do not change the errors of the earlier ones.
    errors = random_stream(source.seed, "errors of the recommender").normal(0, 1, appeal.T.shape).T
    tilt = np.exp(declared.taste * (appeal + declared.noise * appeal[:, : world.old_items].std() * errors))
    shares = impression_shares(source, world, day)
    weights = np.zeros_like(tilt)
    # Within old and new items apart: how often new ones are shown is declared by their drift.
    for group in (range(world.old_items), *world.new_items.values()):
        group_items = slice(group.start, group.stop)
        tilted = shares[group_items] * tilt[:, group_items]
        total = tilted.sum(axis=1, keepdims=True)
        weights[:, group_items] = shares[group_items].sum() * tilted / np.where(total > 0, total, 1.0)
    return _limit_shares(weights)


def _limit_shares(weights: Floats) -> Floats:
    """Return the weights, the largest ones cut so that no item has more than `_MAX_SHARE` of the sum."""
    limits = weights.max(axis=1, keepdims=True)
    while (weights.max(axis=1) > _MAX_SHARE * weights.sum(axis=1) * (1 + 1e-9)).any():
        limits = np.minimum(limits, _MAX_SHARE * weights.sum(axis=1, keepdims=True))
        weights = np.minimum(weights, limits)
    return weights


def _draw_distinct(weights: Floats, requests: int, random: np.random.Generator) -> Ints:
    """Draw `SLOTS` different items per request, one after another by weight, shape (requests, SLOTS).

    Draws with repetition, of which repeated items are left out, have the same distribution.
    """
    slates = np.full((requests, SLOTS), -1, np.int64)
    counts = np.zeros(requests, np.int64)
    cumulated = np.cumsum(weights)
    while (incomplete := np.flatnonzero(counts < SLOTS)).size:
        draws = random.random((incomplete.size, _DRAWS)) * cumulated[-1]
        for column in np.searchsorted(cumulated, draws, side="right").T:
            is_new = (counts[incomplete] < SLOTS) & (slates[incomplete] != column[:, None]).all(axis=1)
            rows = incomplete[is_new]
            slates[rows, counts[rows]] = column[is_new]
            counts[rows] += 1
    return slates
