"""Inverse propensity by position, self-normalised."""

from __future__ import annotations

import numpy as np

from shortlist.evaluation.value.base import Contributions, Estimator
from shortlist.evaluation.value.evidence import ValueEvidence
from shortlist.evaluation.value.support import NO_SUPPORT, measure_support, supported_exposure


class InversePropensityEstimator(Estimator):
    """Weighted rewards over weighted exposure (Li et al., 2018; self-normalised after Swaminathan and Joachims, 2015).

    An item that the log never shows counts as one that earns the mean of the others.
    """

    def contributions(self, evidence: ValueEvidence) -> Contributions:
        """Return the ratio, linearised by request."""
        exposure = supported_exposure(evidence, evidence.weight)
        rewards = evidence.sum_by_request(evidence.weight * evidence.reward)
        mean_exposure = float(exposure.mean())
        if mean_exposure <= 0:
            return Contributions(np.zeros(evidence.requests), np.inf, NO_SUPPORT)
        attraction = float(rewards.mean()) / mean_exposure
        scale = float(evidence.list_exposure.mean()) / mean_exposure
        by_request = attraction * evidence.list_exposure + scale * (rewards - attraction * exposure)
        support = measure_support(evidence, evidence.weight)
        return Contributions(
            by_request=by_request,
            bias=support.unsupported * float(evidence.list_exposure.mean()) * attraction,
            support=support,
        )
