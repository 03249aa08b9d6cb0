"""Probability of each item at each place of a slate that is drawn item by item, without repetition, by weight.

Shapes: S weight vectors, I items, K places, N nodes of the integral.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from shortlist.data.world.random_streams import Floats, Ints

_NODES: Final = 48
"""Nodes of the integral over time; where no item has more than 8 % of the draws, errors are below 1e-6 (tested)."""

_UNFILLED: Final = 1e-9
"""Probability of slates that are not full at the end of the integral."""
_FREQUENT: Final = 0.002
"""Share of the draws above which an item is counted on its own; the identities for rare items need small odds."""


@dataclass(frozen=True)
class PlaceProbabilities:
    """Exact marginals of Plackett-Luce slates (Luce, 1959; Plackett, 1975).

    Item i arrives at an exponential time with rate w_i, and the order of arrivals is the slate. So the probability of
    item i at place k is the integral over t of w_i exp(-w_i t) P(k - 1 of the other items arrived before t), and the
    number of arrivals is a sum of independent Bernoulli variables.
    """

    rates_SI: Floats  # noqa: N815
    times_SN: Floats  # noqa: N815
    measure_SN: Floats  # noqa: N815
    """Weights of the nodes."""
    arrivals_KSN: Floats  # noqa: N815
    """Probability that 0, 1, ... K - 1 items have arrived at each node."""

    @classmethod
    def prepare(cls, weights_SI: Floats, places: int) -> Self:  # noqa: N803
        """Return the marginals of some vectors of weights, each with more positive weights than places."""
        rates = weights_SI / weights_SI.sum(axis=1, keepdims=True)
        ends = _times_of_full_slates(rates, places)
        points, measure = np.polynomial.legendre.leggauss(_NODES)
        # Squared, so that nodes are dense at the beginning, where frequent items arrive.
        share = ((points + 1) / 2) ** 2
        times = ends[:, None] * share
        weights = ends[:, None] * measure * (points + 1) / 2
        return cls(rates, times, weights, _count_arrivals(rates, times, places))

    def of_rows(self, vector: Ints, item: Ints, place: Ints) -> Floats:
        """Return the probability of an item at a place (from 0) of the slates of a vector of weights, shape (rows,)."""
        pairs, row_pair = np.unique(vector * self.rates_SI.shape[1] + item, return_inverse=True)
        pair_vector, pair_item = np.divmod(pairs, self.rates_SI.shape[1])
        by_pair = np.empty((pairs.size, len(self.arrivals_KSN)))
        for block in range(0, pairs.size, 4_096):
            rows = slice(block, block + 4_096)
            by_pair[rows] = self._of_pairs(pair_vector[rows], pair_item[rows])
        probabilities: Floats = by_pair[row_pair, place]
        return probabilities

    def _of_pairs(self, vector: Ints, item: Ints) -> Floats:
        """Return the probabilities of items at all places, shape (pairs, K)."""
        rate = self.rates_SI[vector, item][:, None]
        waiting = np.exp(-np.minimum(rate * self.times_SN[vector], 50.0))
        density = self.measure_SN[vector] * rate * waiting
        odds, arrivals = (1 - waiting) / waiting, self.arrivals_KSN[:, vector]
        probabilities = np.empty((item.size, len(arrivals)))
        without_item = np.zeros_like(waiting)
        for place, arrived in enumerate(arrivals):
            # The count of all items is that of the others, plus this one with its probability; solved for the others.
            without_item = np.maximum(arrived / waiting - odds * without_item, 0.0)
            probabilities[:, place] = (density * without_item).sum(axis=1)
        return probabilities


def _times_of_full_slates(rates_SI: Floats, places: int) -> Floats:  # noqa: N803
    """Return times at which slates are almost certainly full, shape (S,)."""
    ends = np.full(len(rates_SI), float(places))
    early = np.arange(len(rates_SI))
    while early.size:
        early = early[_bound_unfilled(rates_SI[early], ends[early], places) > _UNFILLED]
        ends[early] *= 1.3
    return ends


def _bound_unfilled(rates_SI: Floats, times_S: Floats, places: int) -> Floats:  # noqa: N803
    """Return an upper bound of the probability that a slate is not full (Chernoff, 1952), shape (S,)."""
    arrived = -np.expm1(-rates_SI * times_S[:, None])
    logarithms = [
        tilt * (places - 1) + np.log1p(arrived * np.expm1(-tilt)).sum(axis=1) for tilt in (0.5, 1.0, 1.5, 2.0, 4.0, 8.0)
    ]
    bound: Floats = np.exp(np.min(logarithms, axis=0))
    return bound


def _count_arrivals(rates_SI: Floats, times_SN: Floats, places: int) -> Floats:  # noqa: N803
    """Return the probability that 0, 1, ... places - 1 items have arrived at each time, shape (places, S, N)."""
    is_frequent = (rates_SI > _FREQUENT).any(axis=0)
    arrivals = _count_rare_arrivals(rates_SI[:, ~is_frequent], times_SN, places)
    for rate in rates_SI[:, is_frequent].T:
        waiting = np.exp(-rate[:, None] * times_SN)
        shifted = arrivals[:-1] * (1 - waiting)
        arrivals *= waiting
        arrivals[1:] += shifted
    return arrivals


def _count_rare_arrivals(rates_SI: Floats, times_SN: Floats, places: int) -> Floats:  # noqa: N803
    """Return the same for many rare items: elementary symmetric polynomials of their odds, by Newton's identities."""
    power_sums = np.empty((places, *times_SN.shape))
    for node, times in enumerate(times_SN.T):
        odds = np.expm1(rates_SI * times[:, None])
        power = odds.copy()
        for exponent in range(1, places):
            power_sums[exponent, :, node] = power.sum(axis=1)
            power *= odds
    arrivals = np.zeros((places, *times_SN.shape))
    arrivals[0] = 1.0
    for count in range(1, places):
        terms = ((-1) ** (order - 1) * power_sums[order] * arrivals[count - order] for order in range(1, count + 1))
        arrivals[count] = np.maximum(sum(terms) / count, 0.0)
    arrivals *= np.exp(-rates_SI.sum(axis=1)[:, None] * times_SN)
    return arrivals
