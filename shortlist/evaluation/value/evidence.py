"""The evidence of an estimate: rows that users saw, and how often a release would have shown their items.

The click model is that of Li et al. (2018): a row is clicked if its place is examined and its item attracts. So rows of
an item tell its attraction wherever it was shown, and an item counts by its exposure, the examination that the places
which a policy gives it receive.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ValueEvidence:
    """Evidence on the value of one list of items per request; requests without a row count as such."""

    request: Ints
    """Number of the request of each seen row, from 0, shape (rows,)."""
    reward: Floats
    """Reward of each row, shape (rows,)."""
    expected: Floats
    """Reward that a model which has not learnt the row expects of it, at its place, shape (rows,)."""
    examination: Floats
    """Examination of the row's place relative to the first, shape (rows,)."""
    weight: Floats
    """Exposure of the row's item in the list over its exposure by the policy of the log, shape (rows,)."""
    list_expected: Floats
    """Reward that the model expects of each request's list, shape (requests,)."""
    list_exposure: Floats
    """Exposure of all items of each request's list together, shape (requests,)."""
    user: Ints
    """Number of the user of each request, from 0, shape (requests,)."""

    @property
    def requests(self) -> int:
        """Number of requests."""
        return self.user.size

    def sum_by_request(self, row_values: Floats) -> Floats:
        """Return the sum of the rows' values of each request, shape (requests,)."""
        sums: Floats = np.bincount(self.request, row_values, self.requests).astype(np.float64)
        return sums


def exposure_weights(list_exposure: Floats, propensity: Floats, place_exposure: Floats) -> Floats:
    """Return weights of rows of which only the propensity at their own place is known, shape (rows,).

    Each place counts by its share of the exposure of a slate, so that the weights are unbiased where every place of a
    row's item has a positive propensity, and equal to the ratio of exposures where the propensities of all places are
    the same, as in slates of random items.

    Args:
        list_exposure: Exposure of the row's item in the list, shape (rows,).
        propensity: Probability of the row's item at its place by the policy of the log, shape (rows,).
        place_exposure: Exposure of each place of a slate, shape (places,).
    """
    weights: Floats = list_exposure / (propensity * place_exposure.sum())
    return weights
