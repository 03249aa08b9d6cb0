"""The interface of estimators of value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from shortlist.evaluation.value.evidence import Floats, ValueEvidence
from shortlist.evaluation.value.support import Support


class Contributions(NamedTuple):
    """An estimate as a mean over requests, with what it cannot know."""

    by_request: Floats
    """Share of each request in the estimate, shape (requests,): their mean is the value, their spread its error."""
    bias: float
    """Largest bias that the estimator's shrinkage and places without support may bring."""
    support: Support
    shrinkage: float = 0.0
    """What shrinkage adds to the mean for the estimate; the interval is that of the mean."""

    @property
    def value(self) -> float:
        """The estimate: expected reward of a request's list."""
        return float(self.by_request.mean()) + self.shrinkage


class Estimator(ABC):
    """An estimator of the value of lists; a new one is a file and a line in the registry."""

    @abstractmethod
    def contributions(self, evidence: ValueEvidence) -> Contributions:
        """Return the estimate; a difference of two lists on the same requests is that of their contributions."""
