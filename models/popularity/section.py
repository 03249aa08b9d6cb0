"""The section of a spec that declares a popularity model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from shortlist.spec.models import ModelSection, labels_of_all


class PopularityModel(ModelSection):
    """Popularity baseline: the smoothed click rate of every item on the training days."""

    kind: Literal["popularity"] = "popularity"
    """Click rates of items; added where none is declared."""
    role: Literal["baseline"] = "baseline"
    """It has no exported form, so it is never served."""

    reference_baseline: ClassVar[bool] = True

    @classmethod
    def added_to(cls, candidates: Sequence[ModelSection]) -> Self | None:
        """Every spec has one."""
        return cls(labels=labels_of_all(candidates))
