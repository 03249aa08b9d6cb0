"""How much a log says of a list: effective samples, and the share of the list without support."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from shortlist.evaluation.value.evidence import Floats, ValueEvidence


class Support(NamedTuple):
    """How much a log says of a list."""

    effective_samples: float
    """Number of equally weighted rows that would tell as much (Kish, 1965)."""
    unsupported: float
    """Share of the list's exposure that no weighted row stands for, from 0 to 1."""
    evident_unsupported: float
    """That share, less two standard errors: what is not chance."""


NO_SUPPORT: Final = Support(0.0, 1.0, 1.0)
"""The log says nothing of a list."""


def effective_samples(weights: Floats) -> float:
    """Return `(sum w)^2 / sum w^2`, the number of equally weighted rows that would tell as much (Kish, 1965).

    >>> effective_samples(np.array([1.0, 1.0, 0.0])), round(effective_samples(np.array([4.0, 1.0])), 2)
    (2.0, 1.47)
    """
    squares = float((weights**2).sum())
    return float(weights.sum()) ** 2 / squares if squares > 0 else 0.0


def supported_exposure(evidence: ValueEvidence, weights: Floats) -> Floats:
    """Return the exposure of the list that each request's rows stand for, shape (requests,).

    Its mean is that of `list_exposure` where the log may show every item of the list and no weight is cut.
    """
    return evidence.sum_by_request(weights * evidence.examination)


def measure_support(evidence: ValueEvidence, weights: Floats) -> Support:
    """Return how much the weighted rows of a log say of a list."""
    total = float(evidence.list_exposure.sum())
    exposure = supported_exposure(evidence, weights)
    if total <= 0:
        return NO_SUPPORT
    by_user = np.bincount(evidence.user, exposure - exposure.mean())
    unsupported = 1.0 - float(exposure.sum()) / total
    return Support(
        effective_samples=effective_samples(weights),
        unsupported=min(max(unsupported, 0.0), 1.0),
        evident_unsupported=min(max(unsupported - 2 * float(np.sqrt((by_user**2).sum())) / total, 0.0), 1.0),
    )
