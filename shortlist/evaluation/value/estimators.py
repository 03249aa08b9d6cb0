"""The registry of estimators of value."""

from __future__ import annotations

from typing import Final

from shortlist.evaluation.value.base import Estimator
from shortlist.evaluation.value.direct import DirectEstimator
from shortlist.evaluation.value.doubly_robust import DoublyRobustEstimator
from shortlist.evaluation.value.inverse_propensity import InversePropensityEstimator
from shortlist.system.registry import Registry

DEFAULT_ESTIMATOR: Final = "doubly_robust"
ESTIMATORS: Final = Registry[type[Estimator]](
    "estimators",
    {
        "direct": DirectEstimator,
        "inverse_propensity": InversePropensityEstimator,
        "doubly_robust": DoublyRobustEstimator,
    },
)
"""Estimator classes by name; a new one is a file and a line here."""
