"""What policies earn on the same requests: reward per slate and day, regret, and what happened meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from itertools import accumulate
from statistics import fmean
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, computed_field

from shortlist.data.world.answering_world import AnsweringWorld, Requests
from shortlist.data.world.random_streams import Ints, random_stream
from shortlist.data.world.traffic import SLOTS
from shortlist.loop.policies import (
    BEST_POSSIBLE,
    CHANCE,
    LOOP,
    POLICIES,
    POPULARITY,
    Policy,
    popular_slates,
    random_slates,
)
from shortlist.slates.retrieval.retriever import Retriever

LAST_DAYS: Final = 7
"""Number of last days that are summarised."""


class LoopRecord(BaseModel):
    """Base of the records of a loop: frozen, without unknown fields; NaN and infinity are no JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PolicyDay(LoopRecord):
    """What one policy earned on one day."""

    day: date
    policy: Policy
    reward_per_slate: float
    """Expected clicks per slate by the planted probabilities."""
    slates: int


class LoopEvent(LoopRecord):
    """Something that happened before the first request of a day."""

    day: date
    kind: Literal["refreshed", "promoted", "held", "not_measured", "changed_tastes", "new_items", "volume_collapse",
                  "broken_column"]  # fmt: skip
    version: int | None = None
    """The promoted version."""


class PolicyRewards(LoopRecord):
    """What all policies earned, day by day."""

    days: tuple[PolicyDay, ...]
    """Days in order, each with all policies."""
    events: tuple[LoopEvent, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def regret(self) -> dict[str, float]:
        """Clicks that each policy missed against the best possible, over all days."""
        return {policy: round(self.cumulated_regret(policy)[-1], 3) for policy in POLICIES}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def last_days(self) -> dict[str, float]:
        """Mean reward per slate of each policy over the last seven days."""
        return {policy: fmean(self.rewards(policy)[-LAST_DAYS:]) for policy in POLICIES}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def share_of_possible(self) -> float:
        """Reward of the last seven days on the way from chance (0) to the best possible (1)."""
        means = self.last_days
        return (means[LOOP] - means[CHANCE]) / (means[BEST_POSSIBLE] - means[CHANCE])

    def rewards(self, policy: Policy) -> list[float]:
        """Return the rewards per slate of a policy, day by day."""
        return [day.reward_per_slate for day in self.days if day.policy == policy]

    def mean_reward(self, policy: Policy, days: Iterable[date]) -> float | None:
        """Return the mean reward per slate of a policy over some days; None where none of them has slates."""
        selected = set(days)
        rewards = [day.reward_per_slate for day in self.days if day.policy == policy and day.day in selected]
        return fmean(rewards) if rewards else None

    def cumulated_regret(self, policy: Policy) -> list[float]:
        """Return the clicks missed until the end of each day."""
        clicks_by_day = zip(self._clicks(BEST_POSSIBLE), self._clicks(policy), strict=True)
        return list(accumulate(possible - clicks for possible, clicks in clicks_by_day))

    def _clicks(self, policy: Policy) -> Sequence[float]:
        return [day.reward_per_slate * day.slates for day in self.days if day.policy == policy]


def measure_policies(
    world: AnsweringWorld, day: int, requests: Requests, shown: Mapping[Policy, Ints], retriever: Retriever
) -> list[PolicyDay]:
    """Return what all policies earned on the requests of a day.

    Args:
        world: The users.
        day: The day, counted from the world's first one.
        requests: All requests of the day.
        shown: Slates of releases by policy, shape (requests, places) each.
        retriever: Sources of the present release, which know what users took last.
    """
    source = world.source
    random = random_stream(source.seed, "slates at random", day)
    slates = {
        **shown,
        BEST_POSSIBLE: world.best_slates(requests),
        CHANCE: random_slates(world, requests, day, random, SLOTS),
        POPULARITY: popular_slates(world, requests, day, retriever, SLOTS),
    }
    return [
        PolicyDay(
            day=source.start + timedelta(days=day), policy=policy, slates=requests.user.size,
            reward_per_slate=float(world.expected_rewards(requests, slates[policy]).mean()),
        )
        for policy in POLICIES
    ]  # fmt: skip
