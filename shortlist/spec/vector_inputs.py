"""Inputs of models from vectors of several modalities (texts, images)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from shortlist.contracts import did_you_mean
from shortlist.spec.base import Names, Section

Norm = Literal["layer", "l2"]


class VectorInputs(Section):
    """Vectors, each normalised and projected by its own weights, then summed or concatenated.

    A row without a vector has zeros, which `layer` turns into a learnt vector and `l2` keeps.
    """

    of: Names = Field(min_length=1, max_length=16)
    """The vectors by name, one per modality."""
    norm: Norm = "layer"
    """`layer`: mean 0 and deviation 1 over a vector's numbers, then a learnt scale and shift of each; `l2`: length
    1."""
    norms: dict[str, Norm] = Field(default={})
    """Norms of single vectors, by name."""
    width: int | None = Field(default=None, ge=1, le=1_024)
    """Width of each projection; null: `embedding_dim`."""
    combine: Literal["sum", "concat"] = "sum"
    """How the projections are combined: summed, or concatenated."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for name in self.norms:
            if name not in self.of:
                raise ValueError(f"norms: '{name}' is not among `of`{did_you_mean(name, self.of)}")
        if len(set(self.of)) < len(self.of):
            raise ValueError(f"of: names a vector twice (got {', '.join(self.of)})")
        return self

    def norm_of(self, name: str) -> Norm:
        """Return the norm of a vector."""
        return self.norms.get(name, self.norm)

    def output_width(self, embedding_dim: int) -> int:
        """Return the width of the combined projections."""
        width = self.width or embedding_dim
        return width if self.combine == "sum" else width * len(self.of)
