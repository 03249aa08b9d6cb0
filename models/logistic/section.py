"""The section of a spec that declares a logistic regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field

from shortlist.spec.base import Names
from shortlist.spec.models import ModelSection


class LogisticModel(ModelSection):
    """Logistic-regression baseline on hashed one-hot ids and dense features."""

    kind: Literal["logistic"] = "logistic"
    """Logistic regression; added with the features of the last declared candidate where none is declared."""
    role: Literal["baseline"] = "baseline"
    """It has no exported form, so it is never served."""
    features: Names = Field(min_length=1)
    """Features it reads; `*` and `?` match several."""

    @classmethod
    def added_to(cls, candidates: Sequence[ModelSection]) -> Self | None:
        """Return one on the features of the last candidate that declares some."""
        reads = [candidate.reads for candidate in candidates if candidate.reads]
        return cls(features=reads[-1]) if reads else None
