"""Evidence on lists of items, from rows of a log of which the propensity at their own place is known.

Shapes: R rows, Q requests, U users, K places, X features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from shortlist.evaluation.value.evidence import Floats, Ints, ValueEvidence, exposure_weights
from shortlist.evaluation.value.reward_model import RewardModel

_MAX_PLACES: Final = 1_000
"""More places than a list has."""


@dataclass(frozen=True)
class ShownRows:
    """Rows that a log's policies showed, and that users saw."""

    request_R: Ints  # noqa: N815
    """Number of each row's request, from 0."""
    user_Q: Ints  # noqa: N815
    """Number of each request's user, from 0; every user has a request."""
    item_R: Ints  # noqa: N815
    """Number of each row's item; -1: an item that no list can hold."""
    place_R: Ints  # noqa: N815
    """Place of each row, from 0."""
    propensity_R: Floats  # noqa: N815
    """Probability of the row's item at its place."""
    reward_R: Floats  # noqa: N815
    """Reward of each row, at least 0."""

    @property
    def requests(self) -> int:
        """Number of requests."""
        return self.user_Q.size

    @property
    def users(self) -> int:
        """Number of users."""
        return int(self.user_Q.max(initial=-1)) + 1

    @property
    def user_R(self) -> Ints:  # noqa: N802
        """Number of each row's user."""
        return self.user_Q[self.request_R]

    @property
    def explored(self) -> float:
        """Share of the requests in which something else could have been shown."""
        is_drawn = np.zeros(self.requests, np.bool_)
        is_drawn[self.request_R[self.propensity_R < 1]] = True
        return float(is_drawn.mean()) if is_drawn.size else 0.0

    def seen_places(self, places: int) -> Floats:
        """Return the share of the requests in which each place was seen, shape (K,)."""
        seen_shares: Floats = np.bincount(self.place_R, minlength=places) / max(self.requests, 1)
        return seen_shares


class ValuedList(ABC):
    """A list of items per user whose value is estimated; it answers all requests of the user."""

    @abstractmethod
    def exposure(self, rows: ShownRows, place_exposure_K: Floats) -> Floats:  # noqa: N803
        """Return the exposure of each row's item in the list of its user, shape (R,)."""

    @abstractmethod
    def expected(self, model: RewardModel, seen_K: Floats) -> Floats:  # noqa: N803
        """Return the reward that the model expects of each user's list, seen with these shares by place, shape (U,)."""

    @abstractmethod
    def total_exposure(self, place_exposure_K: Floats) -> Floats:  # noqa: N803
        """Return the exposure of all items of each user's list together, shape (U,)."""


@dataclass(frozen=True)
class ItemLists(ValuedList):
    """A list of items in order for each user."""

    items_UK: Ints  # noqa: N815
    """Numbers of the items; -1 where a list is shorter."""
    features_UKX: Floats  # noqa: N815
    """Features of the items."""

    def exposure(self, rows: ShownRows, place_exposure_K: Floats) -> Floats:  # noqa: N803
        """Return the exposure of the place at which the list has the item."""
        is_item = (self.items_UK[rows.user_R] == rows.item_R[:, None]) & (rows.item_R >= 0)[:, None]
        exposure: Floats = is_item @ place_exposure_K[: self.items_UK.shape[1]]
        return exposure

    def expected(self, model: RewardModel, seen_K: Floats) -> Floats:  # noqa: N803
        """Return the sums over the list's places."""
        users, places = self.items_UK.shape
        rewards_by_place = model.expected(
            self.features_UKX.reshape(users * places, -1),
            np.repeat(np.arange(users), places),
            np.tile(np.arange(places), users),
        ).reshape(users, places)
        expected: Floats = np.where(self.items_UK >= 0, seen_K[:places] * rewards_by_place, 0.0).sum(axis=1)
        return expected

    def total_exposure(self, place_exposure_K: Floats) -> Floats:  # noqa: N803
        """Return the sums over the list's places."""
        exposure: Floats = (self.items_UK >= 0) @ place_exposure_K[: self.items_UK.shape[1]]
        return exposure


@dataclass(frozen=True)
class RandomLists(ValuedList):
    """Lists of items that are drawn at random from a catalogue."""

    catalogue: int
    """Number of items that may be drawn."""
    places: int
    features_UMX: Floats  # noqa: N815
    """Features of a sample of items for each user, shape (users, sample, features)."""

    def exposure(self, rows: ShownRows, place_exposure_K: Floats) -> Floats:  # noqa: N803
        """Return the same exposure for every item."""
        share = float(place_exposure_K[: self.places].sum()) / self.catalogue
        return np.where(rows.item_R >= 0, share, 0.0)

    def expected(self, model: RewardModel, seen_K: Floats) -> Floats:  # noqa: N803
        """Return the sums over the places of the mean over the sample."""
        users, sample = self.features_UMX.shape[:2]
        features = self.features_UMX.reshape(users * sample, -1)
        user = np.repeat(np.arange(users), sample)
        expected = np.zeros(users)
        for place in range(self.places):
            rewards = model.expected(features, user, np.full(user.size, place)).reshape(users, sample)
            expected += seen_K[place] * rewards.mean(axis=1)
        return expected

    def total_exposure(self, place_exposure_K: Floats) -> Floats:  # noqa: N803
        """Return the exposure of the places."""
        return np.full(len(self.features_UMX), float(place_exposure_K[: self.places].sum()))


def collect_evidence(
    rows: ShownRows,
    row_features: Floats,
    lists: Mapping[str, ValuedList],
) -> dict[str, ValueEvidence]:
    """Return the evidence on lists, with one reward model for all of them, which is cross-fitted by users.

    Args:
        rows: The rows.
        row_features: Features of the rows' items, shape (R, X), computed without the rows' rewards.
        lists: The lists by name.
    """
    places = int(rows.place_R.max(initial=0)) + 1
    model = RewardModel.fit(row_features, rows.place_R, rows.reward_R, rows.user_R, places)
    examination = model.examination_K
    # A list may be longer than the pages of the log, whose users saw nothing there.
    seen_shares = np.append(rows.seen_places(places), np.zeros(_MAX_PLACES))
    place_exposure = seen_shares[:places] * examination
    list_exposure = np.append(place_exposure, np.zeros(_MAX_PLACES))
    expected = model.expected(row_features, rows.user_R, rows.place_R)
    evidence = {}
    for name, valued_list in lists.items():
        weight = exposure_weights(valued_list.exposure(rows, list_exposure), rows.propensity_R, place_exposure)
        evidence[name] = ValueEvidence(
            request=rows.request_R,
            reward=rows.reward_R,
            expected=expected,
            examination=examination[rows.place_R],
            weight=weight,
            list_expected=valued_list.expected(model, seen_shares)[rows.user_Q],
            list_exposure=valued_list.total_exposure(list_exposure)[rows.user_Q],
            user=rows.user_Q,
        )
    return evidence
