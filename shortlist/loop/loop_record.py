"""The result of a loop: what all policies earned, and what exploration cost."""

from __future__ import annotations

from shortlist.loop.policy_rewards import PolicyRewards


class Loop(PolicyRewards):
    """The result of a loop."""

    spec: str
    exploration_cost: float
    """Share of the reward that exploration gave up: what the slates without drawn places would have earned more."""
    requests_per_second: float
    """Requests that the loop's version answered per second, training and refreshing not counted."""
