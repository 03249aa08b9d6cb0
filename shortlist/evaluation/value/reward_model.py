"""The reward model of an estimate: attraction by scores and the effect of places, fitted on other users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np
from scipy.special import expit, logit

from shortlist.evaluation.value.evidence import Floats, Ints

FOLDS: Final = 2
_STEPS: Final = 30
_RIDGE: Final = 1.0
_MAX_PROBABILITY: Final = 0.999
_TOLERANCE: Final = 1e-4


@dataclass(frozen=True)
class RewardModel:
    """Click models of rows that users saw: logistic in features, with an effect of the place of one of two kinds.

    The position-based model (Craswell et al., 2008) multiplies the attraction of an item by the examination of its
    place. In the other the place moves the log-odds, so that it matters less for attractive items. The likelihood of
    the rows decides. Each fold of users is predicted by coefficients of the other folds.
    """

    coefficients_FX: Floats  # noqa: N815 - F folds, X the constant and the features
    examination_K: Floats  # noqa: N815
    """Examination of each place relative to the first, by the rows of all users, in the position-based model."""
    place_log_odds_FK: Floats | None  # noqa: N815
    """What each place adds to the log-odds, relative to the first; None: the position-based model fits better."""
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
        target = reward / largest
        design = np.concatenate([np.ones((place.size, 1)), features], axis=1)
        training_rows_by_fold = [user % FOLDS != fold for fold in range(FOLDS)]
        position_based = _fit_position_based(design, place, target, weight, places)
        additive = _fit_additive(design, place, target, weight, places)
        log_odds = None
        if additive.loss < position_based.loss:
            fits = [
                _fit_additive(design[rows], place[rows], target[rows], weight[rows], places)
                for rows in training_rows_by_fold
            ]
            log_odds = np.stack([fit.place_effects for fit in fits])
        else:
            fits = [
                _fit_position_based(design[rows], place[rows], target[rows], weight[rows], places)
                for rows in training_rows_by_fold
            ]
        return cls(np.stack([fit.coefficients for fit in fits]), position_based.place_effects, log_odds, largest)

    def expected(self, features: Floats, user: Ints, place: Ints) -> Floats:
        """Return the expected reward of rows that are seen at their places, shape (rows,).

        Args:
            features: Features of the rows, shape (rows, features).
            user: Number of the user of each row.
            place: Place of each row; one beyond those of the log is like the last.
        """
        fold, place = user % FOLDS, np.minimum(place, self.examination_K.size - 1)
        coefficients = self.coefficients_FX[fold]
        log_odds = coefficients[:, 0] + (coefficients[:, 1:] * features).sum(axis=1)
        if self.place_log_odds_FK is None:
            return np.asarray(self.largest * expit(log_odds) * self.examination_K[place])
        return np.asarray(self.largest * expit(log_odds + self.place_log_odds_FK[fold, place]))


class _PlaceModel(NamedTuple):
    """A fitted click model."""

    coefficients: Floats
    """Coefficients of the constant and the features."""
    place_effects: Floats
    """Examination, or log-odds, of each place relative to the first."""
    loss: float
    """Log loss of the rows that it was fitted on, summed with their weights."""


def _fit_position_based(design: Floats, place: Ints, target: Floats, weight: Floats, places: int) -> _PlaceModel:
    """Return coefficients of attraction and the examination of places, by Fisher scoring in turns."""
    coefficients = _start(design, target, weight)
    rate = expit(coefficients[0])
    penalty = _penalty(design.shape[1])
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
    return _PlaceModel(coefficients, examination, _log_loss(probability, target, weight))


def _fit_additive(design: Floats, place: Ints, target: Floats, weight: Floats, places: int) -> _PlaceModel:
    """Return coefficients of a logistic regression with an indicator of each place but the first, by Fisher scoring."""
    size = design.shape[1]
    design = np.concatenate([design, place[:, None] == np.arange(1, places)], axis=1)
    coefficients = _start(design, target, weight)
    penalty = _penalty(design.shape[1])
    for _ in range(_STEPS):
        probability = np.clip(expit(design @ coefficients), 1e-6, _MAX_PROBABILITY)
        gradient = design.T @ (weight * (target - probability)) - penalty * np.append(0.0, coefficients[1:])
        curvature = (design * (weight * probability * (1 - probability))[:, None]).T @ design + np.diag(penalty)
        step = np.linalg.solve(curvature, gradient)
        coefficients = coefficients + np.clip(step, -2.0, 2.0)
        if np.abs(step).max() < _TOLERANCE:
            break
    loss = _log_loss(probability, target, weight)
    return _PlaceModel(coefficients[:size], np.append(0.0, coefficients[size:]), loss)


def _start(design: Floats, target: Floats, weight: Floats) -> Floats:
    """Return coefficients of the mean reward alone."""
    rate = np.clip(np.average(target, weights=weight) if weight.any() else 0.5, 1e-4, 0.9)
    return np.append(logit(rate), np.zeros(design.shape[1] - 1))


def _penalty(size: int) -> Floats:
    """Return the weight of each coefficient's square; that of the constant only keeps the equations solvable."""
    return np.append(1e-6, np.full(size - 1, _RIDGE))


def _log_loss(probability: Floats, target: Floats, weight: Floats) -> float:
    return -float((weight * (target * np.log(probability) + (1 - target) * np.log1p(-probability))).sum())
