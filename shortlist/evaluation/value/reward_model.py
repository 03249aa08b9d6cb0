"""The reward model of an estimate: attraction by scores and the effect of places, fitted on other users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np
from scipy.special import expit, logit

from shortlist.evaluation.value.evidence import Floats, Ints

FOLDS: Final = 2
_STEPS: Final = 500
_RIDGE: Final = 1.0
_PLACE_RIDGE: Final = 1e-3
_MIN_PROBABILITY: Final = 1e-6
_MAX_PROBABILITY: Final = 0.999


@dataclass(frozen=True)
class RewardModel:
    """Click models of rows that users saw: logistic in features, with an effect of the place of one of two kinds.

    The position-based model (Craswell et al., 2008) multiplies the attraction of an item by the examination of its
    place. In the other the place moves the log-odds, so that it matters less for attractive items. The likelihood of
    the rows decides. Each fold of users is predicted by coefficients of the other folds.
    """

    coefficients_FX: Floats  # noqa: N815 - F folds, X the constant, the features, and their means of the user
    examination_K: Floats  # noqa: N815
    """Examination of each place relative to the first, by the rows of all users, in the position-based model."""
    place_log_odds_FK: Floats | None  # noqa: N815
    """What each place adds to the log-odds, relative to the first; None: the position-based model fits better."""
    user_means_UX: Floats  # noqa: N815 - U users and all of them, X features
    """Means of each user's rows, and last those of all rows. Of two rows with the same score the lower one is of a user
    with more rows of higher scores, who likes more of what is shown; without the means (Mundlak, 1978) lower places
    would seem to be examined more than they are."""
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
        user_means = _mean_by_user(features, user, weight)
        design = np.concatenate([np.ones((place.size, 1)), features, user_means[user]], axis=1)
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
        coefficients = np.stack([fit.coefficients for fit in fits])
        return cls(coefficients, position_based.place_effects, log_odds, user_means, largest)

    def expected(self, features: Floats, user: Ints, place: Ints) -> Floats:
        """Return the expected reward of rows that are seen at their places, shape (rows,).

        Args:
            features: Features of the rows, shape (rows, features).
            user: Number of the user of each row; one without rows in the log is like the mean of them.
            place: Place of each row; one beyond those of the log is like the last.
        """
        fold, place = user % FOLDS, np.minimum(place, self.examination_K.size - 1)
        coefficients = self.coefficients_FX[fold]
        user_means = self.user_means_UX[np.minimum(user, self.user_means_UX.shape[0] - 1)]
        design = np.concatenate([features, user_means], axis=1)
        log_odds = coefficients[:, 0] + (coefficients[:, 1:] * design).sum(axis=1)
        if self.place_log_odds_FK is None:
            return np.asarray(self.largest * expit(log_odds) * self.examination_K[place])
        return np.asarray(self.largest * expit(log_odds + self.place_log_odds_FK[fold, place]))


def _mean_by_user(features: Floats, user: Ints, weight: Floats) -> Floats:
    """Return the mean features of each user's rows, and last of all rows, shape (users + 1, features)."""
    total = np.bincount(user, weight)
    sums = np.reshape([np.bincount(user, weight * feature) for feature in features.T], (-1, total.size)).T
    mean = sums.sum(axis=0) / max(float(total.sum()), 1e-12)
    user_means = np.where(total[:, None] > 0, sums / np.maximum(total, 1e-12)[:, None], mean)
    return np.concatenate([user_means, mean[None]])


class _PlaceModel(NamedTuple):
    """A fitted click model."""

    coefficients: Floats
    """Coefficients of the constant and the features."""
    place_effects: Floats
    """Examination, or log-odds, of each place relative to the first."""
    loss: float
    """Log loss of the rows that it was fitted on, summed with their weights."""


def _fit_position_based(design: Floats, place: Ints, target: Floats, weight: Floats, places: int) -> _PlaceModel:
    """Return coefficients of attraction and the examination of places."""

    def loss(coefficients: Floats, log_examination: Floats) -> tuple[float, Floats, Floats]:
        attraction = expit(design @ coefficients)
        log_probability = log_examination[place] + np.log(np.maximum(attraction, _MIN_PROBABILITY))
        is_free = log_probability < np.log(_MAX_PROBABILITY)
        probability = np.exp(np.minimum(log_probability, np.log(_MAX_PROBABILITY)))
        slope = np.where(is_free, weight * (probability - target) / (1 - probability), 0.0)
        # A place without rows is examined like the one above it.
        steps = np.diff(log_examination)
        return (
            _log_loss(probability, target, weight) + _PLACE_RIDGE / 2 * float((steps**2).sum()),
            design.T @ (slope * (1 - attraction)),
            np.bincount(place, slope, places) + _PLACE_RIDGE * (np.append(0.0, steps) - np.append(steps, 0.0)),
        )

    coefficients, log_examination = _minimize(loss, design, target, weight, places)
    probability = np.exp(log_examination)[place] * expit(design @ coefficients)
    probability = np.clip(probability, _MIN_PROBABILITY, _MAX_PROBABILITY)
    return _PlaceModel(coefficients, np.exp(log_examination), _log_loss(probability, target, weight))


def _fit_additive(design: Floats, place: Ints, target: Floats, weight: Floats, places: int) -> _PlaceModel:
    """Return coefficients of a logistic regression with what each place adds to the log-odds."""

    def loss(coefficients: Floats, log_odds: Floats) -> tuple[float, Floats, Floats]:
        probability = np.clip(expit(design @ coefficients + log_odds[place]), _MIN_PROBABILITY, _MAX_PROBABILITY)
        slope = weight * (probability - target)
        penalty = _RIDGE / 2 * float((log_odds**2).sum())
        by_place = np.bincount(place, slope, places) + _RIDGE * log_odds
        return _log_loss(probability, target, weight) + penalty, design.T @ slope, by_place

    coefficients, log_odds = _minimize(loss, design, target, weight, places)
    probability = np.clip(expit(design @ coefficients + log_odds[place]), _MIN_PROBABILITY, _MAX_PROBABILITY)
    return _PlaceModel(coefficients, log_odds, _log_loss(probability, target, weight))


def _minimize(
    loss: Callable[[Floats, Floats], tuple[float, Floats, Floats]],
    design: Floats,
    target: Floats,
    weight: Floats,
    places: int,
) -> tuple[Floats, Floats]:
    """Return the coefficients and the effects of places with the least loss, by L-BFGS; the first place's effect is 0.

    The coefficients but the constant are penalized, in units of the features' deviations.
    """
    from scipy.optimize import minimize

    total = max(float(weight.sum()), 1e-12)
    mean = weight @ design / total
    deviation = np.sqrt(np.maximum(weight @ (design - mean) ** 2 / total, 0.0))
    scale = np.where(deviation > 1e-9, deviation, 1.0)  # the constant, and features that do not vary
    penalty = np.append(1e-6, np.full(design.shape[1] - 1, _RIDGE))
    rate = np.clip(float(weight @ target) / total if weight.any() else 0.5, 1e-4, 0.9)

    def objective(parameters: Floats) -> tuple[float, Floats]:
        scaled = parameters[: scale.size]
        value, by_coefficient, by_place = loss(scaled / scale, np.append(0.0, parameters[scale.size :]))
        gradient = by_coefficient / scale + penalty * scaled
        return value + float(penalty @ scaled**2) / 2, np.append(gradient, by_place[1:])

    start = np.concatenate([[logit(rate)], np.zeros(scale.size - 1 + places - 1)])
    parameters = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}).x
    return parameters[: scale.size] / scale, np.append(0.0, parameters[scale.size :])


def _log_loss(probability: Floats, target: Floats, weight: Floats) -> float:
    return -float((weight * (target * np.log(probability) + (1 - target) * np.log1p(-probability))).sum())
