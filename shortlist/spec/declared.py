"""The sections of a spec that define a feature table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.gates import Gates


class DeclaredSections(NamedTuple):
    """The sections that define a run's feature table; unpacks into the first arguments of `fit` and `build_table`."""

    data: Data
    features: Features
    gates: Gates | None
    """Only the columns that it reads are used; the limits belong to the gates."""

    @classmethod
    def parse(cls, data: str, features: str, slices: Sequence[str]) -> Self:
        """Return the sections from a pipeline's parameters: JSON of the sections and names of the slices."""
        return cls(Data.model_validate_json(data), Features.model_validate_json(features), Gates(slices=tuple(slices)))
