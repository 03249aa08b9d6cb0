"""The reward model of an estimate: attraction by scores and examination by place, fitted on other users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from scipy.special import expit

from shortlist.evaluation.value.evidence import Floats, Ints

FOLDS: Final = 2
_STEPS: Final = 30
_RIDGE: Final = 1.0
_MAX_PROBABILITY: Final = 0.999
_TOLERANCE: Final = 1e-4


@dataclass(frozen=True)
class RewardModel:
    """The position-based click model (Craswell et al., 2008): examination of the place times attraction of the item.

    Attraction is a logistic function of features. Each fold of users is predicted by coefficients of the other folds.
    """

    coefficients_FX: Floats  # noqa: N815 - F folds, X features and the constant
    examination_K: Floats  # noqa: N815
    """Examination of each place relative to the first, by the rows of all users."""
    largest: float
    """Largest reward of a row; the model predicts shares of it."""

    @classmethod
    def fit(
        cls, features: Floats, place: Ints, reward: Floats, user: Ints, places: int, weight: Floats | None = None
    ) -> Self:
        """Return a model of the rewards of rows.

        Args:
            features: Features of the rows, shape (rows, features).
            place: Place of each row, from 0.
            reward: Reward of each row, at least 0.
            user: Number of the user of each row.
            places: Number of places of a slate.
            weight: Weight of each row; None: 1.
        """
        weight = np.ones(place.size) if weight is None else weight
        largest = max(float(reward.max(initial=0.0)), 1e-12)
        design = np.concatenate([np.ones((place.size, 1)), features], axis=1)
        fits = [
            _fit_click_model(design[rows], place[rows], reward[rows] / largest, weight[rows], places)
            for rows in (user % FOLDS != fold for fold in range(FOLDS))
        ]
        _, examination = _fit_click_model(design, place, reward / largest, weight, places)
        return cls(np.stack([coefficients for coefficients, _ in fits]), examination, largest)

    def attraction(self, features: Floats, user: Ints) -> Floats:
        """Return the expected reward of rows at the first place, shape (rows,)."""
        coefficients = self.coefficients_FX[user % FOLDS]
        log_odds = coefficients[:, 0] + (coefficients[:, 1:] * features).sum(axis=1)
        attraction: Floats = self.largest * expit(log_odds)
        return attraction


def _fit_click_model(design: Floats, place: Ints, target: Floats, weight: Floats, places: int) -> tuple[Floats, Floats]:
    """Return coefficients of attraction and the examination of places, by Fisher scoring in turns."""
    rate = np.clip(np.average(target, weights=weight) if weight.any() else 0.5, 1e-4, 0.9)
    coefficients = np.zeros(design.shape[1])
    coefficients[0] = np.log(rate / (1 - rate))
    penalty = np.full(design.shape[1], _RIDGE)
    penalty[0] = 1e-6
    examination = np.ones(places)
    rewards_by_place = np.bincount(place, weight * target, places)
    for _ in range(_STEPS):
        attraction = expit(design @ coefficients)
        expected_by_place = np.bincount(place, weight * attraction, places)
        # A place without rows is examined like the one above it, which matters for no row.
        examination = (rewards_by_place + 1e-3 * rate) / (expected_by_place + 1e-3)
        examination = examination / max(examination[0], 1e-9)
        scale = examination[place]
        probability = np.clip(scale * attraction, 1e-6, _MAX_PROBABILITY)
        slope = probability * (1 - attraction)
        information = weight * slope / (probability * (1 - probability))
        gradient = design.T @ (information * (target - probability)) - penalty * np.append(0.0, coefficients[1:])
        curvature = (design * (information * slope)[:, None]).T @ design + np.diag(penalty)
        step = np.linalg.solve(curvature, gradient)
        coefficients = coefficients + np.clip(step, -2.0, 2.0)
        if np.abs(step).max() < _TOLERANCE:
            break
    return coefficients, examination
