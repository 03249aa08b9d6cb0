"""The result of a loop: reward per slate and day of every policy, regret, what exploration cost, and what happened."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from itertools import accumulate
from statistics import fmean
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, computed_field

from shortlist.loop.policies import BEST_POSSIBLE, CHANCE, LOOP, POLICIES, Policy

LAST_DAYS: Final = 7
"""Number of last days that are summarised."""


class _LoopRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PolicyDay(_LoopRecord):
    """What one policy earned on one day."""

    day: date
    policy: Policy
    reward_per_slate: float
    """Expected clicks per slate by the planted probabilities."""
    slates: int


class LoopEvent(_LoopRecord):
    """Something that happened before the first request of a day."""

    day: date
    kind: Literal["refreshed", "promoted", "held", "not_measured", "changed_tastes", "new_items", "volume_collapse",
                  "broken_column"]  # fmt: skip
    version: int | None = None
    """The promoted version."""


class Loop(_LoopRecord):
    """The result of a loop."""

    spec: str
    days: tuple[PolicyDay, ...]
    """Days in order, each with all policies."""
    exploration_cost: float
    """Share of the reward that exploration gave up: what the slates without drawn places would have earned more."""
    events: tuple[LoopEvent, ...]
    requests_per_second: float
    """Requests that the loop's version answered per second, training and refreshing not counted."""

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

    def cumulated_regret(self, policy: Policy) -> list[float]:
        """Return the clicks missed until the end of each day."""
        best, own = (self._clicks(name) for name in (BEST_POSSIBLE, policy))
        return list(accumulate(possible - clicks for possible, clicks in zip(best, own, strict=True)))

    def _clicks(self, policy: Policy) -> Sequence[float]:
        return [day.reward_per_slate * day.slates for day in self.days if day.policy == policy]
