"""Exploration with known probabilities: Plackett-Luce sampling by utility, and epsilon-greedy."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import numpy as np
from pydantic import Field

from shortlist.slates.ordering.base import Exploration
from shortlist.system.registry import Registry


class PlackettLuce(Exploration):
    """Draw each place in proportion to `exp(utility / temperature)`, as sorting by utility plus Gumbel noise does."""

    kind: Literal["gumbel"]
    """Gumbel top-k."""
    temperature: Annotated[float, Field(gt=0, le=1_000)]
    """Temperature in units of the value: a difference of one temperature is a factor of 2.7 in probability."""

    def probabilities(self, utilities: np.ndarray) -> np.ndarray:
        """Return the softmax of the utilities."""
        # By ufuncs, here as in the ordering loop: numpy's methods take longer for a few hundred values than the sums.
        weights = np.exp((utilities - np.maximum.reduce(utilities)) / self.temperature)
        shares: np.ndarray = weights / np.add.reduce(weights)
        return shares

    def place_probabilities(self, values: np.ndarray, rows: np.ndarray, places: int) -> np.ndarray:
        """Return the marginals of a Plackett-Luce draw."""
        from shortlist.system.place_probabilities import plackett_luce_places  # loads Numba

        weights = np.exp((values - values.max()) / self.temperature)
        probabilities: np.ndarray = plackett_luce_places(weights, rows, places)
        return probabilities


class EpsilonGreedy(Exploration):
    """Give each place to a random allowed candidate with a small probability, otherwise to the best."""

    kind: Literal["epsilon"]
    """Epsilon-greedy."""
    epsilon: Annotated[float, Field(gt=0, le=1)]
    """Probability that a place is given at random."""

    def probabilities(self, utilities: np.ndarray) -> np.ndarray:
        """Return epsilon divided among all candidates, and 1 - epsilon more for the best."""
        shares = np.full(len(utilities), self.epsilon / len(utilities))
        shares[np.argmax(utilities)] += 1.0 - self.epsilon
        return shares


EXPLORATIONS: Final = Registry[type[Exploration]](
    "explorations",
    {"gumbel": PlackettLuce, "epsilon": EpsilonGreedy},
)
"""Exploration classes by kind; a new kind is a class and a line here."""
