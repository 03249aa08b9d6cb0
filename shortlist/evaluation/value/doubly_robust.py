"""Doubly robust with shrinkage: the reward model's expectation, corrected by weighted errors of the model."""

from __future__ import annotations

from typing import Final

import numpy as np

from shortlist.evaluation.value.base import Contributions, Estimator
from shortlist.evaluation.value.estimate import interval_radius
from shortlist.evaluation.value.evidence import ValueEvidence
from shortlist.evaluation.value.support import NO_SUPPORT, measure_support, supported_exposure

MAX_WEIGHTS: Final = (500.0, 250.0, 125.0)
"""Largest weights of a row of which an estimate takes one; larger ones are cut, as one row would then decide."""
_MAX_UNSUPPORTED: Final = 0.1
"""Largest share of the list without support that a smaller weight than the first may leave."""
_CONFIDENCE: Final = 0.95
"""Level of the intervals by which a largest weight is chosen."""
_FEWEST_DEVIATIONS: Final = 1.5
"""Deviations of the correction below which it is left out of the estimate."""


class DoublyRobustEstimator(Estimator):
    """The direct estimate plus the weighted mean of the model's errors, shrunk (Su et al., 2020).

    Weights are cut at the one of `MAX_WEIGHTS` that gives the narrowest interval: smaller ones vary less, and leave
    more of the list without support. The correction is shrunk towards 0 by its own error. The interval is that of the
    correction without the second shrinkage. The mean error of the model over the part of the list that the log supports
    is taken for all of it; how far the error on the rest may differ is the bias.
    """

    def contributions(self, evidence: ValueEvidence) -> Contributions:
        """Return the corrected expectation by request."""
        least_cut, *smaller_cuts = (self._cut_at(evidence, max_weight) for max_weight in MAX_WEIGHTS)
        supported = [cut for cut in smaller_cuts if cut.support.evident_unsupported <= _MAX_UNSUPPORTED]
        return min([least_cut, *supported], key=lambda cut: _radius(cut, evidence))

    def _cut_at(self, evidence: ValueEvidence, max_weight: float) -> Contributions:
        """Return the corrected expectation with weights of at most `max_weight`."""
        weights = np.minimum(evidence.weight, max_weight)
        exposure = supported_exposure(evidence, weights)
        errors = evidence.sum_by_request(weights * (evidence.reward - evidence.expected))
        mean_exposure = float(exposure.mean())
        if mean_exposure <= 0:
            return Contributions(evidence.list_expected, np.inf, NO_SUPPORT)
        list_exposure = float(evidence.list_exposure.mean())
        error, scale = float(errors.mean()) / mean_exposure, list_exposure / mean_exposure
        residuals = errors - error * exposure
        deviation = float(residuals.std()) / mean_exposure / np.sqrt(evidence.requests)
        support = measure_support(evidence, weights)
        shrinkage = max(0.0, 1.0 - (_FEWEST_DEVIATIONS * deviation / error) ** 2) if error else 0.0
        return Contributions(
            by_request=evidence.list_expected + error * evidence.list_exposure + scale * residuals,
            bias=support.unsupported * list_exposure * 2 * (abs(error) + deviation),
            support=support,
            shrinkage=(shrinkage - 1.0) * error * list_exposure,
        )


def _radius(cut: Contributions, evidence: ValueEvidence) -> float:
    return interval_radius(cut.by_request, evidence.user, _CONFIDENCE) + cut.bias
