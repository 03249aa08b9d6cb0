"""The part of a spec that says what a feature table holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from shortlist.spec.data import Data
from shortlist.spec.features import Features
from shortlist.spec.gates import Gates


class DeclaredSections(NamedTuple):
    """What a run declares of its rows; unpacks into the first arguments of `fit` and `build_table`."""

    data: Data
    features: Features
    gates: Gates | None
    """Only its slices are read here; the limits belong to the gates."""

    @classmethod
    def parse(cls, data: str, features: str, slices: Sequence[str]) -> Self:
        """Return what a pipeline's parameters (JSON of the sections, names of the slices) declare."""
        return cls(Data.model_validate_json(data), Features.model_validate_json(features), Gates(slices=tuple(slices)))
