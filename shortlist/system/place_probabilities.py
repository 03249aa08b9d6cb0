"""Probability of an item at each place of slates that are drawn item by item, without repetition, by weight.

Shapes: I items, K places, N nodes of the integral.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from shortlist.system.compiled import compiled

Floats = npt.NDArray[np.float64]

_POINTS, _MEASURE = np.polynomial.legendre.leggauss(96)
"""Nodes of the integral over the logarithm of time."""
_EARLIEST: Final = 1e-6
"""Mean number of arrivals at the first node."""


def plackett_luce_places(weights_I: Floats, items: npt.NDArray[np.intp], places: int) -> Floats:  # noqa: N803
    """Return the exact marginals of some items in Plackett-Luce slates (Luce, 1959; Plackett, 1975).

    Item i arrives at an exponential time with rate w_i, and the order of arrivals is the slate. So the probability of
    item i at place k is the integral over t of w_i exp(-w_i t) P(k - 1 of the other items arrived before t), and the
    number of arrivals is a sum of independent Bernoulli variables. The integral is taken over the logarithm of time,
    since rates may differ by many orders of magnitude.

    Args:
        weights_I: Weight of each item of the draw, not negative, of which one is positive.
        items: Numbers of the items whose marginals are returned.
        places: Number of places of the slate.

    Returns:
        Probabilities, shape (items, places); those of an item sum to the probability that it is drawn at all.

    >>> plackett_luce_places(np.array([2.0, 1.0, 1.0]), np.arange(3), 2).round(4).tolist()
    [[0.5, 0.3333], [0.25, 0.3333], [0.25, 0.3333]]
    """
    rates = weights_I / weights_I.max()
    low = np.log(_EARLIEST / rates.sum())
    high = np.log(_latest_time(rates, places))
    times = np.exp(low + (high - low) * (_POINTS + 1) / 2)
    return _integrate(rates, np.asarray(items, np.int64), times, times * _MEASURE * (high - low) / 2, places)


def _latest_time(rates: Floats, places: int) -> float:
    """Return a time at which the slate is almost certainly full.

    The number of arrivals is less dispersed than a Poisson variable of the same mean; where few items remain, the time
    is one at which all have arrived.
    """
    positive = rates[rates > 0]
    latest = 40.0 / float(positive.min())
    mean = places + 12.0 * np.sqrt(places) + 30.0
    if positive.size <= mean:
        return latest
    low, high = 0.0, latest
    for _ in range(200):
        middle = np.sqrt(max(low, 1e-12) * high)
        if -np.expm1(-positive * middle).sum() < mean:
            low = middle
        else:
            high = middle
        if high < 1.01 * max(low, 1e-12):
            break
    return float(high)


@compiled
def _integrate(rates: Floats, items: npt.NDArray[np.int64], times: Floats, measure: Floats, places: int) -> Floats:
    """Return the integrals; the arrivals of all but one item are solved from those of all, where that is stable."""
    probabilities = np.zeros((items.shape[0], places))
    for node in range(times.shape[0]):
        arrivals = _count_arrivals(rates, times[node], places, -1)
        for number in range(items.shape[0]):
            rate = rates[items[number]]
            waiting = np.exp(-rate * times[node])
            density = measure[node] * rate * waiting
            if density < 1e-14:
                continue
            if waiting > 0.5:
                odds, previous = (1.0 - waiting) / waiting, 0.0
                for place in range(places):
                    previous = max(arrivals[place] / waiting - odds * previous, 0.0)
                    probabilities[number, place] += density * previous
            else:
                probabilities[number] += density * _count_arrivals(rates, times[node], places, items[number])
    return probabilities


@compiled
def _count_arrivals(rates: Floats, time: float, places: int, left_out: int) -> Floats:
    """Return the probability that 0, 1, ... places - 1 of the items but one have arrived, shape (places,)."""
    arrivals = np.zeros(places)
    arrivals[0] = 1.0
    for item in range(rates.shape[0]):
        if item == left_out or rates[item] == 0.0:
            continue
        waiting = np.exp(-rates[item] * time)
        for place in range(places - 1, 0, -1):
            arrivals[place] = arrivals[place] * waiting + arrivals[place - 1] * (1.0 - waiting)
        arrivals[0] *= waiting
    return arrivals
