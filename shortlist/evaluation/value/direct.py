"""The direct estimate: what the reward model expects of the list."""

from __future__ import annotations

import numpy as np

from shortlist.evaluation.value.base import Contributions, Estimator
from shortlist.evaluation.value.evidence import ValueEvidence
from shortlist.evaluation.value.support import measure_support


class DirectEstimator(Estimator):
    """Expected reward by the reward model; as biased as the model is on items that the log rarely shows."""

    def contributions(self, evidence: ValueEvidence) -> Contributions:
        """Return the model's expectations; its own errors are in no interval."""
        return Contributions(
            by_request=np.asarray(evidence.list_expected),
            bias=0.0,
            support=measure_support(evidence, evidence.weight),
        )
